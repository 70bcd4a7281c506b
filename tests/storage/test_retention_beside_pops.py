"""Retention runs while a pop is between its claim and its read: no lease covers nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from queenmq.storage.store import Store
from tests.storage.retaining import EXPIRED, stored, trimmed
from tests.storage.shorthand import QUEUE, cursor, numbers, push
from tests.storage.time_travel import age_messages
from tests.storage.waiting import is_waiting

# An AFTER trigger runs at the end of the statement that claims, so the pop stops before the one that reads.
STOP = """
    create function stop() returns trigger language plpgsql as $$
    begin
        if new.lease_id is not null and old.lease_id is null then
            perform pg_advisory_xact_lock_shared(7);
        end if;
        return null;
    end $$;
    create trigger stop after update on queen.partition_consumers for each row execute function stop();
"""
WAYS: list[dict[str, Any]] = [{}, {"partition": "p"}, {"partitions": 2}]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_pop_that_has_claimed_messages_delivers_them(
    store: Store, other: asyncpg.Connection, way: dict[str, Any]
) -> None:
    await store.configure(QUEUE, **EXPIRED)
    await push(store, 1, 2)
    await push(store, 3)
    assert numbers(await store.pop(QUEUE, batch=9, partition="none")) == []
    await age_messages(store.pool, 120)
    await store.pool.execute(STOP)
    await other.execute("select pg_advisory_lock(7)")
    popping = asyncio.create_task(store.pop(QUEUE, batch=9, **way))
    assert await is_waiting(store, popping)
    removed = await trimmed(store)
    await other.execute("select pg_advisory_unlock(7)")
    assert (numbers(await popping), removed) == ([1, 2, 3], [])
    assert (await cursor(store))["lease_to"] == 3
    await trimmed(store)
    assert await stored(store) == [], "the next pass removes them"


async def test_a_cursor_in_use_does_not_keep_what_its_group_has_consumed(
    store: Store, other: asyncpg.Connection
) -> None:
    await store.configure(QUEUE, **EXPIRED)
    await push(store, 1)
    assert numbers(await store.pop(QUEUE, auto_ack=True)) == [1]
    await age_messages(store.pool, 120)
    await push(store, 2)
    async with other.transaction():
        await other.execute("select from queen.partition_consumers for update")
        assert [each.messages for each in await trimmed(store)] == [1]
    assert await stored(store) == [2]
