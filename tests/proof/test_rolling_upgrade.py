"""Servers of two versions on one database, under load: the schema never goes back, and no client needs a second retry.

The newer version is a copy of the tree under test with a higher version, a migration and changed procedures. With
PROOF_OLDER_TREE set to a checkout of an earlier version, that is the older one and the tree under test the newer one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from queenmq import sql
from queenmq.cli.exits import Exit
from tests.conftest import Server
from tests.proof.client import Client, Reply
from tests.proof.conftest import Serving, launch
from tests.proof.traffic import Traffic

ROOT = Path(sql.__file__).parents[3]
EARLIER = os.environ.get("PROOF_OLDER_TREE")
MARK = "-- of the newer version\n"
MARKED = "select prosrc like '%of the newer version%' from pg_proc where proname = 'segment_base'"
RECORD = "select coalesce(max((to_jsonb(m) ->> 'version')::int), 0) from queen.schema_migrations m where number < 1"


@dataclass
class Versions:
    older: Path
    newer: Path


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    if EARLIER:
        return Versions(Path(EARLIER) / "src", ROOT / "src")
    return Versions(ROOT / "src", newer_copy(tmp_path / "newer"))


def newer_copy(directory: Path, requires: int | None = None) -> Path:
    """This tree as its next version."""
    shutil.copytree(ROOT / "src" / "queenmq", directory / "queenmq", ignore=shutil.ignore_patterns("__pycache__"))
    folder = directory / "queenmq" / "sql"
    code = folder / "__init__.py"
    version = f"VERSION: Final = {sql.VERSION}\n"
    assert version in code.read_text()
    code.write_text(code.read_text().replace(version, f"VERSION: Final = {sql.VERSION + 1}\n"))
    common = folder / "procedures" / "10_common.sql"
    marked = common.read_text().replace("    select (lpad(", f"    {MARK}    select (lpad(", 1)
    assert MARK in marked
    common.write_text(marked)
    limit = f"-- requires: {requires}\n" if requires else ""
    migration = folder / "migrations" / "9999_future.sql"
    migration.write_text(f"{limit}alter table queen.queues add column future integer;\n")
    return directory


@pytest.fixture
async def empty(embedded_server: Server) -> AsyncIterator[str]:
    name = await embedded_server.create(template="template0")
    yield embedded_server.database(name)
    await embedded_server.drop(name)


class Fleet:
    """Servers behind one address. A connection goes to the next server that is in rotation."""

    def __init__(self, directory: Path, database: str) -> None:
        self.running: list[Serving] = []
        self.port = 0
        self._directory, self._database = directory, database
        self._turns = itertools.count()
        self._logs = itertools.count()
        self._pipes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Fleet:
        self._front = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._front.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._front.close()
        for serving in [*self.running]:
            await self.stop(serving)
        for pipe in self._pipes:
            pipe.cancel()

    def launch(self, tree: Path) -> Serving:
        log = self._directory / f"serve-{next(self._logs)}.log"
        return launch(log, "--workers", "1", DATABASE_URL=self._database, PYTHONPATH=str(tree))

    async def start(self, tree: Path) -> Serving:
        serving = self.launch(tree)
        await asyncio.to_thread(serving.wait_ready)
        self.running.append(serving)
        return serving

    async def stop(self, serving: Serving) -> None:
        """Out of rotation first, as in a rollout."""
        self.running.remove(serving)
        await asyncio.to_thread(serving.stop)

    async def ready(self) -> list[tuple[int, object]]:
        """What each server says of itself."""
        return [await ready(serving.port) for serving in self.running]

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = self.running[next(self._turns) % len(self.running)]
        try:
            there = await asyncio.open_connection("127.0.0.1", serving.port)
        except OSError:
            writer.close()
            return
        for source, target in ((reader, there[1]), (there[0], writer)):
            pipe = asyncio.create_task(_pipe(source, target))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)


async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


async def ready(port: int) -> tuple[int, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often each request that was repeated was sent."""
    counted: list[int] = []
    call, attempt = Client._call, Client._attempt

    async def telling(client: Client, request: bytes) -> tuple[int, bytes]:
        status, body = await attempt(client, request)
        if status >= 500:
            print(status, body.decode())
        return status, body

    async def counting(client: Client, request: bytes) -> Reply:
        reply = await call(client, request)
        if reply.attempts > 1:
            counted.append(reply.attempts)
        return reply

    monkeypatch.setattr(Client, "_call", counting)
    monkeypatch.setattr(Client, "_attempt", telling)
    return counted


async def test_servers_of_two_versions_serve_side_by_side(
    versions: Versions, empty: str, tmp_path: Path, attempts: list[int]
) -> None:
    async with Fleet(tmp_path, empty) as fleet:
        first, second = [await fleet.start(versions.older) for _ in range(2)]
        connection = await asyncpg.connect(empty)
        traffic = Traffic(fleet.port, connection, None, steady=True)
        running = asyncio.create_task(traffic.run())
        looking = await asyncpg.connect(empty)

        async def still_newer() -> None:
            assert not running.done(), running.exception()
            assert [status for status, _ in await fleet.ready()] == [200] * len(fleet.running), await fleet.ready()
            assert await looking.fetchval(RECORD) == sql.VERSION + (not EARLIER)
            assert EARLIER or await looking.fetchval(MARKED)
            before = traffic.happened["queued"]
            while traffic.happened["queued"] < before + 200:
                assert not running.done(), running.exception()
                await asyncio.sleep(0.01)

        third = await fleet.start(versions.newer)
        await still_newer()
        if EARLIER:
            again = fleet.launch(versions.older)
            assert await asyncio.to_thread(again.process.wait, 60) == Exit.SCHEMA, again.log.read_text()
        else:
            await fleet.stop(first)
            first = await fleet.start(versions.older)
        await still_newer()
        await fleet.stop(second)
        second = await fleet.start(versions.newer)
        await still_newer()
        await fleet.stop(third)
        third = await fleet.start(versions.newer)
        await still_newer()
        traffic.enough.set()
        await running
        await still_settled(looking)
        await looking.close()
        await connection.close()
    print(f"repeated: {sorted(attempts)}")
    assert max(attempts, default=1) <= 2, "a client needed more than one retry"


async def still_settled(connection: asyncpg.Connection) -> None:
    """What the newer version brought is complete: its migration, and online ones that this version has."""
    async with asyncio.timeout(120):
        while await connection.fetchval("select count(*) from queen.schema_migrations where steps_done is not null"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_version_that_cannot_serve_the_schema_says_so(empty: str, tmp_path: Path) -> None:
    newer = newer_copy(tmp_path / "newer", requires=sql.VERSION + 1)
    words = f"version {sql.VERSION + 1} or newer since migration 9999_future; this server has version {sql.VERSION}"
    async with Fleet(tmp_path, empty) as fleet:
        older = await fleet.start(ROOT / "src")
        assert (await ready(older.port))[0] == 200
        await fleet.start(newer)
        status, reason = await ready(older.port)
        assert status == 503
        assert words in str(reason)
        again = fleet.launch(ROOT / "src")
        assert await asyncio.to_thread(again.process.wait, 60) == Exit.SCHEMA
        assert words in again.log.read_text()
