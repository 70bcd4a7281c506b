"""Retention: which messages go, which stay, in which steps, and what happens beside running traffic.

What every group has consumed is decided by sequence number, never by id.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import retention
from queenmq.storage.ack import AckItem
from queenmq.storage.pop import Claim
from queenmq.storage.retention import Removed
from queenmq.storage.store import Store
from tests.storage.retaining import (
    COMPLETED,
    EXPIRED,
    age_segments,
    consistent,
    consume,
    history,
    lookup,
    stored,
    trim,
    trimmed,
)
from tests.storage.shorthand import DAY, QUEUE, ack, claim, cursor, numbers, push
from tests.storage.time_travel import age_messages
from tests.storage.waiting import is_waiting


class TestExpired:
    async def test_old_messages_go_consumed_or_not(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1, 2)
        await push(store, 3)
        await consume(store, 1)
        await age_messages(store.pool, 61)
        await push(store, 4)
        assert await trimmed(store) == [Removed(QUEUE, "expired", "p", 3, 2)]
        assert await stored(store) == [4]
        assert numbers(await store.pop(QUEUE, batch=9)) == [4]
        await consistent(store)

    async def test_young_messages_stay(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1)
        await age_messages(store.pool, 55)
        assert await trimmed(store) == []
        assert await stored(store) == [1]

    @pytest.mark.parametrize("options", [{}, {"retentionSeconds": 60}, {"retentionEnabled": True}])
    async def test_nothing_goes_by_default_or_by_half_of_the_switches(
        self, store: Store, options: dict[str, Any]
    ) -> None:
        await store.configure(QUEUE, **options)
        await push(store, 1)
        await age_messages(store.pool, 1000 * DAY)
        assert await trimmed(store) == []
        assert await stored(store) == [1]

    async def test_ttl_needs_no_switch_and_zero_is_off(self, store: Store) -> None:
        await store.configure(QUEUE, ttl=60)
        await store.configure("off", ttl=0)
        await push(store, 1)
        await push(store, 1, queue="off")
        await age_messages(store.pool, 61)
        assert await trimmed(store) == [Removed(QUEUE, "ttl", "p", 1, 1)]
        assert await stored(store) == []
        assert await stored(store, queue="off") == [1]

    async def test_a_partition_that_lost_everything_goes_on_counting(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1, 2)
        await consume(store, 1)
        await age_messages(store.pool, 61)
        await trim(store)
        assert (await store.pop(QUEUE)).messages() == []
        assert (await cursor(store))["ready_at"] is None
        await push(store, 3)
        assert await stored(store) == [3]
        assert numbers(await store.pop(QUEUE)) == [3]

    async def test_the_lookup_row_says_what_was_trimmed(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1, 2)
        await age_messages(store.pool, 61)
        newest = (await lookup(store))["last_message_created_at"]
        await push(store, 3)
        await trim(store)
        row = await lookup(store)
        assert (row["trimmed_seq"], row["trimmed_at"], row["last_seq"]) == (2, newest, 3)
        await trim(store)
        assert (await lookup(store))["trimmed_seq"] == 2

    async def test_a_live_lease_does_not_keep_expired_messages_and_its_ack_still_counts(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1, 2)
        won = await claim(store)
        await age_messages(store.pool, 61)
        await trim(store)
        assert await ack(store, won, 2)
        assert (await cursor(store))["acked_seq"] == 2


class TestCompleted:
    async def test_only_what_every_group_has_consumed_goes(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        for number in range(1, 5):
            await push(store, number)
        await consume(store, 3, "fast")
        await consume(store, 1, "slow")
        await age_messages(store.pool, 61)
        assert await trimmed(store) == [Removed(QUEUE, "completed", "p", 1, 1)]
        await consume(store, 1, "slow")
        assert await trimmed(store) == [Removed(QUEUE, "completed", "p", 1, 1)]
        assert await stored(store) == [3, 4]

    async def test_a_segment_consumed_in_part_stays(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1, 2, 3)
        await consume(store, 2)
        await age_messages(store.pool, 61)
        assert await trimmed(store) == []

    async def test_delivered_is_not_consumed(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1)
        won = await claim(store)
        await age_messages(store.pool, 61)
        assert await trimmed(store) == []
        assert await ack(store, won, 1)
        assert [removed.messages for removed in await trimmed(store)] == [1]

    async def test_consumed_but_young_stays(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1)
        await consume(store, 1)
        assert await trimmed(store) == []

    async def test_young_ones_behind_old_ones_stay(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1)
        await age_messages(store.pool, 61)
        await push(store, 2)
        await consume(store, 2)
        await trim(store)
        assert await stored(store) == [2]

    async def test_a_queue_without_groups_has_nothing_completed(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1)
        await age_messages(store.pool, DAY)
        assert await trimmed(store) == []

    async def test_a_group_whose_start_is_not_resolved_has_consumed_nothing(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1)
        await push(store, 1, partition="other")
        await store.pop(QUEUE, "g", partition="other", auto_ack=True)
        await store.pool.execute("update queen.partition_consumers set acked_seq = 1 where start_from is not null")
        await age_messages(store.pool, 61)
        assert [removed.partition for removed in await trimmed(store)] == ["other"]
        assert await stored(store) == [1]

    async def test_a_deleted_group_no_longer_counts(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1)
        await consume(store, 1, "a")
        await store.pop(QUEUE, "b")
        await age_messages(store.pool, 61)
        assert await trimmed(store) == []
        await store.pool.execute("select queen.delete_group_v1('b', $1, false)", QUEUE)
        assert [removed.messages for removed in await trimmed(store)] == [1]

    async def test_a_group_that_registers_while_a_step_runs_loses_nothing(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        """The step has chosen the partition while the registration holds its row: it must look again afterwards."""
        await store.configure(QUEUE, **COMPLETED)
        await push(store, 1)
        await consume(store, 1, "a")
        await age_messages(store.pool, 61)
        async with other.transaction():
            await other.execute("select * from queen.register_group_v1($1, 'late', 'all', null)", QUEUE)
            step = asyncio.create_task(retention.trim(store.pool, batch=10))
            assert await is_waiting(store, step)
        assert (await step).removed == ()
        assert numbers(await store.pop(QUEUE, "late")) == [1]


class TestSteps:
    async def test_a_step_removes_no_more_than_a_batch_and_a_pass_removes_all(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        for number in range(30):
            await push(store, number, number, partition=f"p{number % 3}")
        await age_messages(store.pool, 61)
        steps = await trim(store, batch=4)
        assert {step.messages for step in steps} <= {4, 0}
        assert sum(step.messages for step in steps) == 60
        await consistent(store)

    async def test_a_segment_larger_than_a_batch_goes_as_a_whole(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, *range(10))
        await push(store, 11)
        await age_messages(store.pool, 61)
        assert [step.messages for step in await trim(store, batch=3)] == [10, 1]

    async def test_a_pass_looks_at_every_partition_a_few_at_a_time(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        for number in range(7):
            await push(store, 1, partition=f"p{number}")
        await age_messages(store.pool, 61)
        steps = await trim(store, partitions=2)
        assert [step.messages for step in steps][:4] == [1, 2, 2, 2]  # Default comes first, and has nothing
        assert await store.pool.fetchval("select count(*) from queen.segments") == 0

    async def test_the_audit_has_one_row_per_step_queue_and_kind(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await store.configure("other", ttl=60)
        for number in range(4):
            await push(store, number, partition=f"p{number % 2}")
        await push(store, 1, 2, queue="other")
        await age_messages(store.pool, 61)
        await trim(store)
        assert sorted(await history(store), key=str) == [("expired", QUEUE, None, 4), ("ttl", "other", "p", 2)]

    async def test_the_kinds_of_one_partition_are_told_apart(self, store: Store) -> None:
        await store.configure(QUEUE, retentionEnabled=True, completedRetentionSeconds=10, retentionSeconds=60)
        for number in range(1, 4):
            await push(store, number)
        await consume(store, 1)
        await age_messages(store.pool, 61)
        assert {(removed.kind, removed.messages) for removed in await trimmed(store)} == {
            ("completed", 1),
            ("expired", 2),
        }


class TestBesideOthers:
    async def test_a_busy_partition_is_left_out_and_the_next_step_waits_for_it(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        await store.configure(QUEUE, **EXPIRED)
        for number in range(3):
            await push(store, 1, partition=f"p{number}")
        await age_messages(store.pool, 61)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("insert into queen.messages (queue, partition, payload) values ($1, 'p1', '2')", QUEUE)
        first = await retention.trim(store.pool, batch=10)
        assert first.messages == 2
        assert first.next_after is not None
        second = asyncio.create_task(retention.trim(store.pool, batch=10, after=first.next_after))
        assert await is_waiting(store, second)
        await transaction.commit()
        assert (await second).messages == 1
        assert await stored(store, "p1") == [2]
        await consistent(store)

    async def test_a_partition_that_stays_busy_does_not_stop_the_pass(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        await store.configure(QUEUE, **EXPIRED)
        for number in range(3):
            await push(store, 1, partition=f"p{number}")
        await age_messages(store.pool, 61)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("insert into queen.messages (queue, partition, payload) values ($1, 'p1', '2')", QUEUE)
        assert sum(step.messages for step in await trim(store)) == 2
        await transaction.rollback()
        assert sum(step.messages for step in await trim(store)) == 1

    async def test_a_queue_that_is_being_deleted_is_left_alone(self, store: Store, other: asyncpg.Connection) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1)
        await age_messages(store.pool, 61)
        async with other.transaction():
            await other.execute("select queen.delete_queue_v1($1)", QUEUE)
            assert await trimmed(store) == []

    async def test_nothing_unconsumed_goes_while_others_push_and_consume(self, store: Store) -> None:
        """Only completed retention is on: every message is delivered, however retention runs beside."""
        await store.configure(QUEUE, **COMPLETED, leaseTime=60)
        await asyncio.gather(*[store.pop(QUEUE, group) for group in ("a", "b")])
        per_writer, writers = 60, 4
        seen: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}
        total = per_writer * writers * 3
        done = asyncio.Event()

        async def write(writer: int) -> None:
            for number in range(per_writer):
                await store.push(
                    [PushItem(QUEUE, b"1", f"p{(number + n) % 5}", f"{writer}-{number}-{n}") for n in range(3)]
                )

        async def read(group: str) -> None:
            while len(seen[group]) < total:
                for won in (await store.pop(QUEUE, group, batch=7, partitions=2)).claims:
                    if await acked(store, won, group):
                        seen[group] += [(won.partition, message.seq) for message in won.messages()]

        async def retain() -> int:
            removed = 0
            while not done.is_set():
                await age_segments(store)
                removed += sum(step.messages for step in await trim(store, batch=20))
            return removed

        retaining = asyncio.create_task(retain())
        await asyncio.gather(*[write(n) for n in range(writers)], *[read(g) for g in ("a", "a", "b", "b")])
        done.set()
        removed = await retaining
        for group in ("a", "b"):
            assert len(seen[group]) == len(set(seen[group])) == total
        assert removed + sum(step.messages for step in await trim(store)) > 0
        await age_messages(store.pool, 100)
        await trim(store)
        assert await store.pool.fetchval("select count(*) from queen.segments") == 0
        await consistent(store)


async def acked(store: Store, won: Claim, group: str) -> bool:
    result = await store.ack([AckItem(won.partition_uid, seq=won.to_seq, group=group, lease_id=won.lease_id)])
    return result[0].success


class TestOldRows:
    async def test_traces_and_audit_rows_go_by_age_in_batches(self, store: Store) -> None:
        await push(store, 1)
        await store.pool.execute(
            "insert into queen.message_traces (id, queue_id, partition_uid, transaction_id, data, created_at)"
            " select gen_random_uuid(), q.queue_id, p.uid, 't', '{}', clock_timestamp() - make_interval(days => n)"
            " from queen.queues q join queen.partitions p using (queue_id), generate_series(0, 4) n"
        )
        await store.pool.execute("insert into queen.message_trace_names select 'name', id from queen.message_traces")
        await store.pool.execute(
            "insert into queen.retention_history (at, kind, queue_name, messages)"
            " select clock_timestamp() - make_interval(days => n), 'expired', 'q', 1 from generate_series(0, 4) n"
        )
        for forget, table in (
            (retention.forget_traces, "message_traces"),
            (retention.forget_history, "retention_history"),
        ):
            counts = [await forget(store.pool, older_than_seconds=1.5 * DAY, batch=2) for _ in range(3)]
            assert counts == [2, 1, 0]
            assert await store.pool.fetchval(f"select count(*) from queen.{table}") == 2
        assert await store.pool.fetchval("select count(*) from queen.message_trace_names") == 2
