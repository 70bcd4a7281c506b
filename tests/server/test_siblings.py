"""Two workers behave as one for those who wait. They would not look by themselves for a minute."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest

from tests.server.conftest import StartServer
from tests.server.running import Client, Server, eventually

SELDOM = {"POP_WAIT_INITIAL_INTERVAL_MS": "60000", "POP_WAIT_MAX_INTERVAL_MS": "60000"}


@pytest.fixture
def server(start_server: StartServer, database: str) -> Server:
    return start_server("--workers", "2", DATABASE_URL=database, **SELDOM).wait_ready()


def on(server: Server, worker: int) -> Client:
    """A connection to that worker."""
    found: list[Client] = []

    def look() -> bool:
        client = server.connect()
        if client.worker == worker:
            found.append(client)
        return bool(found)

    eventually(look)
    return found[0]


class Poll:
    """A pop that waits, on its own connection."""

    def __init__(self, client: Client, path: str) -> None:
        self.answer: tuple[int, Any] | None = None
        self._client = client
        self._thread = threading.Thread(target=self._run, args=(path,))
        self._thread.start()

    def _run(self, path: str) -> None:
        self.answer = self._client.get(path)

    def payloads(self) -> list[Any]:
        self._thread.join(20)
        assert self.answer is not None, "nobody has woken it"
        status, body = self.answer
        assert status == 200
        return [message["data"] for message in body["messages"]]


def parked(server: Server, worker: int, polls: int = 1) -> None:
    client = on(server, worker)

    def look() -> bool:
        _, stats = client.get("/internal/api/engine/stats")
        return bool(stats["engine"]["waiting"]["parked"] == polls)

    eventually(look)


def push(client: Client, *payloads: Any, queue: str = "orders") -> None:
    status, _ = client.post("/api/v1/push", {"items": [{"queue": queue, "payload": each} for each in payloads]})
    assert status == 201


@pytest.mark.parametrize(
    "path", ["/queue/orders?", "/queue/orders/partition/Default?", "/queue/orders?consumerGroup=g&", "?namespace=shop&"]
)
def test_a_push_wakes_who_waits_at_the_other_worker(server: Server, path: str) -> None:
    pusher = on(server, 0)
    configured, _ = pusher.post("/api/v1/configure", {"queue": "orders", "namespace": "shop"})
    assert configured in (200, 201)
    poll = Poll(on(server, 1), f"/api/v1/pop{path}wait=true&timeout=30000")
    parked(server, 1)
    push(pusher, {"n": 1})
    assert poll.payloads() == [{"n": 1}]


def test_an_ack_wakes_who_waits_at_the_other_worker_for_the_same_partition(server: Server) -> None:
    first, second = on(server, 0), on(server, 1)
    push(first, 1, 2)
    _, body = first.get("/api/v1/pop/queue/orders?batch=1")
    [message] = body["messages"]
    poll = Poll(second, "/api/v1/pop/queue/orders?wait=true&timeout=30000")
    parked(server, 1)
    names = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    status, _ = first.post("/api/v1/ack", names | {"status": "completed"})
    assert status == 200
    assert poll.payloads() == [2]


@pytest.mark.parametrize("killed", [0, 1])
def test_workers_that_were_replaced_wake_and_are_woken(server: Server, killed: int) -> None:
    before = server.workers[killed]
    poll = Poll(on(server, 1 - killed), "/api/v1/pop/queue/orders?wait=true&timeout=30000")
    parked(server, 1 - killed)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: server.workers.get(killed, before) != before)
    push(on(server, killed), "from the new one")
    assert poll.payloads() == ["from the new one"]
    again = Poll(on(server, killed), "/api/v1/pop/queue/bills?wait=true&timeout=30000")
    parked(server, killed)
    push(on(server, 1 - killed), "to the new one", queue="bills")
    assert again.payloads() == ["to the new one"]


def test_one_worker_has_no_siblings(start_server: StartServer, database: str) -> None:
    server = start_server("--workers", "1", DATABASE_URL=database).wait_ready()
    _, stats = server.connect().get("/internal/api/engine/stats")
    assert "siblings" not in stats["engine"], json.dumps(stats)
