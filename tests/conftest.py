"""Real PostgreSQL for every test that touches data.

One server per kind and session: the embedded one, and each PostgreSQL (15 or newer) installed on this machine. A test
gets its own database, cloned from a migrated template, which takes a few milliseconds. With TEST_DATABASE_URL set,
that server (as a superuser) is used instead of all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from queenmq.embedded import EmbeddedPostgres
from queenmq.storage.migrate import migrate
from queenmq.storage.store import Store

EMBEDDED = "embedded"


def system_installations() -> list[Path]:
    """Directories with the server programs of a PostgreSQL that was not shipped with us."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/opt/homebrew/opt").glob("postgresql@*/bin")]
    return sorted(path for path in found if (path / "initdb").exists() and _major(path) >= 15)


def _major(path: Path) -> int:
    return int("".join(filter(str.isdigit, path.parent.name)) or 0)


GIVEN = os.environ.get("TEST_DATABASE_URL")
INSTALLATIONS: dict[str, Path | None] = {EMBEDDED: None}
if not GIVEN:
    INSTALLATIONS |= {f"system-{_major(path)}": path for path in system_installations()}
_numbers = itertools.count(1)
# Durability is proven in tests/embedded; everywhere else an fsync per commit only costs time.
_FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "autovacuum_naptime": "2s"}


class Server:
    """A running server with a migrated template."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.template = f"queen_template_{os.getpid()}"

    async def prepare(self) -> None:
        await self._admin(f"drop database if exists {self.template} with (force)")
        await self._admin(f"create database {self.template}")
        await migrate(self.database(self.template))

    def database(self, name: str) -> str:
        base, _, query = self.dsn.partition("?")
        return f"{base.rsplit('/', 1)[0]}/{name}?{query}"

    async def create(self, template: str | None = None, options: str = "") -> str:
        name = f"queen_test_{os.getpid()}_{next(_numbers)}"
        await self._admin(f"create database {name} template {template or self.template} {options}")
        return name

    async def drop(self, name: str) -> None:
        await self._admin(f"drop database if exists {name} with (force)")

    async def _admin(self, statement: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """The servers started so far, by kind."""
    running: list[EmbeddedPostgres] = []
    started = _Servers(tmp_path_factory, running)
    yield started
    for server in started.values():
        asyncio.run(server.drop(server.template))
    for postgres in running:
        postgres.stop()


class _Servers(dict[str, Server]):
    def __init__(self, factory: pytest.TempPathFactory, running: list[EmbeddedPostgres]) -> None:
        super().__init__()
        self._factory = factory
        self._running = running

    def __missing__(self, kind: str) -> Server:
        server = Server(GIVEN or self._start(kind))
        asyncio.run(server.prepare())
        self[kind] = server
        return server

    def _start(self, kind: str) -> str:
        postgres = EmbeddedPostgres(self._factory.mktemp(kind), bin_dir=INSTALLATIONS[kind], settings=_FAST)
        self._running.append(postgres)
        return str(postgres.start().dsn)


@pytest.fixture(params=list(INSTALLATIONS))
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    """A server of each kind in turn."""
    return servers[request.param]


@pytest.fixture
def embedded_server(servers: dict[str, Server]) -> Server:
    """The embedded server, for what does not depend on PostgreSQL's version."""
    return servers[EMBEDDED]


@pytest.fixture
async def dsn(server: Server) -> AsyncIterator[str]:
    """An empty, migrated database on each kind of server."""
    name = await server.create()
    yield server.database(name)
    await server.drop(name)


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    opened = await Store.open(dsn)
    yield opened
    await opened.close()
