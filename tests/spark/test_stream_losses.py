"""Messages that vanish together with their partition before a stream has read them are named, and those only."""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from dataclasses import dataclass, field

import pytest

from queenmq.domain.segments import PushItem
from queenmq.spark import reader as reading
from queenmq.spark.errors import DataLoss
from queenmq.spark.stream_reader import MessageStreamReader
from queenmq.storage import retention
from queenmq.storage.store import Store
from tests.spark.reading import Rows, between, places, reader, step, stream
from tests.storage.retaining import EXPIRED, trim
from tests.storage.time_travel import age_retention, pass_time

LONG = 1_000_000
Message = tuple[str, str, int]


async def push(queue: Store, count: int, partition: str = "p", name: str = "orders") -> None:
    for _ in range(count):
        await queue.push([PushItem(queue=name, partition=partition, payload=b"{}")])


async def expire(queue: Store, name: str = "orders") -> None:
    """Retention removes everything that is stored."""
    await queue.configure(name, **EXPIRED)
    await pass_time(queue.pool, 100, name)
    await trim(queue)


async def remove_idle(queue: Store) -> None:
    await pass_time(queue.pool, LONG)
    await age_retention(queue.pool, LONG)
    await retention.remove_idle_partitions(queue.pool, idle_seconds=60, batch=100)


async def delete(queue: Store, name: str = "orders") -> None:
    assert await queue.delete_queue(name)


async def partitions(queue: Store) -> int:
    return int(await queue.pool.fetchval("select count(*) from queen.partitions where name <> 'Default'"))


async def by_retention(queue: Store) -> None:
    await expire(queue)
    await remove_idle(queue)


WAYS = pytest.mark.parametrize("remove", [delete, by_retention])


@WAYS
async def test_unread_messages_of_a_partition_that_is_gone_fail_the_stream(
    database: str, queue: Store, remove: object, caplog: pytest.LogCaptureFixture
) -> None:
    await push(queue, 2)
    _, at = step(stream(database), stream(database).initialOffset())
    await push(queue, 3)
    await push(queue, 1, "other")
    await remove(queue)  # type: ignore[operator]
    assert await partitions(queue) == 0
    with pytest.raises(DataLoss) as lost:
        step(stream(database), at)
    assert "partition 'p' of queue 'orders' was removed with the messages 3 to 5" in lost.value.message
    assert "partition 'other' of queue 'orders' was removed with the messages 1 to 1" in lost.value.message
    source = stream(database, failOnDataLoss="false")
    caplog.clear()
    rows, after = step(source, at)
    assert (rows, len(caplog.messages)) == ([], 1)
    assert step(source, after) == ([], after)
    assert len(caplog.messages) == 1, "warned of once"


@WAYS
async def test_what_was_read_before_is_no_loss(database: str, queue: Store, remove: object) -> None:
    source = stream(database)
    await push(queue, 2)
    _, at = step(source, source.initialOffset())
    await remove(queue)  # type: ignore[operator]
    assert await partitions(queue) == 0
    assert step(source, at) == ([], at)


@WAYS
async def test_what_was_gone_before_the_stream_began_is_no_loss(database: str, queue: Store, remove: object) -> None:
    await push(queue, 2)
    await remove(queue)  # type: ignore[operator]
    source = stream(database)
    start = source.initialOffset()
    assert step(source, start) == ([], start)
    await push(queue, 1)
    assert places(step(source, start)[0]) == [("orders", "p", 1)]


async def test_a_successor_of_the_same_name_is_read_and_the_lost_one_is_named(
    database: str, queue: Store, caplog: pytest.LogCaptureFixture
) -> None:
    source = stream(database, failOnDataLoss="false", maxMessagesPerTrigger=1)
    await push(queue, 2)
    start = source.initialOffset()
    await delete(queue)
    await push(queue, 1)
    rows, at = step(source, start)
    assert places(rows) == [("orders", "p", 1)]
    assert "was removed with the messages 1 to 2" in caplog.text
    assert step(source, at) == ([], at)


async def test_other_queues_and_partitions_do_not_matter(database: str, queue: Store) -> None:
    sources = [stream(database, queue="or*", partitions="p"), stream(database, queue="*", namespace="shop")]
    starts = [source.initialOffset() for source in sources]
    await push(queue, 2, "q")
    await push(queue, 2, name="mails")
    await delete(queue)
    await delete(queue, "mails")
    for source, start in zip(sources, starts, strict=True):
        assert step(source, start) == ([], start)


@WAYS
async def test_a_batch_that_was_planned_before_fails_too(database: str, queue: Store, remove: object) -> None:
    await push(queue, 2)
    source = reader(database)
    [planned] = source.partitions()
    await remove(queue)  # type: ignore[operator]
    with pytest.raises(DataLoss, match="partition 'p' of queue 'orders' was removed with the messages 1 to 2"):
        list(source.read(planned))


@dataclass
class Ledger:
    """What became of each message, by its name: several may have the same one, after each other."""

    pushed: Counter[Message] = field(default_factory=Counter)
    read: Counter[Message] = field(default_factory=Counter)
    lost: Counter[Message] = field(default_factory=Counter)

    def batch(self, rows: Rows, warnings: list[str]) -> None:
        self.read.update(places(rows))
        for text in warnings:
            for partition, queue, first, last in re.findall(
                r"partition '(\w+)' of queue '(\w+)' \D+ messages (\d+) to (\d+)", text
            ):
                self.lost.update((queue, partition, seq) for seq in range(int(first), int(last) + 1))


class History:
    """A stream over two queues, and everything that may happen to them."""

    def __init__(self, seed: int, database: str, queue: Store, caplog: pytest.LogCaptureFixture) -> None:
        self.chance = random.Random(seed)
        self.database = database
        self.queue = queue
        self.caplog = caplog
        self.ledger = Ledger()
        self.source = self.started()
        self.at: dict[str, int] = {}

    def started(self) -> MessageStreamReader:
        return stream(self.database, failOnDataLoss="false", maxMessagesPerTrigger=3)

    async def happens(self) -> None:
        name = self.chance.choice(("orders", "mails"))
        what = self.chance.choices(("push", "expire", "idle", "delete", "restart"), (6, 2, 2, 1, 1))[0]
        if what == "push":
            await self.push(name)
        elif what == "expire":
            await expire(self.queue, name)
        elif what == "idle":
            await remove_idle(self.queue)
        elif what == "delete":
            await self.queue.delete_queue(name)
        else:
            self.source = self.started()

    async def push(self, name: str) -> None:
        partition = self.chance.choice(("a", "b"))
        count = self.chance.randint(1, 3)
        await push(self.queue, count, partition, name)
        last = await self.queue.pool.fetchval(
            "select l.last_seq from queen.partition_lookup l join queen.partitions p using (partition_id)"
            " join queen.queues q on q.queue_id = p.queue_id where (q.name, p.name) = ($1, $2)",
            name,
            partition,
        )
        self.ledger.pushed.update((name, partition, seq) for seq in range(last - count + 1, last + 1))

    async def micro_batch(self) -> bool:
        """Planned, and read after more has happened, perhaps twice; False when there was nothing."""
        end = self.source.latestOffset(self.at, self.source.getDefaultReadLimit())
        if end == self.at:
            return False
        for _ in range(self.chance.randint(0, 2)):
            await self.happens()
        if self.chance.random() < 0.3:
            between(self.source, self.at, end)  # and it crashed before the batch was committed
            self.source = self.started()
        self.caplog.clear()
        rows = between(self.source, self.at, end)
        self.ledger.batch(rows, self.caplog.messages)
        self.at = end
        return True


@pytest.mark.parametrize("seed", range(4))
async def test_each_message_is_read_or_named_as_lost(
    database: str, queue: Store, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "_EXAMPLES", 1000)
    caplog.set_level(logging.WARNING, "queenmq.spark")
    history = History(seed, database, queue, caplog)
    for _ in range(8):
        await history.happens()
    history.ledger.pushed.clear()
    await expire(queue) if history.chance.random() < 0.5 else await queue.delete_queue("mails")
    before = Counter(
        (row["queue"], row["partition"], row["seq"])
        for row in await queue.pool.fetch("select queue, partition, seq from queen.messages")
    )
    history.at = history.source.initialOffset()
    for _ in range(40):
        await history.happens()
        if history.chance.random() < 0.4:
            await history.micro_batch()
    while await history.micro_batch():
        pass
    ledger = history.ledger
    assert ledger.read + ledger.lost == before + ledger.pushed
    assert ledger.lost, "the history has lost nothing, and so proves little"
