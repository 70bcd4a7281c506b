"""Eviction: messages that waited too long go to the dead letters of the group that did not take them."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from queenmq.storage.ack import AckItem
from queenmq.storage.eviction import Evicted, EvictStep, evict
from queenmq.storage.pop import QUEUE_MODE
from queenmq.storage.store import Store
from tests.storage.shorthand import QUEUE, ack, ack_of, claim, cursor, dead_letters, numbers, push
from tests.storage.time_travel import age_messages, expire_leases, pass_retry_delays

ERROR = "maxWaitTimeSeconds exceeded"


async def evict_all(store: Store, batch: int = 100, **more: int) -> list[EvictStep]:
    """A whole pass."""
    steps: list[EvictStep] = []
    after: int | None = 0
    while after is not None:
        steps.append(await evict(store.pool, batch=batch, after=after, **more))
        after = steps[-1].next_after
    return steps


async def evicted(store: Store) -> list[Evicted]:
    return [entry for step in await evict_all(store) for entry in step.evicted]


async def waiting(store: Store, *messages: int, group: str = QUEUE_MODE, **options: Any) -> None:
    """Messages that one group has not taken for a minute."""
    await store.configure(QUEUE, maxWaitTimeSeconds=60, **options)
    await store.pop(QUEUE, group)
    await push(store, *messages)
    await age_messages(store.pool, 61)


async def test_overdue_messages_are_dead_lettered_and_the_cursor_moves_past_them(store: Store) -> None:
    await waiting(store, 1, 2)
    await push(store, 3)
    assert await evicted(store) == [Evicted(QUEUE, QUEUE_MODE, "p", 2)]
    assert await dead_letters(store) == [(1, 0, ERROR), (2, 0, ERROR)]
    assert (await cursor(store))["acked_seq"] == 2
    assert numbers(await store.pop(QUEUE, batch=9)) == [3]


async def test_young_messages_and_queues_without_the_option_are_left_alone(store: Store) -> None:
    await store.configure(QUEUE, maxWaitTimeSeconds=60)
    await store.pop(QUEUE)
    await push(store, 1)
    await push(store, 1, queue="other")
    await store.pop("other", "g", partition="nowhere")
    await age_messages(store.pool, 55, QUEUE)
    await age_messages(store.pool, 10_000, "other")
    assert await evicted(store) == []
    assert numbers(await store.pop(QUEUE)) == [1]


async def test_a_message_is_evicted_only_for_the_group_that_has_not_consumed_it(store: Store) -> None:
    await waiting(store, 1, 2, group="slow")
    assert len((await store.pop(QUEUE, "fast", batch=9, auto_ack=True)).messages()) == 2
    assert await evicted(store) == [Evicted(QUEUE, "slow", "p", 2)]
    rows = await store.pool.fetch("select consumer_group from queen.dead_letter_queue")
    assert [row["consumer_group"] for row in rows] == ["slow", "slow"]


async def test_a_live_lease_protects_its_messages_and_an_expired_one_does_not(store: Store) -> None:
    await waiting(store, 1, 2, 3)
    won = await claim(store, 2)
    assert await evicted(store) == []
    await expire_leases(store.pool)
    assert await evicted(store) == [Evicted(QUEUE, QUEUE_MODE, "p", 3)]
    assert not await ack(store, won, 2)
    row = await cursor(store)
    assert (row["lease_id"], row["lease_to"], row["lease_expires_at"]) == (None, None, None)


async def test_a_repeated_ack_of_an_ended_lease_does_not_claim_an_evicted_message(store: Store) -> None:
    """Message 1 failed and holds the cursor, so 2 was refused; once 2 is evicted, its ack must not be accepted."""
    await waiting(store, 1, 2)
    won = await claim(store, 2)
    verdicts = [ack_of(won, 1, "failed"), ack_of(won, 2)]
    assert [result.success for result in await store.ack(verdicts)] == [True, False]
    assert await evicted(store) == [Evicted(QUEUE, QUEUE_MODE, "p", 2)]
    assert not await ack(store, won, 2)


async def test_an_expired_lease_does_not_count_against_the_messages_that_stay(store: Store) -> None:
    await waiting(store, 1)
    await push(store, 2)
    await claim(store, 2)
    await expire_leases(store.pool)
    await evict_all(store)
    again = (await store.pop(QUEUE, batch=9)).claims[0]
    assert ([int(message.payload) for message in again.messages()], again.attempt) == ([2], 1)


async def test_failures_are_told_and_forgotten(store: Store) -> None:
    await waiting(store, 1, retryDelay=10_000_000)
    assert await ack(store, await claim(store), 1, "failed")
    await evict_all(store)
    assert await dead_letters(store) == [(1, 1, ERROR)]
    assert (await cursor(store))["retries"] is None


async def test_retries_of_messages_that_stay_are_kept(store: Store) -> None:
    await waiting(store, 1)
    await push(store, 2)
    won = await claim(store, 2)
    await store.ack([ack_of(won, 1, "failed"), ack_of(won, 2, "failed")])
    await evict_all(store)
    await pass_retry_delays(store.pool)
    assert (await claim(store)).attempt == 2


class TestReadiness:
    async def test_a_partition_that_lost_everything_is_drained_and_wakes_again(self, store: Store) -> None:
        await waiting(store, 1)
        await evict_all(store)
        assert (await cursor(store))["ready_at"] is None
        await push(store, 2)
        assert numbers(await store.pop(QUEUE)) == [2]

    async def test_what_is_left_is_ready_at_once(self, store: Store) -> None:
        await waiting(store, 1, retryDelay=10_000_000)
        assert await ack(store, await claim(store), 1, "failed")
        await push(store, 2)
        await evict_all(store)
        assert numbers(await store.pop(QUEUE)) == [2]

    async def test_a_push_in_flight_is_not_slept_through(self, store: Store, other: asyncpg.Connection) -> None:
        await waiting(store, 1)
        async with other.transaction():
            await other.execute("insert into queen.messages (queue, partition, payload) values ($1, 'p', '2')", QUEUE)
            assert await evicted(store) == [Evicted(QUEUE, QUEUE_MODE, "p", 1)]
            assert (await cursor(store))["ready"]
        assert numbers(await store.pop(QUEUE)) == [2]


class TestPositions:
    async def test_a_group_that_starts_later_is_not_given_what_came_before(self, store: Store) -> None:
        await store.configure(QUEUE, maxWaitTimeSeconds=60)
        await push(store, 1)
        await age_messages(store.pool, 1000)
        await push(store, 2)
        await age_messages(store.pool, 61)
        start = await store.pool.fetchval("select clock_timestamp() - interval '10 minutes'")
        await store.pool.execute("select * from queen.register_group_v1($1, 'late', 'timestamp', $2)", QUEUE, start)
        assert await evicted(store) == [Evicted(QUEUE, "late", "p", 1)]
        assert await dead_letters(store) == [(2, 0, ERROR)]
        assert (await cursor(store, group="late"))["start_from"] is None

    async def test_a_group_whose_start_is_open_is_left_alone(self, store: Store) -> None:
        await store.configure(QUEUE, maxWaitTimeSeconds=60)
        await push(store, 1)
        await store.pop(QUEUE, "g", partition="Default")
        await age_messages(store.pool, 61)
        assert await evicted(store) == []
        assert numbers(await store.pop(QUEUE, "g", partition="p")) == [1]

    async def test_what_outlived_its_ttl_is_not_dead_lettered(self, store: Store) -> None:
        await waiting(store, 1, ttl=100)
        await age_messages(store.pool, 61)
        await push(store, 2)
        await age_messages(store.pool, 61)
        assert await evicted(store) == [Evicted(QUEUE, QUEUE_MODE, "p", 1)]
        assert await dead_letters(store) == [(2, 0, ERROR)]

    async def test_the_cursor_never_moves_backwards(self, store: Store) -> None:
        await waiting(store, 1, 2)
        assert len((await store.pop(QUEUE, batch=9, auto_ack=True)).messages()) == 2
        assert await evicted(store) == []
        assert (await cursor(store))["acked_seq"] == 2


async def test_a_queue_without_groups_gets_queue_mode(store: Store) -> None:
    await store.configure(QUEUE, maxWaitTimeSeconds=60)
    await push(store, 1)
    await push(store, 1, partition="q")
    await age_messages(store.pool, 61)
    assert await evicted(store) == [Evicted(QUEUE, QUEUE_MODE, None, 2)]
    assert len(await dead_letters(store)) == 2


async def test_a_queue_without_overdue_messages_gets_no_group(store: Store) -> None:
    await store.configure(QUEUE, maxWaitTimeSeconds=60)
    await push(store, 1)
    await evict_all(store)
    assert await store.pool.fetchval("select count(*) from queen.consumer_groups_metadata") == 0


@pytest.mark.parametrize("dead_letters_on", [None, True, False])
async def test_the_audit_tells_it_also_where_dead_letters_are_off(store: Store, dead_letters_on: bool | None) -> None:
    await waiting(store, 1, 2, deadLetterQueue=dead_letters_on)
    await evict_all(store)
    rows = await store.pool.fetch(
        "select kind, queue_name, partition_name, consumer_group, messages from queen.retention_history order by kind"
    )
    discarded = [("discarded", QUEUE, "p", QUEUE_MODE, 1)] * 2 if dead_letters_on is False else []
    assert [tuple(row) for row in rows] == [*discarded, ("evicted", QUEUE, "p", QUEUE_MODE, 2)]
    assert len(await dead_letters(store)) == (0 if dead_letters_on is False else 2)


class TestSteps:
    async def test_a_step_evicts_no_more_than_a_batch_and_a_pass_evicts_all(self, store: Store) -> None:
        await store.configure(QUEUE, maxWaitTimeSeconds=60)
        for group in ("a", "b"):
            await store.pop(QUEUE, group)
        for number in range(3):
            await push(store, *range(5), partition=f"p{number}")
        await age_messages(store.pool, 61)
        steps = await evict_all(store, batch=4)
        assert {step.messages for step in steps} <= {4, 2, 0}
        assert sum(step.messages for step in steps) == 30
        assert await store.pool.fetchval("select count(*) from queen.dead_letter_queue") == 30

    async def test_a_pass_looks_at_every_partition_a_few_at_a_time(self, store: Store) -> None:
        await waiting(store, 1)
        for number in range(5):
            await push(store, 1, partition=f"p{number}")
        await age_messages(store.pool, 61)
        assert sum(step.messages for step in await evict_all(store, partitions=2)) == 6


class TestBesideOthers:
    @pytest.mark.parametrize(
        "holding", ["select from queen.queues for update", "select from queen.partition_consumers for update"]
    )
    async def test_what_others_hold_is_not_waited_for(
        self, store: Store, other: asyncpg.Connection, holding: str
    ) -> None:
        await waiting(store, 1)
        async with other.transaction():
            await other.execute(holding)
            assert await evicted(store) == []
        assert len(await evicted(store)) == 1

    async def test_each_message_is_either_acked_or_dead_lettered(self, store: Store) -> None:
        """No lease expires here, so no message may be both, and none may be neither."""
        await store.configure(QUEUE, maxWaitTimeSeconds=60)
        await store.pop(QUEUE)
        total = 300
        done: set[tuple[str, int]] = set()

        async def write() -> None:
            for number in range(total // 6):
                await push(store, *range(3), partition=f"p{number % 4}")
                await push(store, *range(3), partition=f"p{number % 3}")

        async def read() -> None:
            while not finished.is_set():
                for won in (await store.pop(QUEUE, batch=2, partitions=2)).claims:
                    item = AckItem(won.partition_uid, seq=won.to_seq, lease_id=won.lease_id)
                    assert (await store.ack([item]))[0].success
                    done.update((won.partition, message.seq) for message in won.messages())

        async def remove() -> None:
            while not finished.is_set():
                await store.pool.execute(
                    "update queen.segments set created_at = created_at - interval '100 s' where partition_id % 2 = 0"
                )
                await evict_all(store, batch=5)

        async def watch() -> None:
            while not finished.is_set():
                await asyncio.sleep(0.01)
                if await settled() == total:
                    finished.set()

        async def settled() -> int:
            return int(await store.pool.fetchval("select coalesce(sum(acked_seq), 0) from queen.partition_consumers"))

        finished = asyncio.Event()
        await asyncio.gather(write(), *[read() for _ in range(3)], remove(), watch())
        rows = await store.pool.fetch("select partition_name, seq from queen.dead_letter_queue")
        dead = {(row["partition_name"], row["seq"]) for row in rows}
        assert dead
        assert done
        assert not dead & done
        assert len(dead | done) == total
        assert await store.pool.fetch("select * from queen.partition_lookup_check()") == []
