"""Request bodies that come compressed."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib

import pytest

from queenmq.http.inflate import Inflater
from queenmq.http.limits import Limits
from queenmq.http.refusals import Refused
from tests.http.protocol.site import Site, chunked, post

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


def test_a_bomb_is_not_inflated_past_the_limit() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            Inflater(100_000).feed(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_the_limit_holds_for_all_members_together() -> None:
    inflater = Inflater(1_000)
    assert inflater.feed(gzip.compress(b"0" * 600) + gzip.compress(b"1" * 400)) == b"0" * 600 + b"1" * 400
    inflater.finish()
    with pytest.raises(Refused) as refused:
        inflater.feed(gzip.compress(b"2"))
    assert refused.value.answer.status == 413


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
