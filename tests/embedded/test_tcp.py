"""TCP: only on request, only on this machine, only with the password."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from queenmq.embedded import PortTakenError
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import value


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def free_port() -> int:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        return int(other.getsockname()[1])


def test_tcp_needs_the_password_and_the_socket_does_not(made_dir: Path, manager: MakeManager) -> None:
    port = free_port()
    connection = manager(made_dir, port=port).start()
    assert connection.tcp_dsn is not None
    assert connection.password is not None
    assert value(connection.tcp_dsn, "SELECT inet_server_port()") == port
    assert value(connection.dsn, "SELECT inet_server_port() IS NULL") is True
    assert connection.password not in repr(connection)
    assert connection.password not in (made_dir / "postgres.log").read_text()
    wrong = connection.tcp_dsn.replace(connection.password, "guess")
    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(asyncpg.connect(wrong))
    guest = manager(made_dir, port=port).start()
    assert guest.tcp_dsn == connection.tcp_dsn


def test_a_taken_port_is_named_and_the_cluster_survives(made_dir: Path, manager: MakeManager, taken_port: int) -> None:
    with pytest.raises(PortTakenError, match=str(taken_port)) as refused:
        manager(made_dir, port=taken_port).start()
    assert refused.value.data == {"port": taken_port}
    assert manager(made_dir).start().tcp_dsn is None
