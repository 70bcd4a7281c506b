"""Request bodies that come compressed."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from itertools import pairwise

import pytest

from queenmq.http.inflate import inflate
from queenmq.http.limits import Limits
from queenmq.http.refusals import Refused
from tests.http.protocol.site import DEADLINE, Site, chunked, post, until

GZIP = "Content-Encoding: gzip"
ROUTES = ["/api/v1/push", "/echo/x"]
BODY = b'{"items":[' + b"1," * 5_000 + b"1]}"


def body_of(site: Site, request: bytes) -> bytes:
    reply = site.exchange(request)
    assert reply.status // 100 == 2, reply
    seen = reply.body
    return json.loads(seen)["body"].encode() if b'"method"' in seen else seen


@pytest.mark.parametrize("path", ROUTES)
def test_a_compressed_body_arrives_as_it_was(site: Site, path: str) -> None:
    packed = gzip.compress(BODY)
    assert body_of(site, post(path, packed, GZIP)) == BODY
    assert body_of(site, post(path, packed, "content-encoding: X-GZip")) == BODY
    assert body_of(site, chunked(path, packed[:7], packed[7:], headers=(GZIP,))) == BODY
    assert body_of(site, chunked(path, *(bytes([byte]) for byte in packed), headers=(GZIP,))) == BODY
    assert body_of(site, post(path, packed + gzip.compress(b" "), GZIP)) == BODY + b" "


@pytest.mark.parametrize("path", ROUTES)
def test_no_body_is_an_empty_body(site: Site, path: str) -> None:
    assert body_of(site, post(path, b"", GZIP)) == b""
    assert body_of(site, chunked(path, headers=(GZIP,))) == b""
    assert body_of(site, post(path, BODY, "Content-Encoding: identity")) == BODY


def test_starlette_does_not_see_that_it_was_compressed(site: Site) -> None:
    seen = json.loads(site.exchange(post("/echo/x", gzip.compress(BODY), GZIP)).body)
    assert "content-encoding" not in seen["headers"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("pieces", [1, 50])
def test_a_bomb_is_413(path: str, pieces: int) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    size = len(bomb) // pieces + 1
    with Site(Limits(max_body_bytes=100_000)) as site, site.client() as client:
        client.send(chunked(path, *(bomb[at : at + size] for at in range(0, len(bomb), size)), headers=(GZIP,)))
        reply = client.reply()
        assert (reply.status, reply.error["code"], reply.closes) == (413, "body_too_large", True)
        assert client.is_closed()


def unpacked(data: bytes, limit: int) -> bytes:
    out = bytearray()
    for _ in inflate(data, limit, out):
        pass
    return bytes(out)


def test_a_bomb_is_not_inflated_past_the_limit() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            unpacked(bomb, 100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_the_limit_holds_for_all_members_together() -> None:
    members = gzip.compress(b"0" * 600) + gzip.compress(b"1" * 400)
    assert unpacked(members, 1_000) == b"0" * 600 + b"1" * 400
    with pytest.raises(Refused) as refused:
        unpacked(members + gzip.compress(b"2"), 1_000)
    assert refused.value.answer.status == 413


def test_a_body_stays_packed_until_it_is_complete(site: Site) -> None:
    """Else a client could fill the memory with little effort, and keep it full for as long as a body may take."""
    packed = gzip.compress(b"0" * 20_000_000)
    with site.client() as client:
        tracemalloc.start()
        try:
            client.send(post("/api/v1/push", packed, GZIP)[:-1])
            until(lambda: site.body_read() == len(packed) - 1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2_000_000
        client.send(packed[-1:])
        assert len(client.reply().body) == 20_000_000


def test_several_behind_each_other(site: Site) -> None:
    with site.client() as client:
        client.send(b"".join(post(ROUTES[number % 2], gzip.compress(b"%d" % number), GZIP) for number in range(10)))
        assert [reply.status for reply in client.replies(10)] == [201, 200] * 5


def test_after_a_damaged_one_nothing_is_answered(site: Site) -> None:
    with site.client() as client:
        client.send(post("/api/v1/push", PACKED[:-1], GZIP) + post("/api/v1/push", b"1") * 100)
        assert client.reply().status == 400
        assert client.is_closed()
    assert site.handlers.handled == 0


def test_unpacking_leaves_room_for_others(site: Site) -> None:
    """Steps that take long are taken one at a time, and one body after the other."""
    seen: list[str] = []

    def work(name: str) -> Iterator[None]:
        for _ in range(3):
            seen.append(name)
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:
                pass
            yield

    async def others() -> None:
        site.service.take_turns(work("a"))
        site.service.take_turns(work("b"))
        while seen.count("b") < 3:
            await asyncio.sleep(0)
            seen.append("other")

    asyncio.run_coroutine_threadsafe(others(), site.loop).result(DEADLINE)
    assert [name for name in seen if name != "other"] == ["a", "a", "a", "b", "b", "b"]
    assert not any(first == second != "other" for first, second in pairwise(seen))


@pytest.mark.parametrize("chunks", [(), (gzip.compress(b""),)])
def test_a_client_that_leaves_before_its_turn_takes_nothing(site: Site, chunks: tuple[bytes, ...]) -> None:
    others: list[bool] = [True]

    def work() -> Iterator[None]:
        while others:
            time.sleep(0.001)  # lets this thread have its turn, too
            yield

    site.call(lambda: site.service.take_turns(work()))
    with site.client() as client:
        client.send(chunked("/api/v1/pop/queue/q", *chunks, headers=(GZIP,)).replace(b"POST", b"GET"))
        until(lambda: len(site.service._turns) == 2)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: site.stats()["connections"] == 0)
    others.clear()
    until(lambda: not site.service._turns)
    assert (site.handlers.handled, site.stats()["parked"]) == (0, 0)


def test_a_bomb_is_unpacked_in_small_steps() -> None:
    out = bytearray()
    sizes = [len(out) for _ in inflate(gzip.compress(b"0" * 20_000_000), 32_000_000, out)]
    assert len(out) == 20_000_000
    assert max(after - before for before, after in pairwise([0, *sizes])) < 2_000_000


PACKED = gzip.compress(BODY)
DAMAGED = {
    "one byte short": (PACKED[:-1], "ends too early"),
    "only a part of its head": (PACKED[:5], "ends too early"),
    "a second one cut short": (PACKED + PACKED[:20], "ends too early"),
    "something else": (b"not gzip at all", "damaged"),
    "something behind it": (PACKED + b"tail", "damaged"),
    "deflate": (zlib.compress(BODY), "damaged"),
    "a wrong checksum": (PACKED[:-6] + b"123456", "damaged"),
    "too many in a row": (gzip.compress(b"") * 65, "more than 64 members"),
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_body_that_is_not_gzip_is_400(site: Site, path: str, name: str) -> None:
    packed, why = DAMAGED[name]
    with site.client() as client:
        client.send(post(path, packed, GZIP))
        reply = client.reply()
        assert (reply.status, reply.error["code"], reply.closes) == (400, "bad_request", True)
        assert why in reply.error["error"]
    assert site.handlers.handled == 0


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x" * 500, "\xff"])
def test_another_encoding_is_415(site: Site, path: str, encoding: str) -> None:
    request = post(path, BODY, "Content-Encoding: @").replace(b"@", encoding.encode("latin-1"))
    with site.client() as client:
        client.send(request)
        reply = client.reply()
        assert (reply.status, reply.error["code"], reply.closes) == (415, "unknown_encoding", True)
        assert len(reply.error["error"]) < 200
