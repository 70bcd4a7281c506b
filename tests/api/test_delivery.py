"""What becomes of popped messages when the answer reaches its client, and when it does not."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.app import build
from queenmq.http.endpoint import Endpoint
from queenmq.http.limits import Limits
from queenmq.storage.pop import PopResult
from tests.api import asgi
from tests.api.serving import Api, data
from tests.engine.saying import QUEUE, ask, push, read, until

PATH = f"/api/v1/pop/queue/{QUEUE}?batch=1"
GET = "GET /api/v1/pop/queue/%s?autoAck=true%s HTTP/1.1\r\nHost: here\r\n\r\n"
KINDS = ["", "&autoAck=true"]


class Wire(asyncio.Transport):
    """A connection whose end is decided by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closing = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.fixture
async def broker(database: str) -> AsyncIterator[Broker]:
    opened = await Broker.open(EngineConfig(dsn=database, connections=4))
    await push(opened, 1, 2)
    yield opened
    await opened.drain()
    await opened.close()


def request(broker: Broker, wire: Wire, query: str, headers: str = "") -> asyncio.Protocol:
    protocol = Endpoint(broker, Limits()).protocol()
    protocol.connection_made(wire)
    protocol.data_received(f"GET {PATH}{query} HTTP/1.1\r\nHost: here\r\n{headers}\r\n".encode())
    return protocol


def at_the_answer(broker: Broker, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen when the engine has its answer and the connection has yet to send it."""
    pop = broker.pop

    def popping(asked: Any) -> asyncio.Future[PopResult]:
        future = pop(asked)
        future.add_done_callback(lambda _: happens())
        return future

    monkeypatch.setattr(broker, "pop", popping)


async def next_one(broker: Broker) -> list[object]:
    """What the next pop gets."""
    async with asyncio.timeout(20):
        return read(await broker.pop(ask(30.0, batch=1)))


async def given_back(broker: Broker) -> list[object]:
    """The same, when a lease was given back, and has not merely run out."""
    await until(lambda: broker.stats()["leases"]["given_back"] == 1)
    return await next_one(broker)


@pytest.mark.parametrize("headers", ["", "Connection: close\r\n"], ids=["kept", "closed"])
async def test_an_answer_that_was_sent_is_acknowledged(broker: Broker, headers: str) -> None:
    wire = Wire()
    request(broker, wire, "&autoAck=true", headers)
    await until(lambda: b'"data":1' in wire.sent)
    assert b'"leaseId":""' in wire.sent
    assert await next_one(broker) == [2]


@pytest.mark.parametrize("query", KINDS)
async def test_a_client_that_leaves_before_the_answer_is_sent(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    wire = Wire()
    left = asyncio.Event()

    def leave() -> None:
        protocol.connection_lost(None)
        left.set()

    at_the_answer(broker, monkeypatch, leave)
    protocol = request(broker, wire, query)
    await left.wait()
    monkeypatch.undo()
    assert await given_back(broker) == [1]
    assert wire.sent == b""


@pytest.mark.parametrize("query", KINDS)
async def test_a_connection_that_is_closing_when_the_answer_comes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    wire = Wire()
    left = asyncio.Event()

    def leave() -> None:
        wire.close()
        left.set()

    at_the_answer(broker, monkeypatch, leave)
    request(broker, wire, query)
    await left.wait()
    monkeypatch.undo()
    assert await given_back(broker) == [1]


class TestRealConnections:
    """autoAck, and clients that end their connections in all ways."""

    @pytest.mark.parametrize("ending", ["close", "reset", "half-closed"])
    @pytest.mark.parametrize("query", ["", "&wait=true"])
    async def test_what_a_client_has_read_does_not_come_again(self, api: Api, ending: str, query: str) -> None:
        await api.push(QUEUE, *range(40))
        for number in range(40):
            assert await self.taken(api, ending, query) == number
        assert await api.take(QUEUE) == []

    @pytest.mark.parametrize("ending", ["close", "reset"])
    async def test_a_client_that_has_left_before_the_push_takes_nothing(self, api: Api, ending: str) -> None:
        for number in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write((GET % (QUEUE, "&wait=true")).encode())
            await until(lambda: api.broker.stats()["waiting"]["parked"] == 1)
            end(writer, ending)
            await api.push(QUEUE, number)
            assert data(await api.take(QUEUE, autoAck="true", wait="true", timeout=5000)) == [number]

    @pytest.mark.parametrize("ending", ["close", "reset"])
    @pytest.mark.parametrize("pipelined", [70_000, 3_000_000])
    @pytest.mark.parametrize("auto", ["true", "false"])
    async def test_nor_does_one_with_much_behind_its_pop(
        self, api: Api, ending: str, pipelined: int, auto: str
    ) -> None:
        """So much that the rest is not read, and its end is not seen."""
        body = json.dumps({"items": [{"queue": "other", "payload": "x" * pipelined}]})
        push = f"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        for number in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(
                f"GET /api/v1/pop/queue/{QUEUE}?autoAck={auto}&wait=true HTTP/1.1\r\nHost: x\r\n\r\n{push}".encode()
            )
            await until(lambda: api.broker.stats()["waiting"]["parked"] == 1)
            if ending == "reset":
                end(writer, ending)
            writer.transport.abort()
            await api.push(QUEUE, number)
            assert data(await api.take(QUEUE, autoAck="true", wait="true", timeout=5000)) == [number]

    @pytest.mark.parametrize("reads_for", [0.0, 0.01, 0.1, 0.5])
    async def test_nor_does_one_that_had_half_closed_and_waited(self, api: Api, reads_for: float) -> None:
        for number in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write((GET % (QUEUE, "&wait=true")).encode())
            writer.write_eof()
            with suppress(TimeoutError):
                async with asyncio.timeout(reads_for):
                    while await reader.read(1000):
                        pass
            await until(lambda: api.broker.stats()["waiting"]["parked"] == 1)
            writer.close()
            await api.push(QUEUE, number)
            assert data(await api.take(QUEUE, autoAck="true", wait="true", timeout=5000)) == [number]

    async def taken(self, api: Api, ending: str, query: str) -> Any:
        """The message that one client gets."""
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write((GET % (QUEUE, query)).encode())
        if ending == "half-closed":
            writer.write_eof()
        async with asyncio.timeout(20):
            head = b"100 "
            while b"100 " in head.partition(b"\r\n")[0]:
                head = await reader.readuntil(b"\r\n\r\n")
            size = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
            body = json.loads(await reader.readexactly(size))
        end(writer, ending)
        return body["messages"][0]["data"]


def end(writer: asyncio.StreamWriter, how: str) -> None:
    if how == "reset":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()


class TestThroughTheApplication:
    async def test_an_answer_that_was_sent_is_acknowledged(self, broker: Broker) -> None:
        status, body, _ = await asgi.ask(build(broker, Limits()), "GET", PATH + "&autoAck=true")
        assert (status, [message["data"] for message in body["messages"]]) == (200, [1])
        assert await next_one(broker) == [2]

    @pytest.mark.parametrize("query", KINDS)
    async def test_a_client_that_leaves_before_it_is_complete(self, broker: Broker, query: str) -> None:
        app = build(broker, Limits())

        async def leaving(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": {"lost": lambda: True}}, receive, send)

        await asgi.ask(leaving, "GET", PATH + query)
        assert await given_back(broker) == [1]

    @pytest.mark.parametrize("query", KINDS)
    async def test_sending_fails(self, broker: Broker, query: str) -> None:
        app = build(broker, Limits())

        async def failing(message: Message) -> None:
            raise OSError("the client has left")

        async def without(scope: Scope, receive: Receive, send: Send) -> None:
            await app(scope, receive, failing)

        with pytest.raises(OSError, match="the client has left"):
            await _ask(without, PATH + query)
        assert await given_back(broker) == [1]


async def _ask(app: ASGIApp, path: str) -> None:
    await asgi.ask(app, "GET", path)
