"""The socket, the names behind addresses, the clock and the echoes that a gateway stands on."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys

import pytest

from queenmq.cluster import datagrams, echoes, peers
from queenmq.cluster.clock import SharedClock
from queenmq.cluster.datagrams import Address, Datagrams
from queenmq.cluster.echoes import Echoes
from queenmq.cluster.peers import Peers
from tests.engine.saying import until


@pytest.fixture
def port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class TestTheSocket:
    async def test_it_hears_ipv4_and_ipv6(self, port: int) -> None:
        heard: list[tuple[bytes, Address]] = []
        made = Datagrams(datagrams.bind(port, 65_536), lambda data, source: heard.append((data, source)))
        made.open()
        targets = [(socket.AF_INET, "127.0.0.1")]
        if socket.has_dualstack_ipv6():
            targets.append((socket.AF_INET6, "::1"))
        for family, host in targets:
            with socket.socket(family, socket.SOCK_DGRAM) as other:
                other.sendto(b"hello", (host, port))
        await until(lambda: len(heard) == len(targets))
        assert made.received == len(targets)
        assert made.bytes_received == 5 * len(targets)
        made.close()

    async def test_it_answers_where_a_datagram_came_from(self, port: int) -> None:
        made = Datagrams(datagrams.bind(port, 65_536), lambda data, source: made.send(data + b"!", source))
        made.open()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.settimeout(10)
            other.sendto(b"hello", ("127.0.0.1", port))
            answer = await asyncio.get_running_loop().run_in_executor(None, other.recv, 100)
        assert answer == b"hello!"
        assert (made.sent, made.bytes_sent) == (1, 6)
        made.close()

    async def test_a_name_gives_addresses_it_can_send_to(self, port: int) -> None:
        made = Datagrams(datagrams.bind(port, 65_536), lambda data, source: None)
        (address,) = await made.resolve("127.0.0.1", 6633)
        assert address[0].endswith("127.0.0.1")
        made.send(b"x", address)
        assert (made.sent, made.unsent) == (1, 0)
        with pytest.raises(OSError, match=r"."):
            await made.resolve("no.such.host.invalid", 1)
        made.close()

    async def test_what_cannot_be_sent_is_counted(self, port: int) -> None:
        made = Datagrams(datagrams.bind(port, 65_536), lambda data, source: None)
        made.send(b"x" * 70_000, ("127.0.0.1", port))
        assert (made.sent, made.unsent) == (0, 1)
        made.close()

    def test_a_port_that_is_taken_is_refused(self, port: int) -> None:
        first = datagrams.bind(port, 65_536)
        with pytest.raises(OSError, match=r".") as refused:
            datagrams.bind(port, 65_536)
        assert refused.value.errno == errno.EADDRINUSE
        first.close()

    def test_a_buffer_that_the_system_does_not_grant_is_told_with_the_remedy(
        self, port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            granted = datagrams.bind(port, 1 << 30)
        (record,) = caplog.records
        most = granted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // (2 if sys.platform == "linux" else 1)
        granted.close()
        assert "QUEEN_SYNC_RECV_BUFFER_MB" in record.message
        assert "sysctl -w " in record.message
        assert f"={1 << 30}" in record.message
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            datagrams.bind(port, most).close()
            assert caplog.records == []
            datagrams.bind(port, most + 4096).close()
        assert len(caplog.records) == 1


class Names:
    """A name service in which servers move."""

    def __init__(self, **known: list[Address]) -> None:
        self.known = known

    async def __call__(self, host: str, port: int) -> list[Address]:
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return self.known[host]


class TestPeers:
    async def test_a_name_may_stand_for_many(self) -> None:
        found = Peers([("all", 1)], Names(all=[("10.0.0.1", 1), ("10.0.0.2", 1)]))
        await found.look_up()
        assert found.addresses() == found.strangers() == [("10.0.0.1", 1), ("10.0.0.2", 1)]
        found.heard("a", ("10.0.0.1", 1))
        assert found.strangers() == [("10.0.0.2", 1)]
        assert found.address("a") == ("10.0.0.1", 1)

    async def test_a_name_that_moved_is_found_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(peers, "_OFTEN", 0.01)
        names = Names(b=[("10.0.0.1", 1)])
        found = Peers([("b", 1)], names)
        await found.look_up()
        looking = asyncio.create_task(found.keep_looking(lambda: ["b"]))
        names.known["b"] = [("10.0.0.9", 1)]
        await until(lambda: found.addresses() == [("10.0.0.9", 1)])
        looking.cancel()

    async def test_a_name_that_is_not_found_is_told_once_and_keeps_its_addresses(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        names = Names(b=[("10.0.0.1", 1)])
        found = Peers([("b", 1), ("c", 2)], names)
        with caplog.at_level(logging.WARNING):
            await found.look_up()
            await found.look_up()
            (record,) = caplog.records
            assert record.message.startswith("the server c:2 of QUEEN_UDP_PEERS is not found: ")
            del names.known["b"]
            await found.look_up()
        assert found.addresses() == [("10.0.0.1", 1)]
        assert len(caplog.records) == 2

    async def test_what_is_ours_is_not_sent_to_until_the_name_moves(self) -> None:
        names = Names(me=[("10.0.0.1", 1)])
        found = Peers([("me", 1)], names)
        await found.look_up()
        found.ours(("10.0.0.1", 1))
        assert found.addresses() == []
        names.known["me"] = [("10.0.0.2", 1)]
        await found.look_up()
        names.known["me"] = [("10.0.0.1", 1)]
        await found.look_up()
        assert found.addresses() == [("10.0.0.1", 1)]

    async def test_who_takes_an_address_over_drives_out_who_was_there(self) -> None:
        found = Peers([], Names())
        found.heard("a", ("10.0.0.1", 1))
        found.heard("b", ("10.0.0.1", 1))
        assert found.address("a") is None
        assert found.address("b") == ("10.0.0.1", 1)
        found.forget("b")
        assert found.addresses() == []


class TestEchoes:
    async def test_a_thing_is_said_a_few_times_more(self) -> None:
        said: list[str] = []
        made = Echoes()
        made.add("x", lambda: said.append("x"))
        await until(lambda: len(said) == len(echoes.PAUSES))
        await until(lambda: not made._latest)
        assert made._due == []
        assert made.said == len(said) == len(echoes.PAUSES)

    async def test_what_is_said_anew_takes_the_place_of_what_was_said(self) -> None:
        said: list[str] = []
        made = Echoes()
        made.add("x", lambda: said.append("old"))
        made.add("x", lambda: said.append("new"))
        made.add("y", lambda: said.append("y"))
        await until(lambda: not made._latest)
        assert said.count("new") == said.count("y") == len(echoes.PAUSES)
        assert "old" not in said

    async def test_of_too_much_nothing_is_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(echoes, "MOST", 2)
        made = Echoes()
        for name in "abcd":
            made.add(name, lambda: None)
        assert len(made._latest) == made.skipped == 2
        made.close()


def test_the_shared_clock_goes_on_by_itself() -> None:
    now = [100.0]
    clock = SharedClock(5_000_000, lambda: now[0])
    now[0] = 101.5
    assert clock.millis() == 5_001_500
    assert clock.micros() == 5_001_500_000
    clock.set(7_000_000)
    now[0] = 102.0
    assert clock.millis() == 7_000_500
