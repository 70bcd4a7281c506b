"""What is out of reach is forgotten: transactionIds after their window, and all that deleted queues leave behind."""

from __future__ import annotations

import asyncpg

from queenmq.domain.segments import PushItem
from queenmq.storage import retention
from queenmq.storage.ack import AckItem
from queenmq.storage.pool import Executor
from queenmq.storage.store import Store
from tests.storage.retaining import COMPLETED, EXPIRED, consume, lookup, stored, trim
from tests.storage.shorthand import DAY, QUEUE, claim, push
from tests.storage.time_travel import age_messages, age_retention


class TestDedup:
    async def named(self, store: Store, *names: str, partition: str = "p") -> list[str]:
        verdicts = await store.push([PushItem(QUEUE, b"1", partition, name) for name in names])
        return [verdict.status for verdict in verdicts]

    async def sweep(self, db: Executor, blocks: int = 64) -> int:
        total, more = 0, True
        while more:
            step = await retention.sweep_dedup(db, blocks=blocks)
            total, more = total + step.removed, step.more
        return total

    async def test_a_transaction_id_is_remembered_for_the_window_after_its_message_is_gone(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=3600)
        names = [f"t{n}" for n in range(20)]
        await self.named(store, *names)
        await age_messages(store.pool, 61)
        await trim(store)
        assert await stored(store) == []
        assert await self.sweep(store.pool) == 0
        assert set(await self.named(store, *names)) == {"duplicate"}
        await age_retention(store.pool, 3600)
        await trim(store)
        assert (await lookup(store))["dedup_floor"] == 20
        assert await self.sweep(store.pool) == 20
        assert set(await self.named(store, *names)) == {"queued"}

    async def test_a_message_older_than_the_window_is_forgotten_as_it_goes(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=30)
        await self.named(store, "a", "b")
        await age_messages(store.pool, 61)
        await trim(store)
        assert (await lookup(store))["dedup_floor"] == 2

    async def test_the_floor_rises_although_trimming_never_pauses(self, store: Store) -> None:
        """Retention is shorter than the window, so what was trimmed last is always young."""
        await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=300)
        floors = []
        for minute in range(16):
            await self.named(store, f"t{minute}")
            await age_messages(store.pool, 61)
            await age_retention(store.pool, 61)
            await trim(store)
            floors.append((await lookup(store))["dedup_floor"])
        assert floors == sorted(floors)
        assert floors[3] == 0
        for minute, floor in enumerate(floors):
            assert floor == 0 or (minute - floor + 2) * 61 >= 300  # its age: never too early
        assert floors[-1] >= 16 - 2 * 300 / 61 - 2

    async def test_transaction_ids_of_stored_messages_are_kept_however_old(self, store: Store) -> None:
        await store.configure(QUEUE, **COMPLETED, dedupWindowSeconds=0)
        await self.named(store, *[f"t{n}" for n in range(20)])
        await self.named(store, *[f"u{n}" for n in range(20)])
        await consume(store, 20)
        await age_messages(store.pool, DAY)
        await trim(store)
        assert await self.sweep(store.pool) == 20
        assert set(await self.named(store, *[f"u{n}" for n in range(20)])) == {"duplicate"}
        assert await self.named(store, "t0") == ["queued"]

    async def test_the_key_of_a_segment_is_kept_while_a_part_of_it_is_stored(self, store: Store) -> None:
        """The deletion of message 2 cut the segment in two, and only the first half is completed."""
        await store.configure(QUEUE, **COMPLETED, dedupWindowSeconds=0)
        verdicts = await store.push([PushItem(QUEUE, b"%d" % n, "p") for n in range(1, 4)])
        await store.pool.execute("update queen.segments set n = 1, last_seq = 1, data = '1'")
        await store.pool.execute(
            "insert into queen.segments (partition_id, last_seq, created_at, n, base_idx, base, data)"
            " select partition_id, 3, created_at, 1, 2, base, '3' from queen.segments"
        )
        await consume(store, 1)
        await age_messages(store.pool, 61)
        await trim(store)
        row = await lookup(store)
        assert (row["trimmed_seq"], row["dedup_floor"]) == (1, 0)
        won = await claim(store)
        acks = [AckItem(won.partition_uid, transaction_id=verdicts[2].message_id, lease_id=won.lease_id)]
        assert (await store.ack(acks))[0].success
        await trim(store)
        assert (await lookup(store))["dedup_floor"] == 3

    async def test_a_sweep_goes_by_blocks_and_comes_to_an_end(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=0)
        for batch in range(5):
            await self.named(store, *[f"t{batch}-{n}" for n in range(100)])
        await age_messages(store.pool, 61)
        await trim(store)
        blocks = await store.pool.fetchval("select pg_relation_size('queen.dedup') / 8192")
        steps = [await retention.sweep_dedup(store.pool, blocks=1) for _ in range(blocks + 2)]
        assert [step.more for step in steps] == [True] * blocks + [False] * 2
        assert steps[0].removed == 0  # the first step only decides that a pass pays
        assert all(0 < step.removed < 200 for step in steps[1 : blocks + 1])
        assert await store.pool.fetchval("select count(*) from queen.dedup") == 0

    async def test_no_pass_begins_for_a_few(self, store: Store) -> None:
        await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=0)
        await store.push([PushItem("big", b"1", "p", f"t{n}") for n in range(3000)])
        await self.named(store, "a", "b")
        await age_messages(store.pool, 61)
        await trim(store)
        assert await retention.sweep_dedup(store.pool) == retention.SweepStep(0, False)


class TestDeletedQueues:
    async def test_messages_and_transaction_ids_of_a_deleted_queue_are_swept_in_steps(self, store: Store) -> None:
        for queue in (QUEUE, "kept"):
            for number in range(6):
                items = [PushItem(queue, b"1", f"p{number % 3}", f"{number}-{n}") for n in range(5)]
                await store.push(items)
        await store.delete_queue(QUEUE)
        steps = [await retention.sweep_orphans(store.pool, batch=10)]
        while steps[-1].more:
            steps.append(await retention.sweep_orphans(store.pool, batch=10))
        assert sum(step.removed for step in steps) == 30
        assert max(step.removed for step in steps) == 10
        assert await store.pool.fetchval("select sum(n) from queen.segments") == 30
        while (await retention.sweep_dedup(store.pool)).more:
            pass
        assert await store.pool.fetchval("select count(*) from queen.dedup") == 30
        assert len((await store.pop("kept", batch=50, partitions=9)).messages()) == 30

    async def test_without_a_deletion_nothing_is_looked_at(self, store: Store) -> None:
        await push(store, 1)
        pid = await store.pool.fetchval("select partition_id from queen.segments")
        await store.pool.execute("delete from queen.partitions where partition_id = $1", pid)
        assert await retention.sweep_orphans(store.pool, batch=10) == retention.SweepStep(0, False)
        assert await store.pool.fetchval("select count(*) from queen.segments") == 1

    async def test_a_deletion_during_a_pass_is_not_missed(self, store: Store) -> None:
        for queue in ("a", "b", "c"):
            await push(store, 1, queue=queue)
        await store.delete_queue("b")
        assert (await retention.sweep_orphans(store.pool, batch=1)).more
        await store.delete_queue("a")
        while (await retention.sweep_orphans(store.pool, batch=1)).more:
            pass
        assert await store.pool.fetchval("select count(*) from queen.segments") == 1

    async def test_a_deletion_that_commits_during_a_step_is_swept_by_the_next(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        for queue in ("a", "b"):
            await push(store, 1, queue=queue)
        await store.delete_queue("b")
        async with other.transaction():
            await other.execute("select queen.delete_queue_v1('a')")
            assert await retention.sweep_orphans(store.pool, batch=9) == retention.SweepStep(0, False)
        assert (await retention.sweep_orphans(store.pool, batch=9)).removed == 2
