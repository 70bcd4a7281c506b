"""How a server gets its name and its port among other servers, and what it says when that cannot be."""

from __future__ import annotations

import socket

import pytest

from queenmq.cluster.packets import MAX_SENDER
from queenmq.server import coordination
from queenmq.server.listening import ListenError
from queenmq.server.settings import Settings
from tests.server.conftest import StartServer

SECRET = "5f" * 32


def settings(**environment: str) -> Settings:
    return Settings.from_env({"HOME": "/nowhere", **environment})


class TestTheName:
    def test_it_is_what_is_set(self) -> None:
        assert coordination.server_name(settings(QUEEN_SERVER_ID="queen-1"), 6632, "host") == "queen-1"

    def test_otherwise_it_is_the_host_and_the_port(self) -> None:
        assert coordination.server_name(settings(), 6632, "host.example") == "host.example:6632"
        assert coordination.server_name(settings(), 6632).startswith(socket.gethostname()[:8])

    def test_a_long_host_name_is_cut_and_stays_its_own(self) -> None:
        names = {coordination.server_name(settings(), 6632, "a" * 60 + end) for end in ("b", "c")}
        assert len(names) == 2
        assert all(len(name) == MAX_SENDER and name.endswith(":6632") for name in names)

    def test_what_a_packet_cannot_hold_is_replaced(self) -> None:
        assert coordination.server_name(settings(), 1, "hö st") == "h--st:1"


class TestThePort:
    def test_without_peers_there_is_none(self) -> None:
        assert coordination.bind(settings()) is None
        off = settings(QUEEN_UDP_PEERS="b", QUEEN_SYNC_SECRET=SECRET, QUEEN_SYNC_ENABLED="false")
        assert coordination.bind(off) is None

    def test_one_that_is_taken_is_refused_with_what_to_do(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("0.0.0.0", 0))
            port = taken.getsockname()[1]
            wanted = settings(QUEEN_UDP_PEERS="b", QUEEN_SYNC_SECRET=SECRET, QUEEN_UDP_NOTIFY_PORT=str(port))
            with pytest.raises(ListenError, match=f"UDP port {port} is in use.*QUEEN_UDP_NOTIFY_PORT"):
                coordination.bind(wanted)


def test_a_server_with_peers_but_without_a_secret_does_not_start(start_server: StartServer, database: str) -> None:
    server = start_server(DATABASE_URL=database, QUEEN_UDP_PEERS="127.0.0.1:1")
    assert server.wait_end() == 2
    assert "QUEEN_SYNC_SECRET" in server.complaints
    assert "openssl rand -hex 32" in server.complaints


def test_each_start_has_a_higher_session_and_the_secret_is_nowhere(start_server: StartServer, database: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(20)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        sessions = []
        for _ in range(2):
            server = start_server(
                DATABASE_URL=database,
                QUEEN_UDP_PEERS=f"127.0.0.1:{peer.getsockname()[1]}",
                QUEEN_UDP_NOTIFY_PORT=str(port),
                QUEEN_SYNC_SECRET=SECRET,
                QUEEN_SERVER_ID="queen-1",
            ).wait_ready()
            while (packet := peer.recv(2000))[68:84] in sessions:
                pass
            assert packet[36:68].rstrip(b"\0") == b"queen-1"
            sessions.append(packet[68:84])
            assert SECRET not in server.complaints + server.said
            server.process.terminate()
            assert server.wait_end() == 0
    assert sessions == sorted(sessions)
