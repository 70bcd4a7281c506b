"""Spark behind PgBouncer: reads through a real one where it is installed, typed calls as that mode makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from queenmq.domain.segments import PushItem
from queenmq.spark.connecting import PGBOUNCER, typed
from queenmq.spark.errors import OptionError
from queenmq.storage.errors import UnsupportedDatabase
from queenmq.storage.migrate import migrate
from queenmq.storage.store import Store
from tests.conftest import Server
from tests.spark.reading import batch, step, stream
from tests.storage.bouncer import PROGRAM, bouncing

WAYS = ["direct", "pgbouncer"] if PROGRAM else ["direct"]


@pytest.fixture
async def database(embedded_server: Server) -> AsyncIterator[str]:
    """Dropped afterwards, and with it the settings that are stored for it."""
    name = await embedded_server.create()
    yield embedded_server.database(name)
    await embedded_server.drop(name)


@pytest.fixture(params=WAYS)
def url(request: pytest.FixtureRequest, database: str) -> Iterator[str]:
    with ExitStack() as stack:
        yield database if request.param == "direct" else stack.enter_context(bouncing(database, default_pool_size=1))


async def push(database: str, count: int) -> None:
    queue = await Store.open(database)
    try:
        await queue.push([PushItem(queue="orders", partition=f"p{n % 3}", payload=b"{}") for n in range(count)])
    finally:
        await queue.close()


async def test_reads_need_a_session_only_while_they_read(database: str, url: str) -> None:
    """The one session of the pool is free for the batch while the stream is between its questions."""
    source = stream(url)
    await push(database, 300)
    rows, at = step(source, source.initialOffset())
    assert len(rows) == 300
    assert len(batch(url, numSplits=7)) == 300
    await push(database, 2)
    rows, at = step(source, at)
    source.stop()
    assert len(rows) == 2


@pytest.mark.parametrize("given", ["true", "1", "TRUE"])
async def test_typed_calls_rely_on_what_is_stored(database: str, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(PGBOUNCER, given)
    with pytest.raises(UnsupportedDatabase, match="queen db migrate"):
        await typed(database)
    await migrate(database, pgbouncer=True)
    connection = await typed(database)
    named = await connection.fetchval("select count(*) from pg_settings where source = 'client' and name ~ '^enable'")
    await connection.close()
    assert named == 0


async def test_anything_else_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PGBOUNCER, "yes")
    with pytest.raises(OptionError, match=r"QUEEN_PGBOUNCER.*'yes'.*true, false, 1 or 0"):
        await typed(database)
