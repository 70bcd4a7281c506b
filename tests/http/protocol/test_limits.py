"""What a client may send, how much of it, and how long it may take. Also what it costs when it does not read."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import tracemalloc

import pytest

from queenmq.http.answer import Answer, Work
from queenmq.http.caller import Caller
from queenmq.http.limits import Limits
from tests.http.protocol.site import DEADLINE, Client, Site, TinyHandlers, chunked, get, held_up, post, until

SMALL = Limits(max_body_bytes=1_000, max_header_bytes=2_000)
ROUTES = ["/api/v1/push", "/echo/x"]


@pytest.mark.parametrize("path", ROUTES)
class TestBody:
    def test_at_the_limit(self, path: str) -> None:
        with Site(SMALL) as site, site.client() as client:
            client.send(post(path, b"x" * 1_000) + chunked(path, b"x" * 999, b"x"))
            assert [reply.status // 100 for reply in client.replies(2)] == [2, 2]

    def test_announced_too_large_is_refused_before_it_is_sent(self, path: str) -> None:
        with Site(SMALL) as site, site.client() as client:
            client.send(f"POST {path} HTTP/1.1\r\nHost: q\r\nContent-Length: 1001\r\n\r\n".encode())
            reply = client.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (413, "body_too_large", True)
            assert "1000 bytes" in reply.error["error"]
            assert client.is_closed()
            assert site.stats()["requests"] == 0

    def test_chunked_is_refused_when_it_passes_the_limit(self, path: str) -> None:
        with Site(SMALL) as site, site.client() as client:
            client.send(chunked(path, b"x" * 600, end=b""))
            client.send(b"191\r\n" + b"x" * 401)
            reply = client.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (413, "body_too_large", True)
            assert client.is_closed()

    def test_a_client_that_goes_on_sending_still_gets_the_answer(self, path: str) -> None:
        """A close with data unread would reset the connection, and the answer with it."""
        with Site(SMALL) as site, site.client() as client:
            client.send(post(path, b"x" * 2_000_000))
            reply = client.reply()
            assert (reply.status, reply.closes) == (413, True)

    def test_it_is_not_told_to_go_on(self, path: str) -> None:
        with Site(SMALL) as site, site.client() as client:
            client.send(post(path, b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 5000"))
            assert client.reply().status == 413


class TestBodiesTogether:
    """Large bodies on their way share a room; whoever finds none comes again later."""

    LIMITS = Limits(max_body_bytes=300_000, max_buffered_bytes=500_000)

    def test_more_than_there_is_room_for_is_refused_and_afterwards_there_is_room_again(self) -> None:
        whole = post("/echo/x", b"x" * 300_000)
        with Site(self.LIMITS) as site, site.client() as first, site.client() as second, site.client() as third:
            first.send(whole[:-1])
            second.send(whole[:-50_000])
            reply = second.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (503, "too_many_bodies", True)
            assert reply.headers["retry-after"] == "1"
            first.send(whole[-1:])
            assert first.reply().status == 200
            third.send(whole)
            assert third.reply().status == 200

    def test_a_client_that_leaves_in_the_middle_makes_room(self) -> None:
        whole = post("/echo/x", b"x" * 300_000)
        with Site(self.LIMITS) as site:
            for _ in range(5):
                with site.client() as client:
                    client.send(whole[:-1])
            until(lambda: site.stats()["connections"] == 0)
            with site.client() as client:
                client.send(whole)
                assert client.reply().status == 200

    def test_small_bodies_need_no_room(self) -> None:
        with Site(self.LIMITS) as site, contextlib.ExitStack() as open_ones:
            clients = [open_ones.enter_context(site.client()) for _ in range(20)]
            small = post("/echo/x", b"x" * 60_000)
            for client in clients:
                client.send(small[:-1])
            for client in clients:
                client.send(small[-1:])
                assert client.reply().status == 200


def with_headers(size: int) -> bytes:
    """A request whose URL and headers count as so many bytes."""
    start = get("/echo/x", "X: ")
    counted = len("/echo/x") + len("Host") + len("queen") + 4 + len("X") + 4
    return start.replace(b"X: ", b"X: " + b"y" * (size - counted))


class TestHeaders:
    @pytest.mark.parametrize("size", [2_001, 4_000, 200_000])
    def test_too_large(self, size: int) -> None:
        with Site(SMALL) as site, site.client() as client:
            client.send(with_headers(size))
            reply = client.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (431, "headers_too_large", True)
            assert site.stats()["requests"] == 0

    def test_at_the_limit(self) -> None:
        with Site(SMALL) as site:
            assert site.exchange(with_headers(2_000)).status == 200

    def test_an_endless_url(self) -> None:
        with Site(SMALL) as site, site.client() as client:
            client.send(b"GET /" + b"a" * 10_000)
            assert client.reply().status == 431

    def test_too_many(self) -> None:
        with Site() as site:
            assert site.exchange(get("/echo/x", *["a: b"] * 255)).status == 200
            assert site.exchange(get("/echo/x", *["a: b"] * 256)).status == 431

    @pytest.mark.parametrize("endless", [b"0\r\nX: ", b"1;ext="])
    def test_endless_trailers_and_chunk_extensions(self, endless: bytes) -> None:
        with Site(SMALL) as site, site.client() as client:
            client.send(chunked("/api/v1/push", b"x", end=endless) + b"y" * 10_000)
            reply = client.reply()
            assert (reply.status, reply.closes) == (431, True)

    def test_large_bodies_do_not_count(self) -> None:
        with Site(Limits(max_header_bytes=1_024)) as site, site.client() as client:
            body = b"x" * 300_000
            for _ in range(2):
                client.send(post("/api/v1/push", body) + chunked("/api/v1/push", body))
                assert [reply.body == body for reply in client.replies(2)] == [True, True]


class TestTime:
    @pytest.mark.parametrize(
        ("sent", "limits", "what"),
        [
            (b"P", Limits(header_timeout=0.1), "headers"),
            (b"POST /api/v1/push HTTP/1.1\r\nHost: q\r\nX: ", Limits(header_timeout=0.1), "headers"),
            (post("/api/v1/push", b"12345")[:-1], Limits(body_timeout=0.1), "body"),
            (chunked("/echo/x", b"12345", end=b""), Limits(body_timeout=0.1), "body"),
        ],
    )
    def test_a_request_that_does_not_come_to_its_end(self, sent: bytes, limits: Limits, what: str) -> None:
        with Site(limits) as site, site.client() as client:
            client.send(sent)
            reply = client.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (408, "timeout", True)
            assert f"request's {what} did not arrive within 0.1 seconds" in reply.error["error"]
            assert client.is_closed()
            assert site.stats()["timeouts"] == 1

    def test_dripping_does_not_help(self) -> None:
        with Site(Limits(header_timeout=0.2)) as site, site.client() as client:
            client.send(b"GET / HTTP/1.1\r\nHost: ")
            deadline = time.monotonic() + DEADLINE
            client.socket.settimeout(0.01)
            while time.monotonic() < deadline:
                client.send(b"a")
                try:
                    reply = client.reply()
                    break
                except TimeoutError:
                    continue
            assert reply.status == 408

    def test_an_idle_connection_is_closed_without_a_word(self) -> None:
        with Site(Limits(idle_timeout=0.1)) as site, site.client() as fresh, site.client() as used:
            used.send(post("/api/v1/push", b"1"))
            assert used.reply().status == 201
            used.send(b"\r\n")
            assert fresh.is_closed()
            assert used.is_closed()
            assert site.stats()["answers"]["4xx"] == 0

    def test_a_waiting_poll_is_neither_slow_nor_idle(self) -> None:
        limits = Limits(idle_timeout=0.05, header_timeout=0.05, body_timeout=0.05)
        with Site(limits) as site, site.client() as poll, site.client() as slow:
            poll.send(get("/api/v1/pop/queue/q"))
            slow.send(get("/slow"))
            site.parked(1)
            until(lambda: site.slow)
            for _ in range(4):  # each of them lives as long as an idle connection does
                with site.client() as idle:
                    assert idle.is_closed()
            site.answer_poll(0, b"{}")
            site.call(site.slow[0].set)
            assert (poll.reply().status, slow.reply().status) == (200, 200)

    def test_the_next_request_has_its_own_time(self) -> None:
        with Site(Limits(header_timeout=0.1)) as site, site.client() as client:
            client.send(get("/api/v1/pop/queue/q") + b"GET /")
            site.parked(1)
            with site.client() as other:
                other.send(b"G")
                assert other.reply().status == 408
            site.answer_poll(0, b"{}")
            assert client.reply().status == 200
            assert client.reply().status == 408


def test_too_many_connections() -> None:
    with Site(Limits(max_connections=2)) as site, site.client() as first, site.client() as second:
        until(lambda: site.stats()["connections"] == 2)
        with site.client() as third:
            third.send(get("/echo/x"))
            reply = third.reply()
            assert (reply.status, reply.error["code"], reply.closes) == (503, "too_many_connections", True)
            assert third.is_closed()
        first.socket.close()
        until(lambda: site.stats()["connections"] == 1)
        second.send(get("/echo/x"))
        assert second.reply().status == 200
        assert site.exchange(get("/echo/x")).status == 200
        assert site.stats()["refused"] == 1


def _fill(client: Client, data: bytes) -> None:
    """Send it again and again until the server does not read any more."""
    client.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        for _ in range(10_000):
            client.send(data)
        pytest.fail("the server reads without end")
    client.socket.settimeout(DEADLINE)


class TestBackpressure:
    def test_a_client_that_does_not_read_is_not_read(self, site: Site) -> None:
        with site.client(receive_buffer=4_096) as client:
            _fill(client, get("/api/v1/pop/queue/q?big=100000") * 100)
            handled = site.handlers.handled
            assert handled < 1_000
            for _ in range(handled):
                assert len(client.reply().body) == 100_000
            until(lambda: site.handlers.handled > handled)

    def test_behind_a_waiting_poll_little_is_read(self, site: Site) -> None:
        with site.client() as client:
            client.send(get("/api/v1/pop/queue/q"))
            site.parked(1)
            _fill(client, post("/api/v1/push", b"x" * 1_000) * 100)
            (connection,) = site.service.connections
            assert len(connection._held) < 512 * 1024  # type: ignore[attr-defined]
            assert site.handlers.handled == 1
            site.answer_poll(0, b"{}")
            assert client.reply().status == 100, "it may have left: it is asked"
            assert [reply.status for reply in client.replies(500)] == [200] + [201] * 499

    def test_few_requests_are_parsed_ahead(self, site: Site) -> None:
        with site.client() as client:
            client.send(get("/api/v1/pop/queue/q") + post("/api/v1/push") * 1_000)
            site.parked(1)
            (connection,) = site.service.connections
            assert len(connection._ahead) < 80  # type: ignore[attr-defined]
            site.answer_poll(0, b"{}")
            assert [reply.status for reply in client.replies(1_001)] == [200] + [201] * 1_000

    def test_starlette_waits_for_a_client_that_does_not_read(self, site: Site) -> None:
        with site.client(receive_buffer=4_096) as client:
            client.send(get("/stream", "Connection: close"))
            size = len(client.rest())
            assert size > 4_000_000

    def test_a_client_that_never_reads_is_given_up(self) -> None:
        with Site(Limits(body_timeout=0.2)) as site, site.client(receive_buffer=4_096) as client:
            client.send(get("/api/v1/pop/queue/q?big=20000000"))
            until(lambda: site.stats()["timeouts"] == 1)
            until(lambda: site.stats()["connections"] == 0)

    @pytest.mark.parametrize("headers", [(), ("Connection: close",)])
    def test_also_with_little_to_read(self, headers: tuple[str, ...]) -> None:
        with Site(Limits(idle_timeout=0.2), send_buffer=4_096) as site, site.client(receive_buffer=4_096) as client:
            client.send(get("/api/v1/pop/queue/q?big=60000", *headers))
            until(lambda: site.stats()["answers"]["2xx"] == 1)
            until(lambda: site.stats()["connections"] == 0)

    def test_one_that_reads_slowly_is_not(self) -> None:
        with Site(Limits(body_timeout=0.5)) as site, site.client(receive_buffer=65_536) as client:
            client.send(get("/api/v1/pop/queue/q?big=8000000"))
            began, size = time.monotonic(), 0
            while size < 8_000_000:
                time.sleep(0.01)
                piece = client.socket.recv(65_536)
                assert piece
                size += len(piece)
            assert time.monotonic() - began > 2 * site.limits.body_timeout
            assert site.stats()["timeouts"] == 0


class Watching(TinyHandlers):
    """When a push of 1 comes: how many requests, or pieces of one, were there before it?"""

    site: Site
    progress = 0

    def push(self, body: bytes, caller: Caller) -> Answer | Work:
        if body == b"1":
            service = self.site.service
            pieces = [getattr(connection, "_request").read for connection in service.connections]  # noqa: B009
            self.progress = sum(service.answers) + max(pieces)
        return super().push(body, caller)


class TestOthers:
    """What one client sends, however much, is no reason for another to wait."""

    @pytest.mark.parametrize(
        ("piece", "start"),
        [
            (get("/", method="OPTIONS"), b""),
            (post("/api/v1/push", b"raise"), b""),
            (b"1\r\nx\r\n", chunked("/echo/x", end=b"")),
        ],
        ids=["OPTIONS", "errors", "chunks"],
    )
    def test_a_flood_leaves_room(self, piece: bytes, start: bytes) -> None:
        handlers = Watching()
        with Site(handlers=handlers) as site, site.client() as flooding, site.client() as other:
            until(lambda: site.stats()["connections"] == 2)
            handlers.site = site
            flooding.socket.setblocking(False)
            with held_up(site):
                assert flooding.socket.send(start + piece * (1_000_000 // len(piece))) > 100_000
                other.send(post("/api/v1/push", b"1"))
            assert other.reply().status == 201
            assert 0 < handlers.progress * len(piece) < 50_000

    def test_a_large_body_is_read_in_turns(self, site: Site) -> None:
        body = b"x" * 300_000
        with site.client() as client:
            client.send(post("/api/v1/push", body)[:-200_000])
            until(lambda: site.body_read() == 100_000)

            def give() -> bool:
                (connection,) = site.service.connections
                connection.data_received(body[:100_000])  # type: ignore[attr-defined]
                return connection._read_paused  # type: ignore[attr-defined, no-any-return]

            assert site.call(give)
            client.send(body[:100_000])
            assert client.reply().body == body

    def test_small_pieces_are_not_kept_one_by_one(self, site: Site) -> None:
        size = 200_000
        with site.client() as client:
            tracemalloc.start()
            try:
                client.send(chunked("/api/v1/push", end=b"") + b"2\r\nxy\r\n" * size)
                until(lambda: site.body_read() == 2 * size)
                kept, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert kept < 6 * size
            client.send(b"0\r\n\r\n")
            assert client.reply().body == b"xy" * size


def test_what_the_kernel_is_told(site: Site) -> None:
    with site.client() as client:
        client.send(get("/echo/x"))
        assert client.reply().status == 200

        def options() -> dict[str, int]:
            (connection,) = site.service.connections
            sock = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            names = ["TCP_NODELAY", "TCP_KEEPINTVL", "TCP_KEEPCNT"]
            names += ["TCP_KEEPIDLE", "TCP_USER_TIMEOUT"] if sys.platform == "linux" else ["TCP_KEEPALIVE"]
            found = {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names}
            return {"SO_KEEPALIVE": sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), **found}

        found = site.call(options)
    assert found["SO_KEEPALIVE"]
    assert found["TCP_NODELAY"]
    assert (found["TCP_KEEPINTVL"], found["TCP_KEEPCNT"]) == (10, 3)
    assert found.get("TCP_KEEPIDLE", found.get("TCP_KEEPALIVE")) == 30
    assert found.get("TCP_USER_TIMEOUT", 30_000) == 30_000
