"""The database's clock steps back while a pop is under way: it ends, and each partition is delivered once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.pool import connect
from queenmq.storage.pop import QUEUE_MODE, PopRequest, pop
from queenmq.storage.push import push as store_push
from queenmq.storage.store import Store
from tests.storage.shorthand import QUEUE, by_partition, push

# Procedures name the clock without its schema, so a session can have one of its own. It goes back after so many looks.
CLOCK = """
    create schema stepping;
    create sequence stepping.looks;
    create function stepping.clock_timestamp() returns timestamptz language sql volatile as $$
        select pg_catalog.clock_timestamp()
            - case when nextval('stepping.looks') > {looks} then interval '1 hour' else interval '0' end
    $$;
    grant usage on schema stepping to public;
"""
READY = "update queen.partition_consumers set ready_at = now() - interval '1 min' where group_id = $1"


@pytest.fixture
async def stepping(dsn: str, store: Store, looks: int) -> AsyncIterator[asyncpg.Connection]:
    await store.pool.execute(CLOCK.format(looks=looks))
    connection = await connect(dsn, statement_timeout_ms=5000)
    await connection.execute("set search_path = stepping, pg_catalog")
    yield connection
    await connection.close()
    await store.pool.execute("drop schema stepping cascade")


async def group_of(store: Store) -> int:
    (place,) = [store.directory.group(QUEUE, QUEUE_MODE)]
    assert place is not None
    return place.group_id


@pytest.mark.parametrize("looks", [2, 3, 4])
async def test_each_partition_is_delivered_once_in_an_answer(
    store: Store, stepping: asyncpg.Connection, looks: int
) -> None:
    for partition in ("a", "b"):
        await push(store, 0, partition=partition)
    await store.pop(QUEUE, batch=9, partitions=9, auto_ack=True)
    for partition in ("a", "b"):
        await push(store, 1, 2, partition=partition)
    group = await group_of(store)
    await store.pool.execute(READY, group)
    (result,) = await pop(stepping, [PopRequest([group], batch=9, max_partitions=9)])
    assert by_partition(result) == {"a": [1, 2], "b": [1, 2]}
    assert [claim.attempt for claim in result.claims] == [1, 1]


@pytest.mark.parametrize("looks", [2, 3, 4])
async def test_a_partition_that_a_push_holds_is_looked_at_once(
    store: Store, other: asyncpg.Connection, stepping: asyncpg.Connection, looks: int
) -> None:
    await push(store, 1)
    await store.pop(QUEUE, auto_ack=True)
    group = await group_of(store)
    await store.pool.execute(READY, group)
    async with other.transaction():
        await store_push(other, store.directory, [PushItem(QUEUE, b"2", "p")])
        (result,) = await pop(stepping, [PopRequest([group], batch=9, max_partitions=9)])
        assert result.reason == "empty"
