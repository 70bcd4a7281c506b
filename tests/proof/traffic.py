"""20 producers, 20 consumers of 3 groups, 200 partitions, and handlers that fail in every way they can.

PROOF_SCALE=6 makes runs that many times longer, PROOF_SEED=7 repeats the choices (not the timing) of a run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import uuid_utils

from tests.amounts import SEED
from tests.proof.books import Books, Crash, Delivery
from tests.proof.client import Client, Reply

QUEUE = "proof"
PARTITIONS = 200
PRODUCERS = CONSUMERS = 20
GROUPS = ["alpha", "beta", "gamma"]
LEASE_SECONDS = 2
LONG_LEASE_SECONDS = 600
STUCK_SECONDS = 30.0
MOST_UNSETTLED = 5_000
STORED = "select partition, seq, payload ->> 'w' as w, (payload ->> 'n')::int as n from queen.messages where queue = $1"
BEHIND = """
    select g.name as "group", p.name as partition, c.acked_seq, l.last_seq, c.lease_id
    from queen.consumer_groups_metadata g join queen.partitions p on p.queue_id = g.queue_id
    join queen.partition_lookup l using (partition_id)
    left join queen.partition_consumers c on c.partition_id = p.partition_id and c.group_id = g.group_id
    join queen.queues q on q.queue_id = p.queue_id
    where q.name = $1 and coalesce(c.acked_seq, 0) < l.last_seq order by 1, 2
"""


class Database(Protocol):
    """Where a run looks at what is stored."""

    async def fetch(self, query: str, *arguments: Any) -> list[Any]: ...


async def last(seconds: float, enough: asyncio.Event, satisfied: Callable[[], bool]) -> None:
    """It is enough after so many seconds; on a slow machine when all has happened that the run is there for."""
    await asyncio.sleep(seconds)
    patience = time.monotonic() + STUCK_SECONDS
    while not satisfied() and time.monotonic() < patience:  # noqa: ASYNC110  nobody signals what happens
        await asyncio.sleep(0.05)
    enough.set()


class Traffic:
    """One run against a server. Without `seconds`, whoever runs it says when it is `enough`; with them it goes on until
    it is `satisfied`.

    `steady`: consumers answer everything they get, and leases last longer than the run. A lease that the server holds
    for nobody then holds its partition up until the run counts as stuck.
    """

    def __init__(
        self,
        port: int,
        database: Database,
        seconds: float | None,
        forgets: float = 0.0,
        *,
        steady: bool = False,
    ) -> None:
        self.port = port
        self.forgets = forgets
        self.seconds = seconds
        self.steady = steady
        self.lease_seconds = LONG_LEASE_SECONDS if steady else LEASE_SECONDS
        self.enough = asyncio.Event()
        self.satisfied: Callable[[], bool] = lambda: True
        self.resting = False
        """Nobody pushes for now."""
        self.crashes: list[Crash] = []
        self.forgotten = 0
        """Leases that were given out again before their time, because a crash had made PostgreSQL forget them."""
        self.books = Books(GROUPS)
        self.happened: Counter[str] = Counter()
        self.repeats = 0
        self.unsettled = 0
        """Deliveries that are still to come; producers rest while there are too many."""
        self.drained = asyncio.Event()
        self._database = database

    async def run(self) -> None:
        """Produce for a while, consume until nothing is left, and check the books."""
        print(f"PROOF_SEED={SEED}")
        await self._configure()
        async with asyncio.TaskGroup() as consumers:
            for number in range(CONSUMERS):
                consumers.create_task(Consumer(self, number, GROUPS[number % len(GROUPS)]).run())
            if self.seconds is not None:
                consumers.create_task(last(self.seconds, self.enough, lambda: self.satisfied()))
            async with asyncio.TaskGroup() as producers:
                for number in range(PRODUCERS):
                    producers.create_task(Producer(self, number).run())
            await self._wait_until_drained()
        print(dict(self.happened), f"{self.repeats} requests were repeated")
        rows = await self._database.fetch(STORED, QUEUE)
        self.books.check((row["partition"], row["seq"], (row["w"], row["n"])) for row in rows)
        self.forgotten = self.books.check_leases(self.lease_seconds, self.crashes)

    async def _configure(self) -> None:
        client = Client(self.port)
        options = {"leaseTime": self.lease_seconds, "retryLimit": 1_000_000, "retryDelay": 0}
        reply = await client.post("/api/v1/configure", {"queue": QUEUE, "options": options})
        assert reply.body["configured"] is True, reply
        client.close()

    async def _wait_until_drained(self) -> None:
        """Until every group has settled everything. A state that does not change for a while is stuck."""
        before, changed = None, time.monotonic()
        while left := await self._database.fetch(BEHIND, QUEUE):
            if left != before:
                before, changed = left, time.monotonic()
            assert time.monotonic() - changed < STUCK_SECONDS, f"stuck: {left}"
            await asyncio.sleep(0.05)
        self.drained.set()


class Producer:
    def __init__(self, traffic: Traffic, number: int) -> None:
        self._traffic = traffic
        self._name = f"producer-{number}"
        self._choice = random.Random(f"{SEED} {self._name}")
        self._client = Client(traffic.port, traffic.forgets, self._choice)
        self._count = 0

    async def run(self) -> None:
        while not self._traffic.enough.is_set():
            if self._traffic.resting or self._traffic.unsettled > MOST_UNSETTLED:
                await asyncio.sleep(0.01)
                continue
            items = self._items()
            reply = await self._client.post("/api/v1/push", {"items": items})
            assert reply.status == 201, reply
            statuses = [result["status"] for result in reply.body]
            assert len(statuses) == len(items)
            # What was stored before the answer got lost is a duplicate the next time.
            assert set(statuses) <= ({"queued"} if reply.attempts == 1 else {"queued", "duplicate"}), reply
            self._traffic.happened.update(statuses)
            self._traffic.unsettled += len(items) * len(GROUPS)
            for item in items:
                self._traffic.books.written[item["partition"]].append((self._name, item["payload"]["n"]))
        self._traffic.repeats += self._client.repeats
        self._client.close()

    def _items(self) -> list[dict[str, Any]]:
        """To one partition, or spread over several."""
        count = self._choice.choice([1, 1, 5, 20])
        home = self._choice.randrange(PARTITIONS)
        spread = self._choice.random() < 0.3
        return [self._item(self._choice.randrange(PARTITIONS) if spread else home) for _ in range(count)]

    def _item(self, partition: int) -> dict[str, Any]:
        self._count += 1
        return {
            "queue": QUEUE,
            "partition": f"p{partition}",
            "payload": {"w": self._name, "n": self._count},
            "transactionId": str(uuid_utils.uuid7()),
        }


class Consumer:
    def __init__(self, traffic: Traffic, number: int, group: str) -> None:
        self._traffic = traffic
        self._group = group
        self._first = number == 0
        self._choice = random.Random(f"{SEED} consumer-{number}")
        self._client = Client(traffic.port, traffic.forgets, self._choice)

    async def run(self) -> None:
        # Most handlers succeed; one in a hundred never says anything, and one so late that its lease is over.
        ways = [self._whole] * 60 + [self._in_two] * 15 + [self._failing] * 14 + [self._retrying] * 9
        traffic = self._traffic
        away = [] if traffic.steady else [self._silent, self._late]
        rare = [*away] if self._first else []
        while not traffic.drained.is_set():
            asked = time.monotonic()
            came = [(self._deliver(messages, asked), messages) for messages in await self._pop()]
            for delivery, messages in came:
                # Once nobody pushes any more, who keeps a partition to itself would only make the run longer.
                way = rare.pop() if rare else self._choice.choice(ways if traffic.enough.is_set() else ways + away)
                self._traffic.happened[way.__name__.strip("_")] += 1
                await way(delivery, messages)
        self._traffic.repeats += self._client.repeats
        self._client.close()

    def _deliver(self, messages: list[dict[str, Any]], asked: float) -> Delivery:
        return self._traffic.books.deliver(self._group, messages[0]["partition"], map(_key, messages), asked)

    async def _pop(self) -> list[list[dict[str, Any]]]:
        """The messages of one pop, by partition."""
        batch, partitions = self._choice.choice([(1, 1), (10, 1), (50, 1), (50, 5)])
        query = f"batch={batch}&partitions={partitions}&consumerGroup={self._group}&wait=true&timeout=1000"
        path = f"/api/v1/pop/queue/{QUEUE}"
        if self._choice.random() < 0.1:
            path += f"/partition/p{self._choice.randrange(PARTITIONS)}"
            query = query.replace("timeout=1000", "timeout=100")
        reply = await self._client.get(f"{path}?{query}")
        if reply.status == 204:
            return []
        assert reply.status == 200, reply
        by_partition: dict[str, list[dict[str, Any]]] = {}
        for message in reply.body["messages"]:
            by_partition.setdefault(message["partition"], []).append(message)
        return list(by_partition.values())

    async def _whole(self, delivery: Delivery, messages: list[dict[str, Any]]) -> None:
        await self._ack(delivery, messages, ["completed"] * len(messages))

    async def _in_two(self, delivery: Delivery, messages: list[dict[str, Any]]) -> None:
        """The first part, then the rest, as one does who works through a long batch."""
        half = len(messages) // 2
        await self._ack(delivery, messages[:half], ["completed"] * half)
        await self._ack(delivery, messages[half:], ["completed"] * (len(messages) - half))

    async def _failing(self, delivery: Delivery, messages: list[dict[str, Any]]) -> None:
        await self._stumble(delivery, messages, "failed")

    async def _retrying(self, delivery: Delivery, messages: list[dict[str, Any]]) -> None:
        await self._stumble(delivery, messages, "retry")

    async def _silent(self, delivery: Delivery, messages: list[dict[str, Any]]) -> None:
        """The consumer has died with its batch."""

    async def _late(self, delivery: Delivery, messages: list[dict[str, Any]]) -> None:
        """By now somebody else has these messages; what is said of them must not count."""
        await asyncio.sleep(LEASE_SECONDS + 0.5)
        await self._whole(delivery, messages)

    async def _stumble(self, delivery: Delivery, messages: list[dict[str, Any]], status: str) -> None:
        """One message fails. Those before it are done; those behind it come again, whatever is said of them."""
        bad = self._choice.randrange(len(messages))
        behind = len(messages) - bad - 1 if self._choice.random() < 0.5 else 0
        statuses = ["completed"] * bad + [status] + ["completed"] * behind
        await self._ack(delivery, messages[: len(statuses)], statuses)

    async def _ack(self, delivery: Delivery, messages: list[dict[str, Any]], statuses: list[str]) -> None:
        if not messages:
            return
        items = [
            {
                "transactionId": message["transactionId"],
                "partitionId": message["partitionId"],
                "leaseId": message["leaseId"],
                "status": status,
                "error": None if status == "completed" else "the handler failed",
            }
            for message, status in zip(messages, statuses, strict=True)
        ]
        delivery.answering()
        reply = await self._send_acks(items)
        assert reply.status == 200, reply
        assert len(reply.body) == len(items), reply
        keys = delivery.keys[delivery.keys.index(_key(messages[0])) :]
        for key, status, result in zip(keys, statuses, reply.body, strict=False):
            assert not result["dlq"], result
            if status == "completed" and result["success"]:
                delivery.settle(key)
                self._traffic.unsettled -= 1
            elif status == "completed" and reply.attempts > 1:
                delivery.unsure.append(key)
            self._traffic.happened["refused"] += not result["success"]

    async def _send_acks(self, items: list[dict[str, Any]]) -> Reply:
        if len(items) == 1 and self._choice.random() < 0.5:
            return await self._client.post("/api/v1/ack", {**items[0], "consumerGroup": self._group})
        body = {"acknowledgments": items, "consumerGroup": self._group}
        return await self._client.post("/api/v1/ack/batch", body)


def _key(message: dict[str, Any]) -> tuple[str, int]:
    return message["data"]["w"], message["data"]["n"]
