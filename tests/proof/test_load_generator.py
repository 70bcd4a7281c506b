"""The load generator of the benchmarks notices every way in which a server could look fast without doing its work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.load import jobs, render
from benchmarks.load.connection import BadAnswer
from benchmarks.load.jobs import DrainJob, FlowJob, PushJob, drain, flow, push
from benchmarks.load.null_server import NullServer
from benchmarks.load.render import Pushing
from benchmarks.load.window import Figures, Window

SHORT = 0.1


def window() -> Window:
    return Window(lambda moment: None, lambda text: None)


async def pushing(port: int) -> Figures:
    return await push(PushJob(port=port, seconds=SHORT, warm_up=SHORT, connections=2), window())


async def draining(port: int) -> Figures:
    return await drain(DrainJob(port=port, fill_seconds=SHORT, connections=2), window())


async def flowing(port: int) -> Figures:
    return await flow(FlowJob(port=port, seconds=SHORT, warm_up=SHORT, producers=2, consumers=2), window())


@asynccontextmanager
async def listening(server: NullServer) -> AsyncIterator[int]:
    listener, port = await server.start()
    async with listener:
        yield port


@pytest.mark.parametrize("run", [pushing, draining, flowing])
async def test_an_honest_server_is_measured(run: Callable[[int], Awaitable[Figures]]) -> None:
    async with listening(NullServer()) as port:
        figures = await run(port)
    assert figures.messages > 0
    assert 0 < figures.p50 <= figures.p99


class PushesLess(NullServer):
    def push(self, ids: list[bytes]) -> bytes:
        return super().push(ids[1:])


class SaysDuplicate(NullServer):
    def push(self, ids: list[bytes]) -> bytes:
        return super().push(ids).replace(b'"queued"', b'"failed"', 1)


class WrongStatus(NullServer):
    def push(self, ids: list[bytes]) -> bytes:
        return super().push(ids).replace(b"201 Created", b"202 Accepted")


class NoLength(NullServer):
    def push(self, ids: list[bytes]) -> bytes:
        return super().push(ids).replace(b"Content-Length", b"X-Length")


class Talks(NullServer):
    def push(self, ids: list[bytes]) -> bytes:
        return super().push(ids) + b"HTTP/1.1 200 OK\r\n"


class HangsUp(NullServer):
    def handle(self, request: bytes, transport: asyncio.Transport) -> None:
        transport.close()


class DeliversTwice(NullServer):
    def take(self, batch: int) -> bytes:
        first = self.kept[0][:batch]
        if len(self.kept) > 1:
            self.kept[1][: len(first)] = first
        return super().take(batch)


class DeliversMore(NullServer):
    def take(self, batch: int) -> bytes:
        return super().take(batch + 1)


class Loses(NullServer):
    def take(self, batch: int) -> bytes:
        self.kept[0] = self.kept[0][: batch - 1]
        return super().take(batch)


class RefusesAcks(NullServer):
    def handle(self, request: bytes, transport: asyncio.Transport) -> None:
        super().handle(
            request.replace(b'"transactionId"', b'"x"', 1) if b"ack/batch" in request else request, transport
        )


@pytest.mark.parametrize(
    ("server", "run", "said"),
    [
        (PushesLess, pushing, "99 of 100 queued"),
        (SaysDuplicate, pushing, "99 of 100 queued"),
        (WrongStatus, pushing, "status 202"),
        (NoLength, pushing, "without Content-Length"),
        (Talks, pushing, "behind an answer"),
        (HangsUp, pushing, "closed the connection"),
        (DeliversTwice, draining, "different messages popped"),
        (DeliversMore, flowing, "pop: 11 messages"),
        (Loses, draining, "nothing happens"),
        (RefusesAcks, draining, "99 of 100 acked"),
    ],
)
async def test_a_server_that_cheats_is_caught(
    server: type[NullServer], run: Callable[[int], Awaitable[Figures]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 0.5)
    async with listening(server()) as port:
        with pytest.raises(BadAnswer, match=said):
            await run(port)


@pytest.mark.parametrize(
    "shape", [Pushing(batch=3), Pushing(batch=3, spread=True), Pushing(batch=2, payload_bytes=1024)]
)
def test_requests_are_as_long_as_they_say_and_never_repeat_an_id(shape: Pushing) -> None:
    request = render.pushes("localhost", shape)
    ids: set[str] = set()
    for _ in range(3):
        head, _, body = request().partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        items = render_items(body)
        assert len(items) == shape.batch
        assert len({item["partition"] for item in items}) == (shape.batch if shape.spread else 1)
        assert all(abs(len(item["payload"]["note"]) - shape.payload_bytes) < 100 for item in items)
        ids |= {item["transactionId"] for item in items}
    assert len(ids) == 3 * shape.batch


def render_items(body: bytes) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(body)["items"]
    return items
