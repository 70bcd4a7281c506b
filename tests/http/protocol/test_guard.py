"""Who sends a request is known before its body is read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queenmq.http.answer import Answer
from queenmq.http.auth import Forbidden, Unauthorized
from queenmq.http.caller import Caller, NeedsSlowPath
from queenmq.http.guard import Guard
from queenmq.http.limits import Limits
from queenmq.http.routes.table import Row
from tests.http.protocol.site import DEADLINE, Client, Site, chunked, get, post, until

ROUTES = ["/api/v1/push", "/echo/x", "http://queen/api/v1/push"]
HUGE = 30_000_000
KNOWN, UNKNOWN = "Authorization: Bearer read-write", "Authorization: Bearer unknown"


async def _never(*_: Any) -> Answer:
    raise AssertionError("the site answers by itself")


TABLE = [
    Row("POST", "/api/v1/push", "RW", _never),
    Row("POST", "/echo/{rest:path}", "RW", _never),
    Row("PUT", "/echo/{rest:path}", "P", _never),
]


class Gate:
    """Tokens name a role; `unknown` is one that it takes time to know, until the test says who that is."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Caller]] = []

    def __call__(self, authorization: bytes | None) -> Caller:
        if authorization is None:
            raise Unauthorized("Authentication required")
        if authorization == b"Bearer unknown":
            raise NeedsSlowPath
        return Caller("alice", authorization.removeprefix(b"Bearer ").decode())

    async def slowly(self, authorization: bytes | None) -> Caller:
        future: asyncio.Future[Caller] = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        return await future


class GuardedSite(Site):
    def __init__(self, limits: Limits | None = None) -> None:
        self.gate = Gate()
        super().__init__(limits, guard=Guard(self.gate, self.gate.slowly, TABLE))

    def asked(self, count: int = 1) -> None:
        until(lambda: len(self.gate.asked) == count)

    def say(self, who: Caller | Exception, number: int = 0) -> None:
        future = self.gate.asked[number]
        self.call(lambda: future.set_exception(who) if isinstance(who, Exception) else future.set_result(who))

    def held(self) -> int:
        """Bytes that the only connection keeps of what it was sent."""
        (connection,) = self.service.connections
        request: Any = connection._request  # type: ignore[attr-defined]
        return len(connection._held) + sum(map(len, request._parts or ()))  # type: ignore[attr-defined]


@pytest.fixture
def guarded() -> Iterator[GuardedSite]:
    with GuardedSite() as site:
        yield site


def announced(path: str, size: int, *headers: str, sent: bytes = b"[") -> bytes:
    """A request of which only the beginning is sent."""
    return post(path, b"", *headers).replace(b"Length: 0", b"Length: %d" % size) + sent


def endless(path: str, *headers: str) -> bytes:
    return chunked(path, b"[", headers=headers, end=b"")


@pytest.mark.parametrize(
    ("headers", "status"),
    [((), 401), (("Authorization: Bearer read-only",), 403), (("authorization: Bearer read-write",), 201)],
)
def test_who_may_push(guarded: GuardedSite, headers: tuple[str, ...], status: int) -> None:
    reply = guarded.exchange(post("/api/v1/push", b"1", *headers))
    assert reply.status == status
    assert guarded.handlers.callers == ([Caller("alice", "read-write")] if status == 201 else [])


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("begun", [lambda path, *headers: announced(path, HUGE, *headers), endless])
@pytest.mark.parametrize(
    ("headers", "status", "code"), [((), 401, "unauthorized"), (("Authorization: Bearer read-only",), 403, "forbidden")]
)
def test_a_stranger_is_refused_before_the_body_is_sent(
    guarded: GuardedSite, path: str, begun: Callable[..., bytes], headers: tuple[str, ...], status: int, code: str
) -> None:
    with guarded.client() as client:
        client.send(begun(path, *headers))
        reply = client.reply()
        assert (reply.status, reply.error["code"], reply.closes) == (status, code, True)
        assert client.is_closed()
    assert guarded.stats()["requests"] == 0


def test_a_stranger_is_not_told_to_go_on(guarded: GuardedSite) -> None:
    with guarded.client() as client:
        client.send(announced("/api/v1/push", 1_000, "Expect: 100-continue", sent=b""))
        assert client.reply().status == 401
        assert client.is_closed()


def test_after_the_answers_before_it(guarded: GuardedSite) -> None:
    with guarded.client() as client:
        client.send(post("/echo/x", b"1", KNOWN) + announced("/api/v1/push", HUGE))
        assert [reply.status for reply in client.replies(2)] == [200, 401]
        assert client.is_closed()


@pytest.mark.parametrize("path", ROUTES)
def test_what_a_stranger_sends_all_the_same_is_not_kept(guarded: GuardedSite, path: str) -> None:
    piece = b"x" * 1_000_000
    tracemalloc.start()
    try:
        with guarded.client() as client:
            with contextlib.suppress(ConnectionError):
                client.send(announced(path, HUGE))
                for _ in range(29):
                    client.send(piece)
            assert client.reply().status == 401
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/echo/x", "/nowhere"])
def test_what_needs_no_token_has_a_small_body_only(guarded: GuardedSite, method: str, path: str) -> None:
    with guarded.client() as client:
        client.send(post(path, b"x" * 65_536).replace(b"POST", method.encode()))
        assert client.reply(head=method == "HEAD").status in (200, 204, 404, 405)
    for begun in (announced(path, 65_537), endless(path) + b"10000\r\n" + b"x" * 65_536):
        with guarded.client() as client:
            client.send(begun.replace(b"POST", method.encode()))
            reply = client.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (413, "body_too_large", True)


def test_small_when_it_is_unpacked(guarded: GuardedSite) -> None:
    with guarded.client() as client:
        client.send(post("/nowhere", gzip.compress(b"0" * 65_537), "Content-Encoding: gzip"))
        assert client.reply().status == 413


def test_a_pop_that_has_to_wait_for_it_goes_through_starlette(guarded: GuardedSite) -> None:
    reply = guarded.exchange(get("/api/v1/pop", UNKNOWN))
    assert json.loads(reply.body)["path"] == "/api/v1/pop"
    assert guarded.handlers.handled == 0


class TestWhileItIsFoundOut:
    """The body of a request whose sender is not known yet."""

    def _flood(self, client: Client, piece: bytes) -> None:
        """Send until the server reads no more."""
        client.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            for _ in range(10_000):
                client.send(piece)
            pytest.fail("the server reads without end")

    @pytest.mark.parametrize("path", ROUTES)
    @pytest.mark.parametrize("begun", [lambda path, *headers: announced(path, HUGE, *headers), endless])
    def test_little_of_it_is_read(self, guarded: GuardedSite, path: str, begun: Callable[..., bytes]) -> None:
        with guarded.client() as client:
            client.send(begun(path, UNKNOWN))
            guarded.asked()
            self._flood(client, b"x" * 100_000)
            # What the transport had read in one go when it was told to stop.
            assert guarded.call(guarded.held) <= 65_536 + 256 * 1024
            guarded.say(Unauthorized("Invalid token"))
            assert client.reply().status == 401

    @pytest.mark.parametrize("path", ROUTES)
    @pytest.mark.parametrize("size", [1, 5_000, 3_000_000])
    @pytest.mark.parametrize("headers", [(), ("Content-Encoding: gzip",)])
    def test_then_it_is_answered_as_usual(
        self, guarded: GuardedSite, path: str, size: int, headers: tuple[str, ...]
    ) -> None:
        body = b"7" * size
        packed = gzip.compress(body, 0) if headers else body
        with guarded.client() as client:
            client.send(announced(path, len(packed), UNKNOWN, *headers, sent=packed[:1]))
            guarded.asked()
            self.send_while(client, guarded, packed[1:])
            reply = client.reply()
            assert reply.status in (200, 201)
            assert (json.loads(reply.body)["body"].encode() if reply.body[:1] == b"{" else reply.body) == body
            client.send(post("/api/v1/push", b"2", KNOWN))
            assert client.reply().body == b"2"

    def send_while(self, client: Client, guarded: GuardedSite, rest: bytes) -> None:
        """The rest comes before and after it is found out."""
        client.send(rest[:50_000])
        guarded.say(Caller("bob", "admin"))
        client.send(rest[50_000:])

    def test_the_client_is_told_to_go_on(self, guarded: GuardedSite) -> None:
        with guarded.client() as client:
            client.send(announced("/api/v1/push", 3, UNKNOWN, "Expect: 100-continue", sent=b""))
            guarded.asked()
            guarded.say(Caller("bob", "admin"))
            assert client.reply().status == 100
            client.send(b"123")
            assert client.reply().body == b"123"
        assert guarded.handlers.callers == [Caller("bob", "admin")]

    def test_several_in_a_row_are_found_out_one_by_one(self, guarded: GuardedSite) -> None:
        with guarded.client() as client:
            client.send(b"".join(post("/api/v1/push", b"%d" % number, UNKNOWN) for number in range(3)))
            for number in range(3):
                guarded.asked(number + 1)
                guarded.say(Caller(f"sender {number}", "admin"), number)
            assert [reply.body for reply in client.replies(3)] == [b"0", b"1", b"2"]
        assert [caller.subject for caller in guarded.handlers.callers] == ["sender 0", "sender 1", "sender 2"]

    def test_behind_another_request(self, guarded: GuardedSite) -> None:
        with guarded.client() as client:
            client.send(get("/api/v1/pop/queue/q", KNOWN) + announced("/api/v1/push", 100_000, UNKNOWN))
            guarded.parked(1)
            client.send(b"x" * 50_000)
            assert guarded.gate.asked == []
            guarded.answer_poll(0, b"{}")
            guarded.asked()
            assert guarded.body_read() < 4_096
            client.send(b"x" * 49_999)
            guarded.say(Caller("bob", "admin"))
            assert [reply.status for reply in client.replies(2)] == [200, 201]

    def test_a_refusal_drops_what_came_behind(self, guarded: GuardedSite) -> None:
        with guarded.client() as client:
            client.send(post("/api/v1/push", b"1", UNKNOWN) + post("/api/v1/push", b"2", KNOWN))
            guarded.asked()
            guarded.say(Forbidden("Insufficient permissions"))
            reply = client.reply()
            assert (reply.status, reply.closes) == (403, True)
            assert client.is_closed()
        assert guarded.handlers.handled == 0

    def test_a_role_that_is_too_low(self, guarded: GuardedSite) -> None:
        with guarded.client() as client:
            client.send(announced("/echo/x", HUGE, UNKNOWN))
            guarded.asked()
            guarded.say(Caller("bob", "read-only"))
            assert client.reply().status == 403

    def test_a_packed_body_is_not_unpacked(self, guarded: GuardedSite) -> None:
        bomb = gzip.compress(b"0" * 2_000_000)
        with guarded.client() as client:
            client.send(post("/api/v1/push", bomb, UNKNOWN, "Content-Encoding: gzip"))
            guarded.asked()
            assert guarded.call(guarded.held) == len(bomb)
            guarded.say(Caller("bob", "admin"))
            assert client.reply().body == b"0" * 2_000_000

    def test_a_damaged_body_is_400(self, guarded: GuardedSite) -> None:
        with guarded.client() as client:
            client.send(post("/api/v1/push", gzip.compress(b"1")[:-1], UNKNOWN, "Content-Encoding: gzip"))
            guarded.asked()
            guarded.say(Caller("bob", "admin"))
            reply = client.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (400, "bad_request", True)

    @pytest.mark.parametrize("size", [1, 1_000])
    def test_the_client_may_leave(self, guarded: GuardedSite, size: int) -> None:
        with guarded.client() as client:
            client.send(announced("/api/v1/push", size, UNKNOWN))
            guarded.asked()
        if size == 1:  # it is complete, so the client may have closed its sending half only
            guarded.say(Caller("bob", "admin"))
        until(lambda: guarded.stats()["connections"] == 0)
        assert guarded.gate.asked[0].done()
        assert guarded.handlers.handled == (size == 1)

    def test_the_body_has_its_time_afterwards(self) -> None:
        limits = Limits(body_timeout=0.1, header_timeout=0.1, idle_timeout=0.1)
        with GuardedSite(limits) as guarded, guarded.client() as client:
            client.send(announced("/api/v1/push", 100, UNKNOWN))
            guarded.asked()
            with guarded.client() as idle:
                assert idle.is_closed()
            guarded.say(Caller("bob", "admin"))
            reply = client.reply()
            assert (reply.status, reply.error["code"]) == (408, "timeout")


@pytest.mark.parametrize("more", [b"", b"1"])
def test_a_stopping_server_does_not_wait_to_learn_who_sends_a_part(guarded: GuardedSite, more: bytes) -> None:
    with guarded.client() as client:
        client.send(announced("/api/v1/push", 10, UNKNOWN, sent=more))
        guarded.asked()
        draining = guarded.drain()
        reply = client.reply()
        assert (reply.status, reply.error["code"], reply.closes) == (503, "stopping", True)
        assert client.is_closed()
        draining.result(DEADLINE)
    assert guarded.gate.asked[0].cancelled()
