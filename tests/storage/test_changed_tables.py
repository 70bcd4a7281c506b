"""A call that began before a migration changed a table, and reads the table after that, is done all the same.

The variables of a procedure get their types when it begins. A migration that holds the table exclusively makes the call
wait, and the call then finds other columns than its variables have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from queenmq.storage.directory import Directory
from queenmq.storage.pool import connect
from queenmq.storage.pop import clock, register
from queenmq.storage.queues import configure
from queenmq.storage.store import Store
from tests.storage.waiting import is_waiting

Call = Callable[[asyncpg.Connection, int], Coroutine[Any, Any, object]]


async def configures(db: asyncpg.Connection, number: int) -> object:
    return (await configure(db, "orders", {"leaseTime": 7})).lease_time


async def registers(db: asyncpg.Connection, number: int) -> object:
    moment = await clock(db)
    return await register(db, Directory(), "orders", f"g{number}", mode="new", start=moment)


async def configures_as_version_1(db: asyncpg.Connection, number: int) -> object:
    row = await db.fetchrow("select * from queen.configure_v1('orders', null, null, '{\"lease_time\": 7}')")
    assert row is not None
    assert (row["name"], row["lease_time"], len(row)) == ("orders", 7, 24)
    return row["lease_time"]


async def registers_as_version_1(db: asyncpg.Connection, number: int) -> object:
    return await db.fetchval("select group_id from queen.register_group_v1('orders', $1, 'new', null)", f"g{number}")


# The migration to wide numbers makes the procedures anew where it drops a column, as this does.
_ANEW = """
    ; do $$
    declare
        f regprocedure;
    begin
        for f in select oid from pg_proc where pronamespace = 'queen'::regnamespace and prokind = 'f' loop
            execute format('alter function %s cost 99', f);
        end loop;
    end $$
"""
CHANGES = {
    "a column more": "alter table queen.queues add column more bigint",
    "a column in place of another": "alter table queen.queues drop column priority, add column priority integer;"
    " alter table queen.queues alter priority set default 0" + _ANEW,
    "another type": "alter table queen.queues alter lease_time type bigint;"
    " alter table queen.consumer_groups_metadata alter subscription_mode type varchar(20)" + _ANEW,
}


@pytest.fixture
async def db(dsn: str, store: Store) -> AsyncIterator[asyncpg.Connection]:
    """One session for all calls: it keeps what it knows of the tables."""
    connection = await connect(dsn)
    yield connection
    await connection.close()


# Those that failed before calls were repeated. The columns of version 1 have the types of version 1.
CASES = [
    *((configures, change) for change in CHANGES),
    (registers, "another type"),
    *((configures_as_version_1, change) for change in ("a column more", "a column in place of another")),
    (registers_as_version_1, "another type"),
]


@pytest.mark.parametrize(("call", "change"), CASES)
async def test_a_call_that_waits_for_a_migration_is_done(
    call: Call, change: str, store: Store, db: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    await store.configure("orders")
    for number in range(6):  # PostgreSQL keeps a plan for the session from the sixth time on
        await call(db, number)
    async with other.transaction():
        await other.execute("lock table queen.queues, queen.consumer_groups_metadata")
        waiting = asyncio.create_task(call(db, 6))
        assert await is_waiting(store, waiting)
        await other.execute(CHANGES[change])
        await other.execute("alter table queen.consumer_groups_metadata add column more bigint")
    assert await asyncio.wait_for(waiting, 20)
