"""Two sessions that want the same rows take them in the same order, and a pop waits for nobody.

Each test holds one session at the point where the other already waits for it, so that a lock taken out of order is a
deadlock every time, not once in a thousand runs. The order: queue, queue_depth, partitions ascending, then cursors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.ack import ack
from queenmq.storage.errors import AckRefused, LeaseNotHeld
from queenmq.storage.pop import Claim
from queenmq.storage.push import push as store_push
from queenmq.storage.store import Store
from tests.storage.deadlocks import deadlocks
from tests.storage.shorthand import QUEUE, ack_of, by_partition, claim, dead_letters, held, numbers, push
from tests.storage.time_travel import expire_leases
from tests.storage.waiting import is_waiting


@pytest.fixture(autouse=True)
async def no_deadlock(dsn: str) -> AsyncIterator[None]:
    before = await deadlocks(dsn)
    yield
    assert await deadlocks(dsn) == before


async def two_claims(store: Store) -> tuple[Claim, Claim]:
    """Two partitions with a message each, leased apart; the one with the lower id first."""
    for partition in "ab":
        await push(store, 1, partition=partition)
    won = [await claim(store), await claim(store)]
    low, high = sorted(won, key=lambda one: one.partition_id)
    return low, high


async def push_to(db: asyncpg.Connection, store: Store, partition: str) -> None:
    await store_push(db, store.directory, [PushItem(QUEUE, b"2", partition)])


@pytest.mark.parametrize("low_status", ["completed", "failed", "dlq"])
@pytest.mark.parametrize("high_status", ["completed", "failed", "dlq"])
async def test_an_ack_of_several_partitions_and_a_push_to_them(
    store: Store, other: asyncpg.Connection, low_status: str, high_status: str
) -> None:
    low, high = await two_claims(store)
    async with other.transaction():
        await push_to(other, store, low.partition)
        acks = asyncio.create_task(store.ack([ack_of(high, 1, high_status), ack_of(low, 1, low_status)]))
        assert await is_waiting(store, acks)
        await push_to(other, store, high.partition)
    assert all(result.success for result in await acks)


async def test_two_pushes_to_the_same_partitions(store: Store, other: asyncpg.Connection) -> None:
    """Whatever the order of the items, the lower partition comes first."""
    low, high = await two_claims(store)
    async with other.transaction():
        await push_to(other, store, low.partition)
        both = [PushItem(QUEUE, b"3", high.partition), PushItem(QUEUE, b"3", low.partition)]
        second = asyncio.create_task(store.push(both))
        assert await is_waiting(store, second)
        await push_to(other, store, high.partition)
    assert [verdict.seq for verdict in await second] == [3, 3]


async def test_a_transaction_and_an_ack_of_several_partitions(store: Store, other: asyncpg.Connection) -> None:
    low, high = await two_claims(store)
    async with other.transaction():
        await ack(other, [ack_of(low, 1)])
        work = store.transaction([ack_of(high, 1)], [PushItem(QUEUE, b"2", low.partition)], [held(high)])
        committed = asyncio.create_task(store.commit(work))
        assert await is_waiting(store, committed)
        await ack(other, [ack_of(high, 1, "retry")])
    with pytest.raises((AckRefused, LeaseNotHeld)):
        await committed


async def test_a_lease_required_on_a_partition_that_is_not_acked(store: Store, other: asyncpg.Connection) -> None:
    low, high = await two_claims(store)
    async with other.transaction():
        await ack(other, [ack_of(low, 1)])
        work = store.transaction([ack_of(high, 1)], [], [held(low), held(high)])
        committed = asyncio.create_task(store.commit(work))
        await asyncio.wait({committed}, timeout=0.2)
        await ack(other, [ack_of(high, 1)])
    await asyncio.wait({committed})
    assert committed.exception() is None or isinstance(committed.exception(), AckRefused | LeaseNotHeld)


@pytest.mark.parametrize("status", ["dlq", "completed"])
async def test_an_ack_and_the_deletion_of_its_queue(store: Store, other: asyncpg.Connection, status: str) -> None:
    """The ack holds its rows when the deletion arrives, and then writes a dead letter of the queue."""
    await push(store, 1, 2)
    won = await claim(store)
    async with other.transaction():
        await ack(other, [ack_of(won, 1)])
        deleted = asyncio.create_task(store.delete_queue(QUEUE))
        assert await is_waiting(store, deleted)
        assert (await ack(other, [ack_of(won, 2, status)]))[0].success
    assert await deleted
    assert await dead_letters(store) == []


async def test_a_pop_that_dead_letters_and_the_deletion_of_its_queue(store: Store, other: asyncpg.Connection) -> None:
    await store.configure(QUEUE, retryLimit=0)
    for partition in "ab":
        await push(store, 1, partition=partition)
    await claim(store)
    await claim(store)
    await expire_leases(store.pool)
    gid = await store.pool.fetchval("select group_id from queen.consumer_groups_metadata")
    pop = (
        "select * from queen.pop_v1(array[$1::int], '{1}', '{1}', array[$2::bigint], '{1}', '{1}', $3, '{f}', '{null}')"
    )
    pids = [
        row["partition_id"]
        for row in await store.pool.fetch(
            "select partition_id from queen.partition_consumers where lease_id is not null"
        )
    ]
    async with other.transaction():
        await other.fetch(pop, gid, pids[0], ["0196c2f5-1111-7000-8000-000000000000"])
        deleted = asyncio.create_task(store.delete_queue(QUEUE))
        assert await is_waiting(store, deleted)
        await other.fetch(pop, gid, pids[1], ["0196c2f5-1111-7000-8000-000000000000"])
    assert await deleted


async def test_a_push_and_the_deletion_of_a_group_whose_cursors_it_wakes(
    store: Store, other: asyncpg.Connection
) -> None:
    low, high = await two_claims(store)
    await store.ack([ack_of(low, 1), ack_of(high, 1)])
    async with other.transaction():
        await push_to(other, store, low.partition)
        deleted = asyncio.create_task(
            store.pool.execute("select queen.delete_group_v1('__QUEUE_MODE__', $1, true)", QUEUE)
        )
        assert await is_waiting(store, deleted)
        await push_to(other, store, high.partition)
    await deleted
    assert by_partition(await store.pop(QUEUE, batch=9, partitions=9)) == {
        low.partition: [1, 2],
        high.partition: [1, 2],
    }


class TestPopsWaitForNobody:
    """Every call here must come back while the other session still holds its locks; if it waited, it would hang."""

    async def test_neither_for_a_push_nor_for_an_ack_nor_for_a_pop(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        for partition in "abcd":
            await push(store, 1, 2, partition=partition)
        won = (await store.pop(QUEUE, partition="a", batch=2)).claims[0]
        async with other.transaction():
            await push_to(other, store, "b")
            await ack(other, [ack_of(won, 1)])
            await other.execute(
                "select 1 from queen.partition_consumers c join queen.partitions p using (partition_id)"
                " where p.name = 'c' for update of c"
            )
            assert by_partition(await store.pop(QUEUE, batch=9, partitions=9)) == {"b": [1, 2], "d": [1, 2]}
            for partition in "abcd":
                assert numbers(await store.pop(QUEUE, batch=9, partition=partition)) == []

    async def test_nor_for_a_registration(self, store: Store, other: asyncpg.Connection) -> None:
        await push(store, 1)
        await store.pop(QUEUE, "g", partition="none")
        await store.pop(QUEUE, auto_ack=True)
        await push(store, 2)
        async with other.transaction():
            await other.execute("select queen.register_group_v1($1, 'late', 'all', null)", QUEUE)
            assert numbers(await store.pop(QUEUE)) == [2]
