"""However a stream of requests is cut into pieces, the answers are the same; whatever is sent, the server stays up."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queenmq.http.answer import Answer, Work
from queenmq.http.caller import Caller
from queenmq.http.limits import Limits
from tests.http.protocol.site import Client, Site, TinyHandlers, chunked, get, post

PUSH = post("/api/v1/push", b'{"items":[{"queue":"q","payload":"' + b"x" * 6_000 + b'"}]}')
GOOD = [
    PUSH,
    post("/api/v1/push", b"", "Connection: Upgrade", "Upgrade: h2c"),
    post("/api/v1/ack", b'{"transactionId":"1"}', "Expect: 100-continue"),
    chunked("/api/v1/push", b"12", b"345", b"x" * 5_000, end=b"0\r\nTrailer: y\r\n\r\n"),
    get("/api/v1/pop/queue/q?at-once"),
    post("/api/v1/push", gzip.compress(b"packed" * 1_000), "Content-Encoding: gzip"),
    get("/echo/x?y"),
    get("/nothing"),
    get("/api/v1/pop/queue/q?big=70000"),
    chunked("/echo/x", b"12", headers=("Connection: upgrade", "Upgrade: h2c")),
    post("/api/v1/ack/batch", b"{}"),
]
STATUSES = [201, 201, 200, 201, 200, 201, 200, 204, 200, 200, 400]
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class NeverWaiting(TinyHandlers):
    """A damaged query must not turn a pop into one that waits."""

    def pop(self, path: str, query: bytes, caller: Caller) -> Answer | Work:
        return super().pop(path, query if query == b"big=70000" else b"at-once", caller)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(Limits(max_body_bytes=100_000, max_header_bytes=4_000), handlers=NeverWaiting()) as running:
        yield running


@FUZZ
@given(data=st.data())
def test_any_cut_gives_the_same_answers(site: Site, data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(GOOD) - 1), min_size=1, max_size=6))
    stream = b"".join(GOOD[index] for index in order)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=8, unique=True)))
    with site.client() as client:
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            client.send(stream[start:end])
            # Without this the pieces would arrive together.
            site.stats()
        statuses: list[int] = []
        while len(statuses) < len(order):
            reply = client.reply()
            if reply.status != 100:
                statuses.append(reply.status)
    assert statuses == [STATUSES[index] for index in order]


def survive(site: Site, sent: bytes) -> None:
    """Send it, say that this was all, and look at what comes back."""
    with site.client() as client:
        client.send(sent)
        client.socket.shutdown(1)
        for status in statuses_in(client):
            assert 100 <= status < 500
    with site.client() as client:
        client.send(post("/api/v1/push", b"1"))
        assert client.reply().status == 201


def statuses_in(client: Client) -> list[int]:
    said = client.rest()
    assert said[:9] in (b"", b"HTTP/1.1 ")
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Z]", said)]


@FUZZ
@given(sent=st.binary(max_size=200))
def test_garbage(site: Site, sent: bytes) -> None:
    survive(site, sent)


PIECES = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\x00", b"\xff", b"0", b"-1", b",", b"%", b"?", b"#"),
    *(
        b"\r\n\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: x\r\n",
        b"HTTP/1.1",
        b"HTTP/1.0",
    ),
    *(b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n", b"Content-Encoding: gzip\r\n", b"CONNECT "),
    *(b"Expect: 100-continue\r\n", b"x" * 5_000, b"5\r\nhello\r\n", b"0\r\n\r\n"),
]


@FUZZ
@given(data=st.data())
def test_damaged_requests(site: Site, data: st.DataObject) -> None:
    sent = b"".join(data.draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=4)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sent)))
        kind = data.draw(st.sampled_from(["insert", "delete", "replace", "cut"]))
        piece = data.draw(st.sampled_from(PIECES))
        length = data.draw(st.integers(1, 40))
        if kind == "insert":
            sent = sent[:at] + piece + sent[at:]
        elif kind == "delete":
            sent = sent[:at] + sent[at + length :]
        elif kind == "replace":
            sent = sent[:at] + piece + sent[at + len(piece) :]
        else:
            sent = sent[:at]
    survive(site, sent)


def test_the_requests_of_this_file_are_good(site: Site) -> None:
    for request, status in zip(GOOD, STATUSES, strict=True):
        with site.client() as client:
            client.send(request)
            reply = client.reply()
            reply = client.reply() if reply.status == 100 else reply
            assert reply.status == status
            if b"/echo/" in request:
                assert json.loads(reply.body)["path"] == "/echo/x"
