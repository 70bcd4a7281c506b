"""Partitions that nobody uses are removed; what depends on one, or is about to use it, keeps it or loses nothing."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import retention
from queenmq.storage.store import Store
from tests.storage.retaining import COMPLETED, EXPIRED, age_segments, consistent, history, stored, trim
from tests.storage.shorthand import DAY, QUEUE, ack, claim, numbers, push
from tests.storage.time_travel import age_messages, age_retention, expire_leases, pass_time
from tests.storage.waiting import is_waiting


class TestIdlePartitions:
    async def remove(self, store: Store, days: int = 7, batch: int = 100, **more: int) -> list[str | None]:
        names: list[str | None] = []
        after: int | None = 0
        while after is not None:
            step = await retention.remove_idle_partitions(
                store.pool, idle_seconds=days * DAY, batch=batch, after=after, **more
            )
            after = step.next_after
            names += [removed.partition for removed in step.removed]
        return names

    async def drained(self, store: Store, *partitions: str, days: int = 8) -> None:
        """Partitions that were used and trimmed that long ago."""
        await store.configure(QUEUE, **EXPIRED)
        for partition in partitions:
            await push(store, 1, partition=partition)
        await store.pop(QUEUE, batch=100, partitions=100, auto_ack=True)
        await store.pop(QUEUE)
        await self.grow_old(store, days)
        await trim(store)

    async def grow_old(self, store: Store, days: int = 8) -> None:
        await pass_time(store.pool, days * DAY)
        await age_retention(store.pool, days * DAY)

    async def partitions(self, store: Store) -> set[str]:
        return {row["name"] for row in await store.pool.fetch("select name from queen.partitions")}

    async def test_a_partition_without_messages_and_activity_goes_with_its_rows(self, store: Store) -> None:
        await self.drained(store, "p")
        await push(store, 1, partition="used")
        await self.remove(store)
        assert await self.partitions(store) == {"used"}
        assert await store.pool.fetchval("select count(*) from queen.partition_lookup") == 1
        assert await store.pool.fetchval("select count(*) from queen.partition_consumers") == 1
        await consistent(store)

    async def test_its_next_push_makes_it_anew_and_every_group_gets_it(self, store: Store) -> None:
        await self.drained(store, "p")
        await store.pop(QUEUE, "new", subscription_mode="new")
        await self.remove(store)
        await push(store, 1)
        assert await stored(store) == [1]
        assert numbers(await store.pop(QUEUE)) == [1]
        assert numbers(await store.pop(QUEUE, "new")) == [1]

    async def test_young_partitions_stay(self, store: Store) -> None:
        await self.drained(store, "p", days=6)
        assert await self.remove(store) == []

    async def test_a_partition_with_messages_stays(self, store: Store) -> None:
        await push(store, 1)
        await self.grow_old(store)
        assert await self.remove(store) == []
        assert numbers(await store.pop(QUEUE)) == [1]

    @pytest.mark.parametrize("column", ["last_message_created_at", "last_consumed_at", "created_at"])
    async def test_each_kind_of_activity_keeps_it(self, store: Store, column: str) -> None:
        await self.drained(store, "p")
        table = {"last_message_created_at": "partition_lookup", "last_consumed_at": "partition_consumers"}.get(
            column, "partitions"
        )
        await store.pool.execute(f"update queen.{table} set {column} = clock_timestamp()")
        assert await self.remove(store) == []

    async def test_a_live_lease_keeps_it(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1)
        await claim(store)
        await age_messages(store.pool, 8 * DAY)
        await age_retention(store.pool, 8 * DAY)
        await trim(store)
        assert await stored(store) == []
        await self.remove(store)
        assert await self.partitions(store) == {"p"}
        await expire_leases(store.pool)
        await self.remove(store)
        assert await self.partitions(store) == set()

    async def test_the_dedup_window_keeps_it(self, store: Store) -> None:
        await self.drained(store, "p")
        await store.configure(QUEUE, dedupWindowSeconds=30 * DAY)
        assert await self.remove(store) == []

    async def test_the_state_of_a_stream_keeps_it(self, store: Store) -> None:
        await self.drained(store, "p")
        await store.pool.execute(
            "with q as (insert into queen.stream_queries (name, source_queue, config_hash)"
            " values ('s', $1, 'h') returning query_id)"
            " insert into queen.stream_state (query_id, partition_uid, key, value)"
            " select query_id, uid, 'k', '1' from q, queen.partitions where name = 'p'",
            QUEUE,
        )
        await self.remove(store)
        assert await self.partitions(store) == {"p"}

    async def test_a_position_that_the_next_first_pop_would_forget_keeps_it(self, store: Store) -> None:
        """The group takes only new messages of each partition it names: made anew, `p` would be new to it again."""
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1)
        await store.pop(QUEUE, "g", partition="p", subscription_mode="new")
        await self.grow_old(store)
        await trim(store)
        await self.remove(store)
        await push(store, 2)
        assert numbers(await store.pop(QUEUE, "g", partition="p", subscription_mode="new")) == [2]

    async def test_dead_letters_of_it_stay(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED)
        await push(store, 1)
        assert await ack(store, await claim(store), 1, "dlq")
        await self.grow_old(store)
        await trim(store)
        await self.remove(store)
        assert "p" not in await self.partitions(store)
        assert await store.pool.fetchval("select partition_name from queen.dead_letter_queue") == "p"

    async def test_its_transaction_ids_are_swept(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=7 * DAY)
        await store.push([PushItem(QUEUE, b"1", "p", f"t{n}") for n in range(20)])
        await age_messages(store.pool, 61)
        await trim(store)
        await self.grow_old(store)
        await self.remove(store)
        while (await retention.sweep_dedup(store.pool)).more:
            pass
        assert await store.pool.fetchval("select count(*) from queen.dedup") == 0

    async def test_a_step_removes_no_more_than_a_batch(self, store: Store) -> None:
        await self.drained(store, *[f"p{n}" for n in range(5)])
        step = await retention.remove_idle_partitions(store.pool, idle_seconds=7 * DAY, batch=2)
        assert [(removed.queue, removed.partition, removed.partitions) for removed in step.removed] == [
            (QUEUE, None, 2)
        ]
        assert step.next_after is not None
        await self.remove(store, partitions=1)
        assert await self.partitions(store) == set()
        assert ("partitions", QUEUE, None, 0) in await history(store)

    @pytest.mark.parametrize(
        "holding",
        [
            "select from queen.queues for no key update",
            "select from queen.partition_lookup for share",
            "select from queen.partition_consumers for update",
        ],
    )
    async def test_what_others_hold_is_not_waited_for(
        self, store: Store, other: asyncpg.Connection, holding: str
    ) -> None:
        await self.drained(store, "p")
        async with other.transaction():
            await other.execute(holding)
            assert await self.remove(store) == []
        assert await self.partitions(store) == {"Default", "p"}

    async def test_a_push_that_meets_the_removal_loses_nothing(self, store: Store, other: asyncpg.Connection) -> None:
        await self.drained(store, "p")
        async with other.transaction():
            await retention.remove_idle_partitions(other, idle_seconds=7 * DAY, batch=9)
            pushing = asyncio.create_task(push(store, 1))
            assert await is_waiting(store, pushing)
        await pushing
        assert await stored(store) == [1]
        assert numbers(await store.pop(QUEUE)) == [1]
        await consistent(store)

    async def test_a_push_between_the_look_and_the_lock_is_seen(self, store: Store, other: asyncpg.Connection) -> None:
        await self.drained(store, "p")
        await store.pool.execute("alter function queen.is_idle(bigint, timestamptz) rename to looks_idle")
        await store.pool.execute(
            "create function queen.is_idle(pid bigint, since timestamptz) returns boolean language plpgsql as $$"
            " declare idle boolean := queen.looks_idle(pid, since); begin if idle then"
            " perform pg_advisory_lock_shared(1); perform pg_advisory_unlock_shared(1); end if; return idle; end $$"
        )
        await other.execute("select pg_advisory_lock(1)")
        removing = asyncio.create_task(self.remove(store))
        assert await is_waiting(store, removing)
        await push(store, 2)
        await push(store, 2, partition="Default")
        await other.execute("select pg_advisory_unlock(1)")
        assert await removing == []
        assert numbers(await store.pop(QUEUE, partition="p")) == [2]

    async def test_pushes_and_removals_at_random_lose_nothing(self, store: Store) -> None:
        """Every partition is idle as soon as its messages are consumed and trimmed."""
        await store.configure(QUEUE, **COMPLETED, dedupWindowSeconds=0)
        await store.pop(QUEUE)
        done = asyncio.Event()

        async def remove() -> int:
            removed = 0
            while not done.is_set():
                await age_segments(store)
                await trim(store)
                removed += len(await self.remove(store, days=0))
            return removed

        async def write(writer: int) -> None:
            for number in range(30):
                await push(store, writer * 100 + number, partition=f"p{number % 2}-{writer}")

        async def read() -> list[int]:
            got: list[int] = []
            while len(got) < 90:
                got += numbers(await store.pop(QUEUE, batch=100, partitions=9, auto_ack=True))
            return got

        removing = asyncio.create_task(remove())
        reading = asyncio.create_task(read())
        await asyncio.gather(*[write(n) for n in range(3)])
        got = await reading
        done.set()
        assert await removing > 0
        assert sorted(got) == sorted(writer * 100 + number for writer in range(3) for number in range(30))
        await consistent(store)
