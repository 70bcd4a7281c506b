"""Requests that two programs could read differently, and bytes that are no requests: 400, and the connection ends."""

from __future__ import annotations

import pytest

from tests.http.protocol.site import Site, chunked, get, post

HEAD = b"POST /api/v1/push HTTP/1.1\r\nHost: queen\r\n"
HIDDEN = b"GET /echo/hidden HTTP/1.1\r\nHost: queen\r\n\r\n"

BAD = {
    "length and chunked": HEAD + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
    "chunked and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nX",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nXY",
    "the same length twice": HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nX",
    "a list of lengths": HEAD + b"Content-Length: 1, 1\r\n\r\nX",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\nX",
    "a length with a sign": HEAD + b"Content-Length: +1\r\n\r\nX",
    "a hexadecimal length": HEAD + b"Content-Length: 0x1\r\n\r\nX",
    "an empty length": HEAD + b"Content-Length:\r\n\r\n",
    "a huge length": HEAD + b"Content-Length: 184467440737095516160\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, chunked": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n",
    "almost chunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked with a control character": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF after the first line": b"GET / HTTP/1.1\nHost: queen\r\n\r\n",
    "bare LF after a header": b"GET / HTTP/1.1\r\nHost: queen\nX: y\r\n\r\n",
    "bare LF at the end": b"GET / HTTP/1.1\r\nHost: queen\r\n\n",
    "bare CR in a value": b"GET / HTTP/1.1\r\nHost: queen\r\nX: a\rY: b\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: queen\r\nX: a\r\n b\r\n\r\n",
    "a folded transfer-encoding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "space before the colon": HEAD + b"Content-Length : 1\r\n\r\nX",
    "space in a name": HEAD + b"Content Length: 1\r\n\r\nX",
    "space before the first header": b"GET / HTTP/1.1\r\n Host: queen\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: queen\r\nnonsense\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\nHost: queen\r\n: x\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: queen\r\nX: a\x00b\r\n\r\n",
    "NUL in the URL": b"GET /\x00 HTTP/1.1\r\nHost: queen\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two tokens": get("/", "Authorization: Bearer a", "Authorization: Bearer b"),
    "a chunk size that is no number": chunked("/api/v1/push", end=b"zz\r\n"),
    "a chunk size with 0x": chunked("/api/v1/push", end=b"0x1\r\nX\r\n0\r\n\r\n"),
    "a negative chunk": chunked("/api/v1/push", end=b"-1\r\nX\r\n0\r\n\r\n"),
    "a huge chunk": chunked("/api/v1/push", end=b"fffffffffffffffff\r\n"),
    "a chunk that is too long": chunked("/api/v1/push", end=b"1\r\nXY\r\n0\r\n\r\n"),
    "a chunk without its end": chunked("/api/v1/push", end=b"1\r\nX0\r\n\r\n"),
    "bare LF after a chunk size": chunked("/api/v1/push", end=b"1\nX\r\n0\r\n\r\n"),
    "bare LF after a chunk": chunked("/api/v1/push", end=b"1\r\nX\n0\r\n\r\n"),
    "bare LF after a chunk extension": chunked("/api/v1/push", end=b"1;a\nX\r\n0\r\n\r\n"),
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: queen\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: queen\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "garbage": b"\x00\xff\xfe garbage",
    "an unknown method": b"STEAL / HTTP/1.1\r\nHost: queen\r\n\r\n",
    "a space in the URL": b"GET /a b HTTP/1.1\r\nHost: queen\r\n\r\n",
    "a URL that is none": b"GET nonsense HTTP/1.1\r\nHost: queen\r\n\r\n",
    "an offer in HTTP/0.9": b"POST /\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "a tunnel": b"CONNECT queen:80 HTTP/1.1\r\nHost: queen\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(site: Site, name: str) -> None:
    with site.client() as client:
        client.send(BAD[name] + HIDDEN)
        reply = client.reply()
        assert reply.status == 400, reply
        assert (reply.error["code"], reply.error["field"], reply.closes) == ("bad_request", None, True)
        assert client.is_closed()
    assert site.handlers.handled == 0
    assert site.stats()["requests"] == 0


@pytest.mark.parametrize("name", ["two lengths", "bare LF after a header", "a chunk that is too long", "garbage"])
def test_the_good_request_before_is_answered_first(site: Site, name: str) -> None:
    with site.client() as client:
        client.send(get("/api/v1/pop/queue/q") + BAD[name])
        site.parked(1)
        site.answer_poll(0, b"{}")
        assert [reply.status for reply in client.replies(2)] == [200, 400]
        assert client.is_closed()


GOOD = {
    "empty lines before": b"\r\n\r\n" + post("/api/v1/push", b"X"),
    "small letters": HEAD + b"content-length: 1\r\n\r\nX",
    "spaces around a value": HEAD + b"Content-Length:  1 \r\n\r\nX",
    "capital letters": HEAD + b"Transfer-Encoding: Chunked\r\n\r\n1\r\nX\r\n0\r\n\r\n",
    "a chunk extension": chunked("/api/v1/push", end=b"1;name=value\r\nX\r\n0\r\n\r\n"),
    "a trailer": chunked("/api/v1/push", end=b"0001\r\nX\r\n000\r\nTrailer: yes\r\n\r\n"),
    "an empty host": b"POST /api/v1/push HTTP/1.1\r\nhOST:\r\nContent-Length: 1\r\n\r\nX",
}


def test_a_bug_before_it_is_not_its_cause(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with site.client() as client:
        client.send(get("/bug") + BAD["two hosts"])
        assert [reply.status for reply in client.replies(2)] == [500, 400]
    caplog.clear()


@pytest.mark.parametrize("name", GOOD)
def test_unusual_but_good_requests(site: Site, name: str) -> None:
    with site.client() as client:
        client.send(GOOD[name] + post("/api/v1/push", b"Y"))
        assert [(reply.status, reply.body) for reply in client.replies(2)] == [(201, b"X"), (201, b"Y")]


def test_trailers_are_not_headers(site: Site) -> None:
    reply = site.exchange(chunked("/echo/x", b"X", end=b"0\r\nAuthorization: Bearer stolen\r\n\r\n"))
    assert reply.status == 200
    assert b"authorization" not in reply.body


@pytest.mark.parametrize("headers", ["", "Connection: keep-alive\r\n", "Connection: close\r\n"])
@pytest.mark.parametrize("path", ["/api/v1/pop?at-once", "/echo/x"])
def test_http_1_0_is_answered_and_closed(site: Site, path: str, headers: str) -> None:
    with site.client() as client:
        client.send(f"GET {path} HTTP/1.0\r\n{headers}\r\n".encode() + HIDDEN)
        reply = client.reply()
        assert (reply.status, reply.closes) == (200, True)
        assert client.is_closed()


@pytest.mark.parametrize("path", ["/api/v1/pop?at-once", "/echo/x"])
def test_nothing_is_taken_after_the_last_request(site: Site, path: str) -> None:
    with site.client() as client:
        client.send(get(path, "Connection: close") + HIDDEN + BAD["garbage"])
        reply = client.reply()
        assert (reply.status, reply.closes) == (200, True)
        assert client.is_closed()
        assert site.stats()["requests"] == 1
