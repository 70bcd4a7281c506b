"""The whole endpoint: the real handlers and routes, a broker, and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.endpoint import Endpoint
from queenmq.http.limits import Limits
from tests.http.protocol.site import DEADLINE, Client, get, post, until


class Running:
    """An endpoint on uvloop, in a thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._started = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()))

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        broker = await Broker.open(EngineConfig(dsn=self._dsn))
        self.endpoint = Endpoint(broker, Limits())
        server = await self.loop.create_server(self.endpoint.protocol, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await asyncio.wait_for(asyncio.gather(self.endpoint.drain(), broker.drain()), DEADLINE)
        await broker.close()

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._started.wait(DEADLINE)
        return self

    def stop(self) -> None:
        """Say it once: after that, the loop may be closed at any moment."""
        if self._stopping:
            return
        self._stopping = True
        self.loop.call_soon_threadsafe(self._stop.set)

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def stats(self) -> dict[str, Any]:
        async def inside() -> dict[str, Any]:
            return self.endpoint.stats()

        return asyncio.run_coroutine_threadsafe(inside(), self.loop).result(DEADLINE)


@pytest.fixture
def running(embedded_dsn: str) -> Iterator[Running]:
    with Running(embedded_dsn) as endpoint:
        yield endpoint


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    opened = Client(running.port)
    yield opened
    opened.socket.close()


def push(*payloads: object) -> bytes:
    return post("/api/v1/push", json.dumps({"items": [{"queue": "q", "payload": each} for each in payloads]}).encode())


def test_push_pop_ack(client: Client, running: Running) -> None:
    client.send(push({"n": 1}))
    reply = client.reply()
    assert reply.status == 201, reply
    assert json.loads(reply.body)[0]["status"] == "queued"
    client.send(get("/api/v1/pop/queue/q?batch=5"))
    reply = client.reply()
    assert reply.status == 200, reply
    (message,) = json.loads(reply.body)["messages"]
    assert message["data"] == {"n": 1}
    ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    client.send(post("/api/v1/ack", json.dumps({**ack, "status": "completed"}).encode()))
    reply = client.reply()
    assert reply.status == 200, reply
    client.send(get("/api/v1/pop/queue/q"))
    assert client.reply().status == 204
    assert running.stats()["answers"]["2xx"] == 4


def test_the_same_routes_through_starlette(client: Client) -> None:
    """An absolute URL is not recognised as a hot one."""
    client.send(push(1).replace(b"POST /", b"POST http://queen/"))
    assert client.reply().status == 201
    client.send(get("http://queen/api/v1/pop/queue/q"))
    reply = client.reply()
    assert (reply.status, json.loads(reply.body)["messages"][0]["data"]) == (200, 1)


@pytest.mark.parametrize("host", ["", "http://queen"])
def test_a_poll_whose_client_left_takes_nothing(client: Client, running: Running, host: str) -> None:
    with Client(running.port).socket as leaving:
        leaving.sendall(get(f"{host}/api/v1/pop/queue/q?wait=true&timeout=60000"))
        until(lambda: running.stats()["requests"] == 1)
    until(lambda: running.stats()["connections"] == 1)
    client.send(push(1) + get("/api/v1/pop/queue/q"))
    assert [reply.status for reply in client.replies(2)] == [201, 200]


def test_bad_input_is_named(client: Client) -> None:
    client.send(post("/api/v1/push", b'{"items":[{"payload":1}]}'))
    reply = client.reply()
    assert (reply.status, reply.error["field"]) == (400, "items[0].queue")


def test_health_and_unknown_routes(client: Client) -> None:
    client.send(get("/health") + get("/nowhere") + get("/health", method="HEAD"))
    assert client.reply().status == 200
    reply = client.reply()
    assert (reply.status, reply.error["code"]) == (404, "not_found")
    assert client.reply(head=True).status == 200


def test_stopping_closes_and_answers(client: Client, running: Running) -> None:
    client.send(get("/api/v1/pop/queue/q?wait=true&timeout=1000"))
    until(lambda: running.stats()["parked"] == 1)
    running.stop()
    reply = client.reply()
    assert (reply.status, reply.closes) == (204, True)
    assert client.is_closed()
