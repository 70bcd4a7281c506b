"""A stream that crashed before its first batch was committed reads that batch, whatever has changed since.

Spark has written down where the batch ends, not where the stream began. It asks for that again, and plans the batch
from the new answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from queenmq.domain.segments import PushItem
from queenmq.spark.errors import DataLoss
from queenmq.storage.groups import describe
from queenmq.storage.store import Store
from tests.spark.reading import between, step, stream
from tests.storage.retaining import EXPIRED, trim
from tests.storage.time_travel import age_messages


async def push(queue: Store, count: int) -> None:
    """Each message in a segment of its own: retention removes whole ones."""
    for _ in range(count):
        await queue.push([PushItem(queue="orders", partition="p", payload=b"{}")])


def planned(database: str, **options: object) -> dict[str, int]:
    """The end of a first batch that was planned, and written down by Spark, before the crash."""
    source = stream(database, **options)
    return source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())


def again(database: str, end: dict[str, int], **options: object) -> tuple[list[int], list[int]]:
    """What Spark does after the crash: the first batch, and the one after it."""
    source = stream(database, **options)
    first = between(source, source.initialOffset(), end)
    return [row["seq"] for row in first], [row["seq"] for row in step(source, end)[0]]


async def epochs(queue: Store) -> int:
    return int(await queue.pool.fetchval("select count(*) from queen.read_positions"))


class TestCalls:
    """Spark's calls, one after the other."""

    async def test_latest_is_what_it_was(self, database: str, queue: Store) -> None:
        await push(queue, 3)
        source = stream(database, startingOffsets="latest")
        start = source.initialOffset()
        await push(queue, 2)
        end = source.latestOffset(start, source.getDefaultReadLimit())
        await push(queue, 4)
        assert again(database, end, startingOffsets="latest") == ([4, 5], [6, 7, 8, 9])

    async def test_a_first_batch_without_messages_stays_without(self, database: str, queue: Store) -> None:
        await push(queue, 3)
        end = planned(database, startingOffsets="latest")
        await push(queue, 2)
        assert again(database, end, startingOffsets="latest") == ([], [4, 5])

    @pytest.mark.parametrize("starting", ["earliest", "time", "map"])
    async def test_what_retention_removed_since_is_named(self, database: str, queue: Store, starting: str) -> None:
        await queue.configure("orders", **EXPIRED)
        before = datetime.now().astimezone().isoformat()
        given = {"earliest": "earliest", "time": before, "map": '{"orders": {"p": 1}}'}[starting]
        await push(queue, 2)
        end = planned(database, startingOffsets=given)
        await age_messages(queue.pool, 100)
        await push(queue, 1)
        await trim(queue)
        with pytest.raises(DataLoss, match="partition 'p' of queue 'orders' has lost the messages 1 to 2"):
            again(database, end, startingOffsets=given)
        assert again(database, end, startingOffsets=given, failOnDataLoss="false") == ([], [3])

    async def test_a_time_is_what_it_was(self, database: str, queue: Store) -> None:
        await push(queue, 2)
        middle = datetime.now().astimezone().isoformat()
        await push(queue, 2)
        end = planned(database, startingOffsets=middle)
        await push(queue, 1)
        assert again(database, end, startingOffsets=middle) == ([3, 4], [5])

    async def test_available_now_is_no_different(self, database: str, queue: Store) -> None:
        await push(queue, 1)
        source = stream(database, startingOffsets="latest")
        start = source.initialOffset()
        await push(queue, 2)
        source.prepareForTriggerAvailableNow()
        end = source.latestOffset(start, source.getDefaultReadLimit())
        await push(queue, 2)
        restarted = stream(database, startingOffsets="latest")
        restarted.prepareForTriggerAvailableNow()
        rows = between(restarted, restarted.initialOffset(), end)
        assert [row["seq"] for row in rows] == [2, 3]
        assert [row["seq"] for row in step(restarted, end)[0]] == [4, 5]

    async def test_the_group_does_not_get_ahead_of_the_batch(self, database: str, queue: Store) -> None:
        """Retention of consumed messages would remove what the batch has not read."""
        await push(queue, 1)
        options = {"startingOffsets": "latest", "consumerGroup": "lake"}
        source = stream(database, **options)
        start = source.initialOffset()
        await push(queue, 2)
        end = source.latestOffset(start, source.getDefaultReadLimit())
        await push(queue, 2)
        restarted = stream(database, **options)
        between(restarted, restarted.initialOffset(), end)
        assert [lag.lag for lag in (await describe(queue.pool, "lake"))["orders"]] == [4]
        restarted.commit(end)
        assert [lag.lag for lag in (await describe(queue.pool, "lake"))["orders"]] == [2]

    async def test_an_answer_that_was_not_needed_leaves_nothing(self, database: str, queue: Store) -> None:
        await push(queue, 2)
        end = planned(database)
        before = await epochs(queue)
        for _ in range(3):
            source = stream(database)
            between(source, source.initialOffset(), end)
        assert await epochs(queue) == before


@pytest.mark.parametrize("once", [True, False])
def test_in_spark_a_failed_first_batch_is_read_again(
    spark: SparkSession, database: str, tmp_path: Path, once: bool
) -> None:
    """The query fails between its offset log and its commit log. Where it would begin now is behind that batch."""
    seen: list[int] = []

    def taken(frame: DataFrame, batch: int) -> None:
        seen.extend(row.seq for row in frame.collect())

    def refused(frame: DataFrame, batch: int) -> None:
        raise RuntimeError("the sink is away")

    def run(sink: Callable[[DataFrame, int], None], starting: str) -> None:
        options = {"databaseUrl": database, "queue": "orders", "startingOffsets": starting}
        writer = spark.readStream.format("queen").options(**options).load().writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path))
        query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    pushed(database, 3)
    with pytest.raises(Exception, match="the sink is away"):
        run(refused, "earliest")
    assert [path.name for path in (tmp_path / "offsets").glob("[0-9]*")] == ["0"]
    assert not list((tmp_path / "commits").glob("[0-9]*"))
    pushed(database, 2)
    run(taken, "latest")
    assert sorted(seen) == [1, 2, 3, 4, 5]


def pushed(database: str, count: int) -> None:
    async def work() -> None:
        store = await Store.open(database)
        await push(store, count)
        await store.close()

    asyncio.run(work())
