"""Streaming reads: nothing skipped, nothing twice, whatever commits late, restarts or is new."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from queenmq.domain.segments import PushItem
from queenmq.spark.errors import DataLoss, OptionError
from queenmq.spark.positions import release_holds
from queenmq.storage import holds
from queenmq.storage.groups import describe
from queenmq.storage.store import Store
from tests.spark.reading import Rows, between, places, step, stream
from tests.storage.retaining import EXPIRED, trim
from tests.storage.time_travel import age_messages

INSERT = "insert into queen.messages (queue, partition, payload) values ($1, $2, '{}')"


@pytest.fixture
async def late(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def push(queue: Store, count: int, partition: str = "p", name: str = "orders", size: int = 2) -> None:
    payload = b'"' + b"x" * (size - 2) + b'"'
    await queue.push([PushItem(queue=name, partition=partition, payload=payload) for _ in range(count)])


class TestSteps:
    async def test_each_message_once_and_nothing_when_there_is_nothing(self, database: str, queue: Store) -> None:
        source = stream(database)
        start = source.initialOffset()
        assert step(source, start) == ([], start)
        await push(queue, 3)
        first, middle = step(source, start)
        await push(queue, 2)
        await push(queue, 1, "q")
        second, end = step(source, middle)
        assert places(first) == [("orders", "p", seq) for seq in (1, 2, 3)]
        assert sorted(places(second)) == [("orders", "p", 4), ("orders", "p", 5), ("orders", "q", 1)]
        assert step(source, end) == ([], end)
        assert (start["position"], middle["position"], end["position"]) == (0, 3, 6)

    async def test_a_batch_is_the_same_after_a_restart_whatever_was_pushed_since(
        self, database: str, queue: Store
    ) -> None:
        source = stream(database)
        start = source.initialOffset()
        await push(queue, 5)
        rows, end = step(source, start)
        await push(queue, 5)
        restarted = stream(database)
        assert between(restarted, start, end) == rows
        assert [row["seq"] for row in step(restarted, end)[0]] == [6, 7, 8, 9, 10]

    async def test_a_plan_that_was_thrown_away_changes_nothing(self, database: str, queue: Store) -> None:
        source = stream(database)
        start = source.initialOffset()
        await push(queue, 2)
        step(source, start)
        await push(queue, 2)
        rows, _ = step(stream(database), start)
        assert [row["seq"] for row in rows] == [1, 2, 3, 4]

    async def test_new_partitions_and_new_queues_of_a_pattern_are_read(self, database: str, queue: Store) -> None:
        source = stream(database, queue="or*")
        await push(queue, 1)
        _, at = step(source, source.initialOffset())
        await push(queue, 1, "new")
        await push(queue, 1, name="organs")
        await push(queue, 1, name="other")
        rows, _ = step(source, at)
        assert sorted(places(rows)) == [("orders", "new", 1), ("organs", "p", 1)]

    async def test_a_deleted_queue_is_forgotten_and_its_successor_is_new(self, database: str, queue: Store) -> None:
        source = stream(database)
        await push(queue, 3)
        _, at = step(source, source.initialOffset())
        await queue.delete_queue("orders")
        assert step(source, at) == ([], at)
        await push(queue, 2)
        rows, end = step(source, at)
        assert [row["seq"] for row in rows] == [1, 2]
        assert source.reportLatestOffset() == {"position": end["position"]}

    async def test_where_it_starts(self, database: str, queue: Store) -> None:
        await push(queue, 2)
        await push(queue, 2)
        middle = datetime.now().astimezone()
        await push(queue, 2)
        sources = {
            "latest": stream(database, startingOffsets="latest"),
            "time": stream(database, startingOffsets=middle.isoformat()),
            "map": stream(database, startingOffsets='{"orders": {"p": 4}}'),
            "earliest": stream(database),
        }
        starts = {name: source.initialOffset() for name, source in sources.items()}
        await push(queue, 1)
        await push(queue, 1, "new")
        seqs = {name: sorted(places(step(sources[name], start)[0])) for name, start in starts.items()}
        new = ("orders", "new", 1)
        assert seqs["latest"] == [new, ("orders", "p", 7)]
        assert seqs["time"] == [new, *(("orders", "p", seq) for seq in (5, 6, 7))]
        assert seqs["map"] == [new, *(("orders", "p", seq) for seq in (4, 5, 6, 7))]
        assert len(seqs["earliest"]) == 8

    async def test_a_queue_that_is_not_there_yet_is_warned_of_once_and_read_later(
        self, database: str, queue: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = stream(database, queue="orders")
        _, start = step(source, source.initialOffset())
        await push(queue, 2)
        rows, _ = step(source, start)
        assert places(rows) == [("orders", "p", 1), ("orders", "p", 2)]
        assert caplog.messages == ["there is no queue 'orders': it is read when it is there"]

    def test_a_stream_has_no_end(self, database: str) -> None:
        with pytest.raises(OptionError, match="endingOffsets"):
            stream(database, endingOffsets="2025-01-01")


class TestLimits:
    async def test_at_most_so_many_messages(self, database: str, queue: Store) -> None:
        source = stream(database, maxMessagesPerTrigger=4)
        assert source.getDefaultReadLimit() == ReadMaxRows(4)
        at = source.initialOffset()
        await push(queue, 9)
        await push(queue, 1, "q")
        sizes = []
        while (rows := step(source, at))[0]:
            sizes.append(len(rows[0]))
            at = rows[1]
            assert source.reportLatestOffset() == {"position": 10}
        assert sizes == [4, 4, 2]

    async def test_about_so_many_bytes(self, database: str, queue: Store) -> None:
        source = stream(database, maxBytesPerTrigger="4k")
        assert source.getDefaultReadLimit() == ReadMaxBytes(4096)
        at = source.initialOffset()
        await push(queue, 20, size=1000)
        await push(queue, 1, "q", size=100_000)
        seen = []
        while (rows := step(source, at))[0]:
            seen.append(sum(len(row["payload"]) for row in rows[0] if row["partition"] == "p"))
            at = rows[1]
        assert sum(seen) == 20_000
        assert max(seen) <= 4096

    async def test_without_a_limit_everything(self, database: str, queue: Store) -> None:
        source = stream(database)
        assert source.getDefaultReadLimit() == ReadAllAvailable()
        at = source.initialOffset()
        await push(queue, 500)
        assert len(step(source, at)[0]) == 500

    async def test_available_now_stops_at_what_was_there_when_it_began(self, database: str, queue: Store) -> None:
        source = stream(database, maxMessagesPerTrigger=3)
        at = source.initialOffset()
        await push(queue, 4)
        source.prepareForTriggerAvailableNow()
        await push(queue, 4)
        await push(queue, 1, "new")
        rows: Rows = []
        while (found := step(source, at))[0]:
            rows, at = [*rows, *found[0]], found[1]
        assert [row["seq"] for row in rows] == [1, 2, 3, 4]
        again = stream(database, maxMessagesPerTrigger=3)
        again.prepareForTriggerAvailableNow()
        assert len(step(again, at)[0]) == 3


class TestLateCommits:
    async def test_a_push_that_commits_late_is_read_after_those_that_overtook_it(
        self, database: str, queue: Store, late: asyncpg.Connection
    ) -> None:
        source = stream(database)
        await push(queue, 1, "a")
        await push(queue, 1, "late")
        _, at = step(source, source.initialOffset())
        transaction = late.transaction()
        await transaction.start()
        await late.execute(INSERT, "orders", "late")
        await push(queue, 1, "a")
        rows, at = step(source, at)
        assert places(rows) == [("orders", "a", 2)]
        assert step(source, at)[0] == []
        await transaction.commit()
        rows, at = step(source, at)
        assert places(rows) == [("orders", "late", 2)]

    async def test_random_late_commits_are_never_skipped(self, database: str, queue: Store) -> None:
        """Sixteen transactions at a time write to five partitions and commit when they like, while a stream reads."""
        source = stream(database, maxMessagesPerTrigger=40)
        at = source.initialOffset()
        pause = random.Random(5)
        pushed = 0
        for number in range(5):
            await push(queue, 1, f"p{number}")

        async def writer(number: int) -> None:
            nonlocal pushed
            connection = await asyncpg.connect(database)
            try:
                for _ in range(8):
                    async with connection.transaction():
                        await connection.execute(INSERT, "orders", f"p{(number + pushed) % 5}")
                        await asyncio.sleep(pause.random() / 50)
                    pushed += 1
            finally:
                await connection.close()

        writers = asyncio.gather(*(writer(number) for number in range(16)))
        rows: Rows = []
        while True:
            done = writers.done()
            found, at = await asyncio.to_thread(step, source, at)
            rows += found
            if done and not found:
                break
        await writers
        assert pushed == 128
        assert len({(row["partition"], row["seq"]) for row in rows}) == len(rows) == 133
        for partition in {row["partition"] for row in rows}:
            seqs = [row["seq"] for row in rows if row["partition"] == partition]
            assert seqs == list(range(1, len(seqs) + 1))


class TestRetention:
    async def trim(self, late: asyncpg.Connection, upto: int) -> None:
        await late.execute("delete from queen.segments where last_seq <= $1", upto)
        await late.execute("update queen.partition_lookup set trimmed_seq = $1", upto)

    async def test_a_gap_fails_the_batch_or_is_warned_of(
        self, database: str, queue: Store, late: asyncpg.Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = stream(database)
        start = source.initialOffset()
        for _ in range(3):
            await push(queue, 2)
        await self.trim(late, 4)
        with pytest.raises(DataLoss, match="has lost the messages 1 to 4"):
            step(source, start)
        rows, _ = step(stream(database, failOnDataLoss="false"), start)
        assert [row["seq"] for row in rows] == [5, 6]
        assert "has lost the messages 1 to 4" in caplog.text

    async def test_a_stream_that_starts_after_it_has_lost_nothing(
        self, database: str, queue: Store, late: asyncpg.Connection
    ) -> None:
        for _ in range(3):
            await push(queue, 2)
        await self.trim(late, 4)
        source = stream(database)
        assert [row["seq"] for row in step(source, source.initialOffset())[0]] == [5, 6]


class TestGroup:
    async def test_progress_is_that_of_a_group(self, database: str, queue: Store) -> None:
        source = stream(database, consumerGroup="lake")
        await push(queue, 3)
        await push(queue, 2, name="other")
        start = source.initialOffset()
        _, at = step(source, start)
        await push(queue, 4)
        source.commit(at)
        lags = {name: [lag.lag for lag in found] for name, found in (await describe(queue.pool, "lake")).items()}
        assert lags == {"orders": [4], "other": [0]}
        _, at = step(source, at)
        source.commit(at)
        assert [lag.lag for lag in (await describe(queue.pool, "lake"))["orders"]] == [0]

    async def test_a_stream_that_starts_at_the_end_is_not_behind(self, database: str, queue: Store) -> None:
        await push(queue, 3)
        source = stream(database, consumerGroup="lake", startingOffsets="latest")
        step(source, source.initialOffset())
        assert [lag.lag for lag in (await describe(queue.pool, "lake"))["orders"]] == [0]

    async def test_it_never_goes_back(self, database: str, queue: Store) -> None:
        source = stream(database, consumerGroup="lake")
        await push(queue, 2)
        _, before = step(source, source.initialOffset())
        await push(queue, 1)
        _, at = step(source, before)
        source.commit(at)
        stream(database, consumerGroup="lake").commit(before)
        assert [lag.lag for lag in (await describe(queue.pool, "lake"))["orders"]] == [0]

    async def test_a_group_whose_consumers_hold_leases_is_refused(self, database: str, queue: Store) -> None:
        await push(queue, 3)
        await queue.pop("orders", "lake", batch=1, subscription_mode="all")
        source = stream(database, consumerGroup="lake")
        start = source.initialOffset()
        with pytest.raises(OptionError, match="option consumerGroup is 'lake'; it must be a group without consumers"):
            source.latestOffset(start, source.getDefaultReadLimit())
        other = stream(database, consumerGroup="another")
        assert len(step(other, other.initialOffset())[0]) == 3

    async def test_a_group_that_others_have_moved_is_warned_of(
        self, database: str, queue: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Consumers with autoAck hold no leases."""
        await push(queue, 3)
        await queue.pop("orders", "lake", batch=2, auto_ack=True, subscription_mode="all")
        source = stream(database, consumerGroup="lake")
        _, at = step(source, source.initialOffset())
        source.commit(at)
        assert [text.partition(":")[0] for text in caplog.messages] == [
            "consumer group 'lake' of queue 'orders' has other consumers"
        ]

    @pytest.mark.parametrize("auto_ack", [True, False])
    async def test_a_consumer_that_comes_later_is_warned_of_once(
        self, database: str, queue: Store, caplog: pytest.LogCaptureFixture, auto_ack: bool
    ) -> None:
        source = stream(database, consumerGroup="lake")
        at = source.initialOffset()
        for _ in range(3):
            await push(queue, 2)
            _, at = step(source, at)
            await queue.pop("orders", "lake", batch=1, auto_ack=auto_ack)
            source.commit(at)
        assert len([text for text in caplog.messages if "has other consumers" in text]) == 1

    async def test_a_stream_takes_its_own_progress_for_no_consumer(
        self, database: str, queue: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        at = stream(database, consumerGroup="lake").initialOffset()
        for _ in range(3):
            source = stream(database, consumerGroup="lake")
            await push(queue, 2)
            _, at = step(source, at)
            source.commit(at)
        assert "has other consumers" not in caplog.text


class TestHolds:
    async def released(self, queue: Store) -> datetime | None:
        [hold] = await holds.list_holds(queue.pool, "orders")
        return hold.released_to

    async def created(self, late: asyncpg.Connection, seq: int) -> datetime:
        found: datetime = await late.fetchval("select created_at from queen.messages where seq = $1", seq)
        return found

    async def age(self, late: asyncpg.Connection) -> None:
        """As if all that was said and pushed so far were ten seconds older."""
        await late.execute("update queen.read_positions set captured_at = captured_at - interval '10 s'")
        await late.execute("update queen.segments set created_at = created_at - interval '10 s'")

    async def test_what_is_committed_is_released_and_what_is_not_is_held(
        self, database: str, queue: Store, late: asyncpg.Connection
    ) -> None:
        source = stream(database, maxMessagesPerTrigger=2)
        await push(queue, 2)
        await holds.acquire(queue.pool, "orders", "lake")
        at = source.initialOffset()
        await push(queue, 2)
        await self.age(late)
        _, at = step(source, at)
        await asyncio.to_thread(release_holds, database, at["epoch"], "lake")
        released = await self.released(queue)
        assert released is not None
        assert await self.created(late, 2) <= released < await self.created(late, 3)

    async def test_everything_before_the_last_look_is_released_when_all_is_read(
        self, database: str, queue: Store, late: asyncpg.Connection
    ) -> None:
        source = stream(database)
        await push(queue, 2)
        await holds.acquire(queue.pool, "orders", "lake")
        at = source.initialOffset()
        await self.age(late)
        _, at = step(source, at)
        await asyncio.to_thread(release_holds, database, at["epoch"], "lake")
        released = await self.released(queue)
        assert released is not None
        assert await self.created(late, 2) <= released + timedelta(seconds=1)

    async def test_a_stopped_archive_keeps_its_messages_until_the_cap_and_then_says_what_it_lost(
        self, database: str, queue: Store
    ) -> None:
        await queue.configure("orders", **EXPIRED)
        await push(queue, 2)
        source = stream(database)
        start = source.initialOffset()
        await holds.acquire(queue.pool, "orders", "lake", cap_seconds=7200)
        await age_messages(queue.pool, 3600)
        await trim(queue)
        assert [row["seq"] for row in step(source, start)[0]] == [1, 2]
        await age_messages(queue.pool, 3601)
        await trim(queue)
        [hold] = await holds.list_holds(queue.pool, "orders")
        assert hold.overrun_at is not None
        await push(queue, 1)
        with pytest.raises(DataLoss, match="has lost the messages 1 to 2"):
            step(stream(database), start)

    async def test_a_push_that_may_still_commit_is_held(
        self, database: str, queue: Store, late: asyncpg.Connection
    ) -> None:
        """Its time is before that of messages which are read and committed already."""
        other = await asyncpg.connect(database)
        source = stream(database)
        await push(queue, 1)
        await push(queue, 1, "late")
        await holds.acquire(queue.pool, "orders", "lake")
        at = source.initialOffset()
        transaction = other.transaction()
        await transaction.start()
        await other.execute(INSERT, "orders", "late")
        for _ in range(3):
            await push(queue, 1)
            _, at = step(source, at)
            await self.age(late)
        await asyncio.to_thread(release_holds, database, at["epoch"], "lake")
        created = await other.fetchval("select max(created_at) from queen.messages where partition = 'late'")
        released = await self.released(queue)
        await transaction.commit()
        await other.close()
        assert released is None or released < created - timedelta(seconds=30)
        await push(queue, 1)
        rows, at = step(source, at)
        assert ("orders", "late", 2) in places(rows)


class TestConnection:
    async def test_one_that_broke_is_replaced(self, database: str, queue: Store, late: asyncpg.Connection) -> None:
        source = stream(database)
        at = source.initialOffset()
        await push(queue, 2)
        _, at = step(source, at)
        ended = await late.fetchval(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        assert ended >= 1
        other = await Store.open(database)
        await push(other, 3)
        await other.close()
        assert [row["seq"] for row in step(source, at)[0]] == [3, 4, 5]
        source.stop()

    async def test_a_task_gets_neither_the_connection_nor_the_positions(self, database: str, queue: Store) -> None:
        source = stream(database)
        at = source.initialOffset()
        for number in range(50):
            await push(queue, 1, f"p{number}")
        step(source, at)
        copy = pickle.loads(pickle.dumps(source))
        assert len(pickle.dumps(source)) < 2000
        assert [
            len(list(copy.read(part))) for part in source.partitions(at, source.latestOffset(at, ReadAllAvailable()))
        ]
