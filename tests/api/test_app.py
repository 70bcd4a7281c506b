"""The application answers the hot routes as the protocol does, for the requests that go through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from queenmq.http.app import build
from queenmq.http.limits import Limits
from tests.api.asgi import ask, scope
from tests.api.serving import Api, data

SAME = [
    ("POST", "/api/v1/push", b"{}"),
    ("POST", "/api/v1/push", b'{"items":[]}'),
    ("POST", "/api/v1/push", b'{"items":[{"queue":5}]}'),
    ("POST", "/api/v1/push", b"nonsense"),
    ("POST", "/api/v1/ack", b"{}"),
    ("POST", "/api/v1/ack", b'{"transactionId":"t","partitionId":"p"}'),
    ("POST", "/api/v1/ack/batch", b"{}"),
    ("POST", "/api/v1/ack/batch", b'{"acknowledgments":[{"transactionId":"t","partitionId":"p"}]}'),
    ("GET", "/api/v1/pop", b""),
    ("GET", "/api/v1/pop/queue/nothing", b""),
    ("GET", "/api/v1/pop/queue/a%2Fb/partition/%00", b""),
    ("GET", "/api/v1/pop/queue/%ff", b""),
    ("GET", "/api/v1/pop/other", b""),
    ("GET", "/api/v1/pop/queue/q?subscriptionFrom=never", b""),
]


@pytest.fixture
def app(api: Api) -> ASGIApp:
    return build(api.broker, Limits())


@pytest.mark.parametrize(("method", "path", "body"), SAME)
async def test_both_ways_give_the_same_answer(api: Api, app: ASGIApp, method: str, path: str, body: bytes) -> None:
    hot = await api.http.request(method, path, content=body)
    status, answer, _ = await ask(app, method, path, body)
    assert status == hot.status_code
    assert answer == (hot.json() if hot.content else None)


async def test_a_message_can_go_in_by_one_way_and_out_by_the_other(api: Api, app: ASGIApp) -> None:
    status, pushed, _ = await ask(app, "POST", "/api/v1/push", b'{"items":[{"queue":"a/b","payload":[1]}]}')
    assert (status, pushed[0]["status"]) == (201, "queued")
    (message,) = await api.take("a%2Fb")
    assert message["data"] == [1]
    await api.ack(message)
    await api.push("a/b", 2, 3)
    _, popped, _ = await ask(app, "GET", "/api/v1/pop/queue/a%2Fb?batch=5")
    assert data(popped["messages"]) == [2, 3]
    acks = [
        {key: message[key] for key in ("transactionId", "partitionId", "leaseId")} for message in popped["messages"]
    ]
    results = await api.ack_batch(*acks)
    assert [result["success"] for result in results] == [True, True]


async def test_a_client_that_leaves_while_its_pop_waits_takes_no_message(api: Api, app: ASGIApp) -> None:
    left = asyncio.Event()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    waiting = asyncio.ensure_future(
        app(scope("GET", "/api/v1/pop/queue/orders?wait=true&timeout=60000"), receive, send)
    )
    await until(api, lambda stats: stats["waiting"]["parked"] == 1)
    left.set()
    await asyncio.wait_for(waiting, 20)
    await until(api, lambda stats: stats["waiting"]["parked"] == 0)
    await api.push("orders", 1)
    assert data(await api.take("orders")) == [1]


async def test_the_application_limits_bodies_by_itself(api: Api) -> None:
    small = build(api.broker, Limits(max_body_bytes=100))
    status, body, _ = await ask(small, "POST", "/api/v1/configure", b" " * 101)
    assert (status, body["code"]) == (413, "body_too_large")


async def until(api: Api, seen: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if seen(api.broker.stats()):
                return
            await asyncio.sleep(0.01)
