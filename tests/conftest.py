"""Real PostgreSQL for every test that touches data.

One server per kind and session: the embedded one, and each PostgreSQL (15 or newer) installed on this machine, which
TEST_POSTGRES=embedded leaves out. A test gets a database of its own: one that an earlier test has left is emptied and
used again, which is many times faster than making one, unless that test changed the schema or left something locked.
With TEST_DATABASE_URL set, that server (as a superuser) is used instead of all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from queenmq.embedded import EmbeddedPostgres
from queenmq.storage.migrate import migrate
from queenmq.storage.store import Store
from tests import children
from tests.amounts import ONE_POSTGRES, PARAMETER_SETS

EMBEDDED = "embedded"
T = TypeVar("T")


def system_installations() -> list[Path]:
    """Directories with the server programs of a PostgreSQL that was not shipped with us."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/opt/homebrew/opt").glob("postgresql@*/bin")]
    return sorted(path for path in found if (path / "initdb").exists() and _major(path) >= 15)


def _major(path: Path) -> int:
    return int("".join(filter(str.isdigit, path.parent.name)) or 0)


GIVEN = os.environ.get("TEST_DATABASE_URL")
INSTALLATIONS: dict[str, Path | None] = {EMBEDDED: None}
if not GIVEN and not ONE_POSTGRES:
    INSTALLATIONS |= {f"system-{_major(path)}": path for path in system_installations()}
_numbers = itertools.count(1)
# Durability is proven in tests/embedded; everywhere else an fsync per commit only costs time.
_FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "autovacuum_naptime": "2s"}


# What a test must leave as it was for its database to be used again.
_SCHEMA = """
    select md5(string_agg(x, ',' order by x)) from (
        select 'p' || oid || '-' || xmin from pg_proc where pronamespace = 'queen'::regnamespace
        union all select 't' || oid || tgenabled::text from pg_trigger
        union all select concat('c', oid, relkind, relnatts) from pg_class where relnamespace = 'queen'::regnamespace
        union all select 'm' || m::text from queen.schema_migrations m) x (x)
"""
# One statement, because it runs after each test. Triggers are off: foreign keys want an order. Deleting is faster for
# small tables; the two whose size on disk matters to the engine start from nothing.
_EMPTY = f"""
    set session_replication_role = replica;
    set lock_timeout = '1s';
    do $$
    begin
        if ({_SCHEMA}) <> '%s' then
            raise exception 'the schema was changed';
        end if;
        execute (
            select string_agg(case when relname in ('dedup', 'partition_consumers') and pg_relation_size(oid) > 0
                              then 'truncate queen.' else 'delete from queen.' end || relname, ';') from pg_class
            where relnamespace = 'queen'::regnamespace and relkind = 'r' and relname <> 'schema_migrations');
        if exists (select from pg_stat_get_activity(null) where datid = (select oid from pg_database
                   where datname = current_database()) and pid <> pg_backend_pid()
                   and backend_type = 'client backend') then
            raise exception 'another session might still write';
        end if;
    end $$
"""


class Server:
    """A running server with a migrated template, and databases that wait for the next test."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._idle: dict[str, str] = {}
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

    async def lend(self) -> tuple[str, str]:
        """An empty, migrated database, and what its schema looks like."""
        if self._idle:
            return self._idle.popitem()
        name = await self.create()
        return name, await self._in(name, _fingerprint)

    async def take_back(self, name: str, schema: str) -> None:
        """Empty a database for the next test, or drop it when it cannot be what it was."""
        try:
            await self._in(name, lambda connection: connection.execute(_EMPTY % schema))
        except (asyncpg.PostgresError, OSError):
            await self.drop(name)
        else:
            self._idle[name] = schema

    async def _in(self, name: str, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        connection = await asyncpg.connect(self.database(name))
        try:
            return await work(connection)
        finally:
            await connection.close()

    async def _admin(self, statement: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


async def _fingerprint(connection: asyncpg.Connection) -> str:
    return str(await connection.fetchval(_SCHEMA))


def pytest_configure() -> None:
    children.isolate()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait, for a lease to end or for a process to start."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from tests.side_by_side import Files

    return Files(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    if _with_spark(item) and item.config.pluginmanager.hasplugin("xdist"):
        item.add_marker(pytest.mark.xdist_group("spark"))


def _with_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _slowness(item: pytest.Item) -> int:
    """0 for what begins first in a parallel run: the longest, so that nobody waits for it in the end."""
    folders = ["tests/proof", "tests/cli", "tests/test_readme.py", "tests/server", "tests/embedded", "tests/api"]
    names = [number for number, folder in enumerate(folders, 1) if item.nodeid.startswith(folder)]
    return 0 if _with_spark(item) else (names or [len(folders) + 1])[0]


def _leave_out_parameters(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    config.hook.pytest_deselected(items=[item for sets in tests.values() for item in sets[PARAMETER_SETS:]])
    items[:] = [item for sets in tests.values() for item in sets[:PARAMETER_SETS]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A parallel run begins with the longest."""
    if PARAMETER_SETS:
        _leave_out_parameters(config, items)
    if config.getoption("loadgroup", False):
        items.sort(key=_slowness)


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
async def database(embedded_server: Server) -> AsyncIterator[str]:
    """An empty, migrated database of the embedded server."""
    name, schema = await embedded_server.lend()
    yield embedded_server.database(name)
    await embedded_server.take_back(name, schema)


@pytest.fixture
async def dsn(server: Server) -> AsyncIterator[str]:
    """An empty, migrated database on each kind of server."""
    name, schema = await server.lend()
    yield server.database(name)
    await server.take_back(name, schema)


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    opened = await Store.open(dsn)
    yield opened
    await opened.close()
