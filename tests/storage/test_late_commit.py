"""Pushes that commit late: order is given under the partition's lock, so nothing is passed over (18, 21.1).

In the original a message carries the time its transaction began. A consumer that has moved past that time never sees a
message that was committed later. Here the second push to a partition waits for the first; pops see neither in between.

Every test runs on the storage calls and through the engine, whose plain acks, pops and pushes are statements of their
own. Each lock and each separate statement that these rules need is needed by a test here: without it, that test fails
every time, because the other session holds its transaction open at the moment that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.ack import ack as settle_items
from queenmq.storage.ack import call_plain, release
from queenmq.storage.pool import Executor
from queenmq.storage.pop import QUEUE_MODE, Claim, PopRequest, pop
from queenmq.storage.push import push as store_push
from queenmq.storage.store import Store
from tests.storage.engine_store import EngineStore
from tests.storage.shorthand import QUEUE, ack, ack_of, by_partition, claim, cursor, held, numbers, push
from tests.storage.waiting import is_waiting


async def through_push(db: Executor, store: Store, number: int, partition: str, tx: str | None = None) -> None:
    await store_push(db, store.directory, [PushItem(QUEUE, str(number).encode(), partition, tx)])


async def through_the_view(db: Executor, store: Store, number: int, partition: str, tx: str | None = None) -> None:
    await db.execute(
        "insert into queen.messages (queue, partition, payload, transaction_id) values ($1, $2, $3, $4)",
        *(QUEUE, partition, str(number), tx),
    )


Way = Callable[..., Coroutine[Any, Any, None]]
WAYS = [through_push, through_the_view]


@pytest.fixture(params=["storage", "engine"])
async def store(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Store]:
    opened = await (Store.open(dsn) if request.param == "storage" else EngineStore.through(dsn))
    yield opened
    await opened.close()


async def settle(db: Executor, store: Store, won: Claim, status: str) -> None:
    """Answer for the first message of a claim as the store would do it, but on this connection."""
    if isinstance(store, EngineStore) and status == "completed":
        rows = await call_plain(db, [won.partition_id], [won.group_id], [won.lease_id], [won.from_seq + 1])
        assert len(rows) == 1
    else:
        assert all(result.success for result in await settle_items(db, [ack_of(won, won.from_seq + 1, status)]))


either_way = pytest.mark.parametrize("way", WAYS)
other_way = pytest.mark.parametrize("later", WAYS)
READY = "update queen.partition_consumers set ready_at = clock_timestamp()"  # worth a look, although nothing is there


@either_way
@other_way
async def test_a_push_to_the_same_partition_waits_and_both_are_delivered_in_order(
    store: Store, other: asyncpg.Connection, way: Way, later: Way
) -> None:
    await push(store, 1)
    assert numbers(await store.pop(QUEUE, batch=9, auto_ack=True)) == [1]
    async with other.transaction():
        await way(other, store, 2, "p")
        second = asyncio.create_task(later(store.pool, store, 3, "p"))
        assert await is_waiting(store, second)
        assert numbers(await store.pop(QUEUE, batch=9)) == []
        assert numbers(await store.pop(QUEUE, batch=9, partition="p")) == []
    await second
    assert numbers(await store.pop(QUEUE, batch=9)) == [2, 3]
    assert await store.pool.fetch("select * from queen.partition_lookup_check()") == []


@either_way
async def test_created_at_follows_the_order_of_delivery_not_the_begin_of_the_transaction(
    store: Store, other: asyncpg.Connection, way: Way
) -> None:
    await push(store, 1)
    async with other.transaction():
        began = await other.fetchval("select now()")
        await push(store, 2)
        await way(other, store, 3, "p")
    rows = await store.pool.fetch("select payload::int as n, created_at from queen.messages order by seq")
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert began < rows[1]["created_at"] < rows[2]["created_at"]


@either_way
async def test_a_consumer_that_moved_on_does_not_miss_the_late_commit(
    store: Store, other: asyncpg.Connection, way: Way
) -> None:
    """The late transaction begins first, pushes last; a consumer acks everything in between."""
    await push(store, 1)
    async with other.transaction():
        await other.fetchval("select now()")
        await push(store, 2)
        won = await claim(store)
        assert await ack(store, won, 2)
        assert numbers(await store.pop(QUEUE)) == []
        await way(other, store, 3, "p")
    assert numbers(await store.pop(QUEUE)) == [3]


@either_way
@pytest.mark.parametrize("status", ["completed", "dlq"])
async def test_an_ack_that_empties_the_partition_waits_for_a_push_in_flight(
    store: Store, other: asyncpg.Connection, way: Way, status: str
) -> None:
    """Only then does it know that the partition is not drained."""
    await push(store, 1)
    won = await claim(store)
    async with other.transaction():
        await way(other, store, 2, "p")
        settled = asyncio.create_task(ack(store, won, 1, status))
        assert await is_waiting(store, settled)
    assert await settled
    assert numbers(await store.pop(QUEUE)) == [2]


@pytest.mark.parametrize("status", ["completed", "failed", "dlq"])
async def test_an_ack_that_waits_for_the_end_of_its_lease_is_refused(
    store: Store, other: asyncpg.Connection, status: str
) -> None:
    """The lease was current when the ack came, and is not when the ack gets the cursor."""
    await push(store, 1)
    won = await claim(store)
    async with other.transaction():
        assert len(await release(other, [held(won)])) == 1
        late = asyncio.create_task(ack(store, won, 1, status))
        assert await is_waiting(store, late)
    assert not await late
    row = await cursor(store)
    assert (row["acked_seq"], row["retries"]) == (0, None)
    assert numbers(await store.pop(QUEUE)) == [1]


@either_way
@pytest.mark.parametrize("status", ["completed", "dlq"])
async def test_a_push_that_waits_for_the_ack_that_empties_the_partition_wakes_it(
    store: Store, other: asyncpg.Connection, way: Way, status: str
) -> None:
    """The push began when the partition was leased; by the time it is stored, nobody would look there any more."""
    await push(store, 1)
    won = await claim(store)
    async with other.transaction():
        await settle(other, store, won, status)
        second = asyncio.create_task(way(store.pool, store, 2, "p"))
        assert await is_waiting(store, second)
    await second
    assert numbers(await store.pop(QUEUE)) == [2]


@either_way
async def test_a_push_that_waits_for_the_pop_that_finds_nothing_wakes_the_partition(
    store: Store, other: asyncpg.Connection, way: Way
) -> None:
    await push(store, 1)
    await store.pop(QUEUE, auto_ack=True)
    await store.pool.execute(READY)
    place = store.directory.group(QUEUE, QUEUE_MODE)
    assert place is not None
    async with other.transaction():
        assert not (await pop(other, [PopRequest([place.group_id])]))[0].claims
        second = asyncio.create_task(way(store.pool, store, 2, "p"))
        assert await is_waiting(store, second)
    await second
    assert numbers(await store.pop(QUEUE)) == [2]


@either_way
async def test_a_pop_that_finds_nothing_does_not_wait_and_does_not_put_the_partition_to_sleep(
    store: Store, other: asyncpg.Connection, way: Way
) -> None:
    await push(store, 1)
    await store.pop(QUEUE, auto_ack=True)
    await store.pool.execute(READY)
    async with other.transaction():
        await way(other, store, 2, "p")
        for partition in (None, "p"):
            result = await store.pop(QUEUE, partition=partition)
            assert result.claims == []
            assert result.ready_at is not None
        assert (await cursor(store))["ready_at"] is not None
    assert numbers(await store.pop(QUEUE)) == [2]


@either_way
async def test_a_push_that_is_rolled_back_leaves_no_gap_and_wakes_nobody(
    store: Store, other: asyncpg.Connection, way: Way
) -> None:
    await push(store, 1)
    await store.pop(QUEUE, auto_ack=True)
    attempt = other.transaction()
    await attempt.start()
    await way(other, store, 7, "p")
    await attempt.rollback()
    assert numbers(await store.pop(QUEUE)) == []
    await push(store, 2)
    assert [m.seq for m in (await store.pop(QUEUE)).messages()] == [2]


@either_way
async def test_other_partitions_do_not_wait(store: Store, other: asyncpg.Connection, way: Way) -> None:
    await push(store, 1, partition="a")
    await push(store, 1, partition="b")
    await store.pop(QUEUE, partitions=9, batch=9, auto_ack=True)
    async with other.transaction():
        await way(other, store, 2, "a")
        await push(store, 2, partition="b")
        await push(store, 1, partition="new")
        assert by_partition(await store.pop(QUEUE, partitions=9, batch=9)) == {"b": [2], "new": [1]}
    assert by_partition(await store.pop(QUEUE, partitions=9, batch=9)) == {"a": [2]}


@pytest.mark.parametrize("first", WAYS)
async def test_one_transaction_id_in_two_open_transactions_is_stored_once(
    store: Store, other: asyncpg.Connection, first: Way
) -> None:
    await push(store, 1)
    async with other.transaction():
        await first(other, store, 2, "p", "same")
        second = asyncio.create_task(store.push([PushItem(QUEUE, b"3", "p", "same"), PushItem(QUEUE, b"4", "p")]))
        third = asyncio.create_task(through_the_view(store.pool, store, 5, "p", "same"))
        assert await is_waiting(store, second)
        assert await is_waiting(store, third)
    assert [verdict.status for verdict in await second] == ["duplicate", "queued"]
    await third
    assert numbers(await store.pop(QUEUE, batch=9)) == [1, 2, 4]


@either_way
async def test_a_group_that_registers_during_a_push_gets_its_message(
    store: Store, other: asyncpg.Connection, way: Way
) -> None:
    """The cursor and the message are made by two transactions that do not see each other."""
    await push(store, 1)
    async with other.transaction():
        await way(other, store, 2, "p")
        first = asyncio.create_task(store.pop(QUEUE, "g", batch=1, auto_ack=True))
        assert await is_waiting(store, first)
    assert numbers(await first) == [1]
    assert numbers(await store.pop(QUEUE, "g", batch=9)) == [2]


@either_way
async def test_a_group_that_registers_while_a_partition_is_made_gets_its_messages(
    store: Store, other: asyncpg.Connection, way: Way
) -> None:
    await push(store, 1)
    async with other.transaction():
        await other.fetch("select * from queen.ensure_partitions_v1($1, $2)", [QUEUE], ["late"])
        first = asyncio.create_task(store.pop(QUEUE, "g", batch=9, partitions=9, auto_ack=True))
        assert await is_waiting(store, first)
        await way(other, store, 1, "late")
    seen = by_partition(await first) | by_partition(await store.pop(QUEUE, "g", batch=9, partitions=9))
    assert seen == {"p": [1], "late": [1]}
