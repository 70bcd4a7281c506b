"""PostgreSQL ends statements and connections under load, again and again. Clients notice nothing but the time it takes.

Leases last longer than these runs, and consumers answer everything they get: so it also shows that no lease is left
behind that a lost or half-done pop has won.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from tests.amounts import SCALE, SEED
from tests.proof.conftest import Serve
from tests.proof.traffic import Traffic

WORKERS = 2
SECONDS = 2 * SCALE
OTHERS = "application_name = 'queenmq' and datname = current_database() and pid <> pg_backend_pid()"
CANCEL = f"select pg_cancel_backend(pid) from pg_stat_activity where state = 'active' and {OTHERS}"
TERMINATE = f"select pg_terminate_backend(pid) from pg_stat_activity where {OTHERS} order by random() limit 1"
LOCK = """
    select from queen.{} where partition_id in (select partition_id from queen.partitions order by random() limit 5)
    order by partition_id for update
"""
SHORT_PATIENCE_MS = 300


@pytest.fixture
async def nemesis(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def disturbed(traffic: Traffic, disturb: Callable[[], Awaitable[None]]) -> None:
    """Run the traffic, and disturb it again and again until everything is settled."""

    async def again_and_again() -> None:
        while not traffic.drained.is_set():
            await disturb()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(traffic.run())
        tasks.create_task(again_and_again())
    assert traffic.repeats == 0, "a client has noticed"


@pytest.mark.parametrize(("statement", "pause"), [(CANCEL, 0.01), (TERMINATE, 0.05)], ids=["cancelled", "terminated"])
async def test_statements_and_connections_that_postgres_ends(
    serve: Serve, connection: asyncpg.Connection, nemesis: asyncpg.Connection, statement: str, pause: float
) -> None:
    ended = 0

    async def end() -> None:
        nonlocal ended
        ended += len(await nemesis.fetch(statement))
        await asyncio.sleep(pause)

    traffic = Traffic(serve(WORKERS).port, connection, seconds=SECONDS, steady=True)
    traffic.satisfied = lambda: ended > 10 * SCALE
    await disturbed(traffic, end)
    print(f"{ended} were ended")
    assert ended > 10 * SCALE


async def test_rows_that_somebody_holds_for_longer_than_a_statement_may_take(
    serve: Serve, connection: asyncpg.Connection, nemesis: asyncpg.Connection
) -> None:
    choice = random.Random(SEED)

    async def hold() -> None:
        async with nemesis.transaction():
            await nemesis.execute(LOCK.format(choice.choice(["partition_lookup", "partition_consumers"])))
            await asyncio.sleep(choice.choice([0.2, 2.0]) * SHORT_PATIENCE_MS / 1000)

    serving = serve(WORKERS, DB_STATEMENT_TIMEOUT=str(SHORT_PATIENCE_MS))
    traffic = Traffic(serving.port, connection, seconds=SECONDS, steady=True)
    await disturbed(traffic, hold)
