"""Many writers and readers at once: nothing lost, nothing twice, nothing out of order, no deadlock, nobody asleep.

16 writers push to 5 partitions and to new ones: through `push` and through the view, in transactions that commit late
or roll back, with transactionIds that others use too. 8 readers of 2 groups, and 2 of a third that joins in the middle,
take batches of any size and ack them whole, in part, as failed, in transactions, on delivery, or never.
PROOF_SCALE=20 makes the run that many times longer, PROOF_SEED=7 repeats the choices (not the timing) of a run.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.ack import AckItem, release
from queenmq.storage.pool import connect
from queenmq.storage.pop import Claim, Message
from queenmq.storage.push import push
from queenmq.storage.store import Store
from tests.amounts import SEED
from tests.amounts import STRESS_SECONDS as SECONDS
from tests.storage.deadlocks import deadlocks
from tests.storage.ledger import ASLEEP, STUCK, Ledger

QUEUE, OUT = "stress", "out"
PARTITIONS = [f"p{n}" for n in range(5)]
EXPIRE = (
    "update queen.partition_consumers set lease_expires_at = clock_timestamp(), ready_at = clock_timestamp()"
    " where lease_id = $1::uuid and partition_id = $2"
)
VIEW = "insert into queen.messages (queue, partition, payload, transaction_id) values ($1, $2, $3, $4)"


class Traffic:
    """One run: who writes, who reads, when it ends."""

    def __init__(self, store: Store, dsn: str) -> None:
        self.store = store
        self.dsn = dsn
        self.ledger = Ledger(QUEUE)
        self.outputs: list[str] = []
        self.happened: Counter[str] = Counter()
        self.ends = asyncio.get_running_loop().time() + SECONDS
        self.drained = asyncio.Event()

    def left(self) -> float:
        """The part of the run that is still to come: 1 at its begin, 0 at its end."""
        return (self.ends - asyncio.get_running_loop().time()) / SECONDS


class Writer:
    def __init__(self, traffic: Traffic, number: int) -> None:
        self.traffic = traffic
        self.store = traffic.store
        self.name = f"w{number}"
        self.choice = random.Random(f"{SEED} {self.name}")
        self.count = 0

    async def run(self) -> None:
        connection = await connect(self.traffic.dsn)
        ways = [self.plainly, self.plainly, self.in_a_transaction, self.through_the_view]
        try:
            while self.traffic.left() > 0:
                way = self.choice.choice(ways)
                self.traffic.happened[way.__name__] += 1
                await way(connection)
                await asyncio.sleep(self.choice.choice([0, 0, 0.1]))  # so that readers now and then empty a partition
        finally:
            await connection.close()

    def item(self, partition: str, tx: str | None = None) -> PushItem:
        self.count += 1
        return PushItem(QUEUE, json.dumps({"w": self.name, "n": self.count}).encode(), partition, tx)

    def partition(self) -> str:
        if self.traffic.left() < 0.7 and self.choice.random() < 0.05:
            return f"new{self.choice.randrange(int(12 * (1 - self.traffic.left())) + 1)}"
        return self.choice.choice(PARTITIONS)

    def transaction_id(self) -> str | None:
        """None, one that nobody else has, or one of a few that everybody uses."""
        return self.choice.choice([None, f"{self.name}-{self.count}", f"shared-{self.choice.randrange(300)}"])

    def wrote(self, items: Iterable[PushItem]) -> None:
        for item in items:
            payload = json.loads(item.payload)
            self.traffic.ledger.written[item.partition or ""].add((payload["w"], payload["n"]))

    async def plainly(self, _: asyncpg.Connection) -> None:
        items = [self.item(self.partition(), self.transaction_id()) for _ in range(self.choice.randrange(1, 8))]
        verdicts = await self.store.push(items)
        assert {verdict.status for verdict in verdicts} <= {"queued", "duplicate"}
        self.traffic.happened["duplicate"] += sum(verdict.status == "duplicate" for verdict in verdicts)
        self.wrote(item for item, verdict in zip(items, verdicts, strict=True) if verdict.status == "queued")

    async def in_a_transaction(self, connection: asyncpg.Connection) -> None:
        """Several pushes, in the order of their partitions; then a pause, and a commit or not."""
        transaction = connection.transaction()
        await transaction.start()
        written = []
        for partition in PARTITIONS[self.choice.randrange(5) :: 2]:
            if self.choice.random() < 0.5:
                items = [self.item(partition) for _ in range(self.choice.randrange(1, 4))]
                await push(connection, self.store.directory, items)
                written += items
            else:
                written += await self.insert(connection, self.item(partition, self.transaction_id()))
        await asyncio.sleep(self.choice.random() * 0.01)
        if self.choice.random() < 0.3:
            self.traffic.happened["rollback"] += 1
            await transaction.rollback()
            return
        await transaction.commit()
        self.wrote(written)

    async def through_the_view(self, connection: asyncpg.Connection) -> None:
        self.wrote(await self.insert(connection, self.item(self.partition(), self.transaction_id())))

    async def insert(self, connection: asyncpg.Connection, item: PushItem) -> list[PushItem]:
        done = await connection.execute(VIEW, QUEUE, item.partition, item.payload.decode(), item.transaction_id)
        return [item] if done == "INSERT 0 1" else []


class Reader:
    def __init__(self, traffic: Traffic, number: int, group: str) -> None:
        self.traffic = traffic
        self.store = traffic.store
        self.group = group
        self.by_name = group == "g1"  # a pop by name finds a partition that sleeps; the others must not need that
        self.choice = random.Random(f"{SEED} r{number} {group}")

    async def run(self) -> None:
        ways = [
            self.whole,
            self.whole,
            self.stepwise,
            self.failing,
            self.transactional,
            self.crashing,
            self.giving_back,
        ]
        while not self.traffic.drained.is_set():
            way = self.choice.choice([*ways, None])
            result = await self.store.pop(
                *(QUEUE, self.group),
                batch=self.choice.choice([1, 2, 5, 20, 100]),
                partitions=self.choice.choice([1, 1, 3]),
                partition=self.choice.choice([None, None, None, *PARTITIONS]) if self.by_name else None,
                auto_ack=way is None,
            )
            for claim in result.claims:
                messages = list(claim.messages())
                assert [m.seq for m in messages] == list(range(messages[0].seq, messages[0].seq + len(messages)))
                self.traffic.happened[way.__name__ if way else "auto_ack"] += 1
                if way is None:
                    self.settled(claim, messages)
                else:
                    assert claim.lease_expires_at is not None
                    turn = (claim.lease_expires_at, messages[0].seq)
                    self.traffic.ledger.leases[self.group, claim.partition].append(turn)
                    await way(claim, messages)
            if not result.claims:
                await asyncio.sleep(self.choice.random() * 0.01)

    def settled(self, claim: Claim, messages: Iterable[Message]) -> None:
        for message in messages:
            payload = json.loads(message.payload)
            entry = (message.seq, (payload["w"], payload["n"]))
            self.traffic.ledger.settled[self.group, claim.partition].append(entry)

    def ack(self, claim: Claim, message: Message, status: str = "completed") -> AckItem:
        item = AckItem(claim.partition_uid, message.transaction_id, None, status, self.group, claim.lease_id)
        if self.choice.random() < 0.5:
            item.transaction_id, item.seq = None, message.seq
        return item

    async def whole(self, claim: Claim, messages: list[Message]) -> None:
        results = await self.store.ack([self.ack(claim, message) for message in messages])
        assert all(result.success for result in results)
        self.settled(claim, messages)

    async def stepwise(self, claim: Claim, messages: list[Message]) -> None:
        """The first part, then perhaps the rest; what is left comes again when the lease is over."""
        part = self.choice.randrange(len(messages))
        assert (await self.store.ack([self.ack(claim, messages[part])]))[0].success
        self.settled(claim, messages[: part + 1])
        rest = messages[part + 1 :]
        if rest and self.choice.random() < 0.5:
            await self.store.renew(claim.lease_id or "")
            await self.whole(claim, rest)
        elif rest:
            await self.store.pool.execute(EXPIRE, claim.lease_id, claim.partition_id)

    async def failing(self, claim: Claim, messages: list[Message]) -> None:
        """One message fails; what stands before it is done, what stands behind it must be refused."""
        bad = self.choice.randrange(len(messages))
        status = self.choice.choice(["failed", "failed", "retry", "dlq"])
        statuses = ["completed"] * bad + [status] + ["completed"] * (len(messages) - bad - 1)
        acks = [self.ack(claim, message, fate) for message, fate in zip(messages, statuses, strict=True)]
        results = await self.store.ack(acks)
        assert all(result.success for result in results[: bad + 1])
        self.settled(claim, messages[:bad])
        if results[bad].dlq:
            self.traffic.happened["dead"] += 1
            self.traffic.ledger.dead.add((self.group, claim.partition, messages[bad].seq))
            assert all(result.success for result in results)
            self.settled(claim, messages[bad + 1 :])
        else:
            assert not any(result.success for result in results[bad + 1 :])

    async def transactional(self, claim: Claim, messages: list[Message]) -> None:
        made = [f"{self.group}-{claim.partition}-{message.seq}" for message in messages]
        pushes = [PushItem(OUT, json.dumps(name).encode(), self.choice.choice("xyz")) for name in made]
        acks = [self.ack(claim, message) for message in messages]
        await self.store.commit(self.store.transaction(acks, pushes, [claim.lease_id or ""]))
        self.settled(claim, messages)
        self.traffic.outputs += made

    async def crashing(self, claim: Claim, _: list[Message]) -> None:
        await self.store.pool.execute(EXPIRE, claim.lease_id, claim.partition_id)

    async def giving_back(self, claim: Claim, _: list[Message]) -> None:
        assert len(await release(self.store.pool, [claim.lease_id or ""], claim.partition_id)) == 1


@pytest.fixture
async def traffic(dsn: str) -> AsyncIterator[Traffic]:
    before = await deadlocks(dsn)
    store = await Store.open(dsn, size=20)
    await store.configure(QUEUE, retryLimit=3, retryDelay=5)
    for partition in PARTITIONS:  # one by one: the transactions below lock them in the order they were made
        await store.directory.partitions(store.pool, [(QUEUE, partition)])
    yield Traffic(store, dsn)
    await store.close()
    assert await deadlocks(dsn) == before


async def join_late(traffic: Traffic) -> None:
    await asyncio.sleep(SECONDS / 2)
    async with asyncio.TaskGroup() as readers:
        for number in range(2):
            readers.create_task(Reader(traffic, number, "late").run())


async def watch_sleepers(traffic: Traffic) -> None:
    """At no moment is there a message that nobody would find; the next push would hide that it was so."""
    while not traffic.drained.is_set():
        assert await traffic.store.pool.fetch(ASLEEP) == []
        await asyncio.sleep(0.002)


async def wait_until_drained(traffic: Traffic) -> None:
    """Until every group has settled everything. A state that does not change for a while is stuck."""
    before, changed = None, time.monotonic()
    while left := await traffic.store.pool.fetch(STUCK, QUEUE):
        if left != before:
            before, changed = left, time.monotonic()
        elif time.monotonic() - changed > 15:
            pytest.fail(f"stuck: {left}")
        await asyncio.sleep(0.05)
    traffic.drained.set()


async def test_nothing_is_lost_doubled_or_reordered(traffic: Traffic) -> None:
    print(f"PROOF_SEED={SEED}")
    async with asyncio.TaskGroup() as readers:
        readers.create_task(join_late(traffic))
        readers.create_task(watch_sleepers(traffic))
        for number in range(8):
            readers.create_task(Reader(traffic, number, f"g{number % 2}").run())
        async with asyncio.TaskGroup() as writers:
            for number in range(16):
                writers.create_task(Writer(traffic, number).run())
        await wait_until_drained(traffic)
    print(dict(traffic.happened))
    await traffic.ledger.check(traffic.store)
    made = await traffic.store.pool.fetch("select payload #>> '{}' as name from queen.messages where queue = $1", OUT)
    assert Counter(row["name"] for row in made) == Counter(traffic.outputs)
    assert min(traffic.happened.values()) > 0
