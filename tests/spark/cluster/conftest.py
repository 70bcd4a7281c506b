"""Clusters, and a PostgreSQL that wants a password, as the one of a cluster does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from queenmq.domain.segments import PushItem
from queenmq.embedded import EmbeddedPostgres
from queenmq.storage.migrate import migrate
from queenmq.storage.store import Store

from .processes import Cluster

PARTITIONS = ("a", "b", "c", "d")
EACH = 500


@dataclass(frozen=True)
class Database:
    """Where it is, for a driver (TCP, with the password) and for the test (the socket)."""

    url: str
    password: str
    socket: str

    async def rows(self, queue: str) -> list[tuple[str, int, str]]:
        store = await Store.open(self.socket)
        try:
            found = await store.pool.fetch(
                "select partition, seq, payload::text from queen.messages where queue = $1 order by 1, 2", queue
            )
            return [tuple(row) for row in found]
        finally:
            await store.close()


@pytest.fixture(scope="session")
def database_with_password(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """The queue orders in it has messages 1 to EACH in each partition."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    postgres = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), port=port, settings={"fsync": "off"})
    connection = postgres.start()
    try:
        assert connection.tcp_dsn is not None
        assert connection.password is not None
        asyncio.run(_filled(connection.dsn))
        yield Database(connection.tcp_dsn, connection.password, connection.dsn)
    finally:
        postgres.stop()


async def _filled(dsn: str) -> None:
    await migrate(dsn)
    store = await Store.open(dsn)
    try:
        for partition in PARTITIONS:
            numbers = range(1, EACH + 1)
            await store.push([PushItem("orders", str(number).encode(), partition) for number in numbers])
    finally:
        await store.close()


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.end()


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """Where a driver runs."""
    directory = tmp_path / "driver"
    directory.mkdir()
    return directory
