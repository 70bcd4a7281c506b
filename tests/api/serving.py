"""A worker's HTTP side on a real socket, and short words for what tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.endpoint import Endpoint
from queenmq.http.limits import Limits

Json = dict[str, Any]


@dataclass
class Api:
    """The served endpoint. Calls answer with what came over the wire."""

    broker: Broker
    http: httpx.AsyncClient
    port: int

    async def post(self, path: str, body: object) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def send(self, path: str, body: bytes) -> httpx.Response:
        return await self.http.post(path, content=body)

    async def push(self, queue: str, *payloads: object, partition: str | None = None, **fields: object) -> list[Json]:
        item = {"queue": queue, "partition": partition, **fields}
        answer = await self.post("/api/v1/push", {"items": [{**item, "payload": payload} for payload in payloads]})
        assert answer.status_code == 201, answer.text
        results: list[Json] = answer.json()
        return results

    async def pop(self, queue: str, partition: str | None = None, **query: object) -> httpx.Response:
        path = f"/api/v1/pop/queue/{queue}" + ("" if partition is None else f"/partition/{partition}")
        return await self.http.get(path, params={name: str(value) for name, value in query.items()})

    async def take(self, queue: str, partition: str | None = None, **query: object) -> list[Json]:
        """The messages of a pop; none when it is empty."""
        answer = await self.pop(queue, partition, **query)
        if answer.status_code == 204:
            return []
        assert answer.status_code == 200, answer.text
        messages: list[Json] = answer.json()["messages"]
        return messages

    async def ack(self, message: Json, status: str = "completed", **fields: object) -> Json:
        answer = await self.post("/api/v1/ack", {**receipt(message), "status": status, **fields})
        assert answer.status_code == 200, answer.text
        (result,) = answer.json()
        assert isinstance(result, dict)
        return result

    async def ack_batch(self, *acks: Json, group: str | None = None) -> list[Json]:
        answer = await self.post("/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": group})
        assert answer.status_code == 200, answer.text
        results: list[Json] = answer.json()
        return results

    async def configure(self, queue: str, **options: object) -> Json:
        answer = await self.post("/api/v1/configure", {"queue": queue, "options": options})
        assert answer.status_code == 200, answer.text
        result: Json = answer.json()
        return result

    async def stored(self) -> int:
        """Messages in the database."""
        return int(await self.broker.store.pool.fetchval("select coalesce(sum(n), 0) from queen.segments"))


def receipt(message: Json, status: str | None = None) -> Json:
    """What an ack says to name a message."""
    named = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    return named if status is None else {**named, "status": status}


def data(messages: list[Json]) -> list[Any]:
    return [message["data"] for message in messages]


@asynccontextmanager
async def serving(
    dsn: str, limits: Limits | None = None, *, max_pending_bytes: int = 64 * 1024 * 1024
) -> AsyncIterator[Api]:
    broker = await Broker.open(EngineConfig(dsn=dsn, connections=4, max_pending_bytes=max_pending_bytes))
    endpoint = Endpoint(broker, limits or Limits())
    listener = await asyncio.get_running_loop().create_server(endpoint.protocol, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield Api(broker, http, port)
    finally:
        listener.close()
        await broker.drain()
        await endpoint.drain()
        await broker.close()
