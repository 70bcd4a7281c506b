"""The life of a connection: several requests in a row, clients that leave, offers and expectations, and the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from queenmq.http import protocol
from queenmq.http.limits import Limits
from queenmq.http.protocol import HotProtocol
from queenmq.http.reading import BODY, HEAD, NOTHING
from tests.http.protocol.site import DEADLINE, Client, Reply, Site, chunked, get, post, until

POLL = get("/api/v1/pop/queue/q")


def final(client: Client) -> tuple[int, Reply]:
    """The answer, and how often it was said before that it is being worked on."""
    interim = 0
    while (reply := client.reply()).status == 100:
        assert (reply.headers, reply.body) == ({}, b"")
        interim += 1
    return interim, reply


class TestPipelining:
    def test_answers_come_in_the_order_of_requests(self, site: Site) -> None:
        with site.client() as client:
            client.send(
                POLL
                + post("/api/v1/push", b"1")
                + get("/echo/2")
                + post("/api/v1/ack", b"3")
                + get("/api/v1/pop?at-once")
                + get("/echo/5")
                + chunked("/api/v1/push", b"6")
            )
            site.parked(1)
            site.answer_poll(0, b"0")
            replies = client.replies(7)
        assert [reply.status for reply in replies] == [200, 201, 200, 200, 200, 200, 201]
        assert [replies[index].body for index in (0, 1, 3, 6)] == [b"0", b"1", b"3", b"6"]
        assert [json.loads(replies[index].body)["path"] for index in (2, 5)] == ["/echo/2", "/echo/5"]

    def test_nothing_begins_before_the_request_ahead_is_answered(self, site: Site) -> None:
        with site.client() as client:
            client.send(POLL)
            site.parked(1)
            client.send(POLL + post("/api/v1/push", b"1"))
            with site.client() as other:
                other.send(post("/api/v1/push", b"2"))
                assert other.reply().status == 201
            assert (len(site.handlers.polls), site.handlers.handled) == (1, 2)
            site.answer_poll(0, None)
            site.parked(1)
            site.answer_poll(1, None)
            assert [reply.status for reply in client.replies(3)] == [204, 204, 201]

    def test_a_body_in_pieces_behind_a_poll(self, site: Site) -> None:
        body = bytes(range(256)) * 2_000
        with site.client() as client:
            client.send(POLL + post("/api/v1/push", body)[:1_000])
            site.parked(1)
            sender = threading.Thread(target=client.send, args=(post("/api/v1/push", body)[1_000:] + get("/echo/x"),))
            sender.start()
            site.answer_poll(0, b"{}")
            replies = client.answers(3)
            sender.join(DEADLINE)
        assert [reply.status for reply in replies] == [200, 201, 200]
        assert replies[1].body == body


def close(client: Client) -> None:
    client.socket.close()


def reset(client: Client) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def close_in_two_steps(client: Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)
    assert client.reply().status == 100
    client.socket.close()


class TestLeaving:
    @pytest.mark.parametrize("leave", [close, reset, close_in_two_steps])
    @pytest.mark.parametrize("path", ["/api/v1/pop/queue/q", "/slow"])
    def test_a_waiting_request_learns_of_it(self, site: Site, leave: Callable[[Client], None], path: str) -> None:
        with site.client() as client:
            client.send(get(path))
            until(lambda: site.handlers.polls or site.slow)
            leave(client)
            until(lambda: site.stats()["connections"] == 0)
        if path == "/slow":
            until(lambda: site.gone == 1)
        else:
            assert site.handlers.polls[0].cancelled()
        stats = site.stats()
        assert (stats["parked"], sum(stats["answers"].values())) == (0, 0)

    def test_with_requests_behind_it(self, site: Site) -> None:
        with site.client() as client:
            client.send(POLL + POLL + post("/api/v1/push", b"1"))
            site.parked(1)
        until(lambda: site.stats()["connections"] == 0)
        assert site.handlers.handled == 1

    @pytest.mark.parametrize("path", ["/api/v1/pop/queue/q", "/slow"])
    def test_while_an_earlier_request_was_under_way(self, site: Site, path: str) -> None:
        with site.client() as client:
            client.send(POLL + get(path))
            site.parked(1)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.reply().status == 100
            site.answer_poll(0, None)
            until(lambda: site.slow or len(site.handlers.polls) == 2)
        until(lambda: site.stats()["connections"] == 0)
        until(lambda: site.gone or site.handlers.polls[-1].cancelled())

    def test_in_the_middle_of_a_request(self, site: Site) -> None:
        with site.client() as client:
            client.send(post("/api/v1/push", b"123")[:-1])
            until(lambda: site.stats()["connections"] == 1)
        until(lambda: site.stats()["connections"] == 0)
        assert (site.handlers.handled, site.stats()["answers"]["4xx"]) == (0, 0)

    def test_http_1_0_cannot_be_asked(self, site: Site) -> None:
        with site.client() as client:
            client.send(POLL.replace(b"HTTP/1.1", b"HTTP/1.0"))
            site.parked(1)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed()
        assert site.handlers.polls[0].cancelled()

    def test_but_keeps_what_is_no_poll(self, site: Site) -> None:
        with site.client() as client:
            client.send(get("/slow").replace(b"HTTP/1.1", b"HTTP/1.0"))
            until(lambda: site.slow)
            client.socket.shutdown(socket.SHUT_WR)
            until(lambda: site.call(lambda: all(each._eof for each in site.service.connections)))  # type: ignore[attr-defined]
            site.call(site.slow[0].set)
            assert client.reply().status == 200

    def test_nothing_of_it_waits_for_the_garbage_collector(self, site: Site) -> None:
        gc.collect()
        gc.disable()
        try:
            for request in (POLL, post("/api/v1/push", b"1"), get("/echo/x"), get("/slow"), b"garbage\r\n"):
                with site.client() as client:
                    client.send(request)
                    until(lambda: _protocols() == 1)
                    if request not in (POLL, get("/slow")):
                        client.reply()
                until(lambda: _protocols() == 0)
                site.handlers.polls.clear()
        finally:
            gc.enable()


def _protocols() -> int:
    return sum(type(each) is HotProtocol for each in gc.get_objects())


class TestHalfClose:
    """A client may say that it sends nothing more, and wait for the answer."""

    @pytest.mark.parametrize(
        "request_bytes",
        [
            post("/api/v1/push", b"1"),
            post("/api/v1/ack", b"1"),
            get("/echo/x"),
            b"GET /echo/x HTTP/1.0\r\n\r\n",
            b"GET /api/v1/pop?at-once HTTP/1.0\r\n\r\n",
        ],
    )
    def test_it_still_gets_its_answer(self, site: Site, request_bytes: bytes) -> None:
        with site.client() as client:
            client.send(request_bytes)
            client.socket.shutdown(socket.SHUT_WR)
            assert final(client)[1].status // 100 == 2
            assert client.is_closed()

    def test_also_from_a_poll(self, site: Site) -> None:
        with site.client() as client:
            client.send(POLL)
            site.parked(1)
            client.socket.shutdown(socket.SHUT_WR)
            for _ in range(3):
                assert client.reply().status == 100
            site.answer_poll(0, b"late")
            _, reply = final(client)
            assert (reply.status, reply.body) == (200, b"late")
            assert client.is_closed()

    def test_and_everything_it_had_sent(self, site: Site) -> None:
        with site.client() as client:
            client.send(post("/api/v1/ack", b"1") + POLL + get("/slow") + post("/api/v1/push", b"2"))
            client.socket.shutdown(socket.SHUT_WR)
            site.parked(1)
            site.answer_poll(0, None)
            until(lambda: site.slow)
            site.call(site.slow[0].set)
            assert [final(client)[1].status for _ in range(4)] == [200, 204, 200, 201]
            assert client.is_closed()

    def test_a_streamed_answer_is_not_interrupted(self, site: Site) -> None:
        with site.client(receive_buffer=4_096) as client:
            client.send(get("/stream"))
            client.socket.shutdown(socket.SHUT_WR)
            until(lambda: site.stats()["answers"]["2xx"] == 1)

            def probe() -> None:
                (connection,) = site.service.connections
                connection._probe(connection._current, 1.0)  # type: ignore[attr-defined]

            site.call(probe)
            _, _, stream = client.rest().partition(b"HTTP/1.1 200")
            assert len(stream) > 4_000_000
            assert b"HTTP/1.1" not in stream


class TestExpectations:
    @pytest.mark.parametrize("path", ["/api/v1/push", "/echo/x"])
    def test_the_client_is_told_to_send_the_body(self, site: Site, path: str) -> None:
        head, body = post(path, b"body", "Expect: 100-Continue")[:-4], b"body"
        with site.client() as client:
            for _ in range(2):
                client.send(head)
                assert client.reply().status == 100
                client.send(body)
                assert client.reply().status // 100 == 2

    def test_not_while_another_answer_is_owed(self, site: Site) -> None:
        with site.client() as client:
            client.send(POLL + post("/api/v1/push", b"body", "Expect: 100-continue")[:-4])
            site.parked(1)
            site.answer_poll(0, None)
            assert [reply.status for reply in client.replies(2)] == [204, 100]
            client.send(b"body")
            assert client.reply().body == b"body"

    def test_not_without_a_body(self, site: Site) -> None:
        assert site.exchange(post("/api/v1/push", b"", "Expect: 100-continue")).status == 201

    def test_others_are_417(self, site: Site) -> None:
        reply = site.exchange(post("/api/v1/push", b"1", "Expect: a miracle"))
        assert (reply.status, reply.closes) == (417, True)


class TestUpgrades:
    """The JDK's HttpClient offers HTTP/2 with its first request; browsers may ask for anything."""

    OFFER = (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    )

    @pytest.mark.parametrize("path", ["/api/v1/push", "/echo/x"])
    def test_the_offer_is_ignored(self, site: Site, path: str) -> None:
        request = post(path, b"the body", *self.OFFER) + chunked(path, b"the ", b"body", headers=self.OFFER)
        with site.client() as client:
            client.send(request + get("/echo/next", "Connection: Upgrade", "Upgrade: websocket"))
            replies = client.replies(3)
            assert all(b"the body" in reply.body for reply in replies[:2])
            assert json.loads(replies[2].body)["path"] == "/echo/next"
            assert "upgrade" not in json.loads(replies[2].body)["headers"]

    def test_in_pieces(self, site: Site) -> None:
        with site.client() as client:
            for byte in post("/api/v1/push", b"the body", *self.OFFER):
                client.send(bytes([byte]))
            assert client.reply().body == b"the body"

    def test_close_is_not_forgotten(self, site: Site) -> None:
        with site.client() as client:
            client.send(get("/echo/x", "Connection: upgrade, close", "Upgrade: h2c"))
            assert client.reply().closes
            assert client.is_closed()


class TestDrain:
    def test_idle_connections_close_and_requests_under_way_finish(self, site: Site) -> None:
        with contextlib.ExitStack() as stack:
            idle, poll, slow = (stack.enter_context(site.client()) for _ in range(3))
            poll.send(POLL)
            slow.send(get("/slow"))
            until(lambda: site.stats()["connections"] == 3 and site.stats()["parked"] == 1 and site.slow)
            draining = site.drain()
            assert idle.is_closed()
            assert not draining.done()
            site.answer_poll(0, None)
            assert poll.reply().closes
            assert not draining.done()
            site.call(site.slow[0].set)
            assert slow.reply().closes
            draining.result(DEADLINE)
            assert all(client.is_closed() for client in (poll, slow))

    @pytest.mark.parametrize("size", [1, 20, len(post("/api/v1/push", b"12")) - 3])
    def test_a_part_of_a_head_is_not_waited_for(self, site: Site, size: int) -> None:
        with site.client() as client:
            client.send(post("/api/v1/push", b"12")[:size])
            until(lambda: site.reading() == [HEAD])
            draining = site.drain()
            assert client.is_closed()
            draining.result(DEADLINE)

    @pytest.mark.parametrize(
        "part",
        [
            post("/api/v1/push", b"12")[:-2],
            post("/api/v1/push", b"12")[:-1],
            post("/echo/x", b"12", "Expect: 100-continue")[:-2],
            chunked("/api/v1/push", b"12", end=b""),
            chunked("/api/v1/push", b"12", end=b"0\r\nMore: "),
        ],
    )
    @pytest.mark.parametrize("leaves", [True, False])
    def test_nor_the_rest_of_a_body(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, part: bytes, leaves: bool
    ) -> None:
        """Also when the client stays connected, and sends on."""
        monkeypatch.setattr(protocol, "_LINGER", 3600.0)
        with site.client() as client:
            client.send(part)
            until(lambda: site.reading() == [BODY])
            draining = site.drain()
            _, reply = final(client)
            assert (reply.status, reply.error["code"], reply.closes) == (503, "stopping", True)
            assert reply.headers["retry-after"] == "1"
            client.send(b"2" * 100_000)
            if leaves:
                client.socket.close()
            else:
                assert client.is_closed()
            draining.result(DEADLINE)
            assert site.handlers.handled == 0

    @pytest.mark.parametrize("part", [post("/api/v1/push", b"12")[:20], post("/api/v1/push", b"12")[:-1]])
    def test_nor_a_part_behind_the_request_under_way(self, site: Site, part: bytes) -> None:
        with site.client() as client:
            client.send(POLL + part)
            site.parked(1)
            draining = site.drain()
            assert not draining.done()
            site.answer_poll(0, b"{}")
            reply = client.reply()
            assert (reply.status, reply.closes) == (200, True)
            assert client.is_closed()
            draining.result(DEADLINE)

    def test_nor_one_that_is_found_when_others_have_had_their_turn(self, site: Site) -> None:
        one = get("/api/v1/pop?at-once")
        one = one.replace(b"at-once", b"at-once" + b"x" * (4096 - len(one)))
        with site.client() as client:
            until(lambda: site.reading() == [NOTHING])

            def read_and_drain() -> asyncio.Task[None]:
                (connection,) = site.service.connections
                connection.data_received(one * 8 + one[:20])  # type: ignore[attr-defined]
                assert connection._held == one[:20]  # type: ignore[attr-defined]
                return site.loop.create_task(site.service.drain())

            draining = site.call(read_and_drain)
            assert [reply.status for reply in client.replies(8)] == [200] * 8
            assert client.is_closed()
            until(draining.done)

    def test_without_connections_it_is_done_at_once(self, site: Site) -> None:
        site.drain().result(DEADLINE)

    def test_a_connection_that_comes_late_is_closed(self, site: Site) -> None:
        site.drain().result(DEADLINE)
        with site.client() as late:
            assert late.is_closed()

    def test_a_refused_client_does_not_hold_it_up(self) -> None:
        with Site(Limits(max_body_bytes=10)) as site, site.client() as client:
            client.send(post("/api/v1/push", b"x" * 100))
            assert client.reply().status == 413
            site.drain().result(DEADLINE)

    def test_what_waits_behind_is_left_to_the_client(self, site: Site) -> None:
        with site.client() as client:
            client.send(POLL + post("/api/v1/push", b"1"))
            site.parked(1)
            draining = site.drain()
            with pytest.raises(concurrent.futures.TimeoutError):
                draining.result(0.05)
            site.answer_poll(0, b"{}")
            assert client.reply().closes
            assert client.is_closed()
            draining.result(DEADLINE)
            assert site.handlers.handled == 1
