"""Traffic through several doors to one database: pushes through all of them, and consumers who wait at all of them.

Producers are slow enough for consumers to wait most of the time. Some consumers take what a queue has, others want one
partition, and some hold a lease for a while, so that others hear of it. One queue has only consumers of single
partitions. A lease outlasts everything a consumer does, so one that the servers hold for nobody shows as a run that is
stuck.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import uuid_utils

from tests.amounts import SEED
from tests.proof.books import Books, Key
from tests.proof.client import Client
from tests.proof.traffic import BEHIND, STUCK_SECONDS, Database, last

SINGLY: Final = "singly"
"""This queue is consumed by partition only."""
QUEUES: Final = ("orders", "bills", SINGLY)
GROUPS: Final = ("alpha", "beta")
PARTITIONS: Final = 6
LEASE_SECONDS: Final = 10
OPTIONS: Final = {"leaseTime": LEASE_SECONDS, "retryLimit": 1_000_000, "retryDelay": 0}
STORED: Final = "select partition, seq, payload, encrypted from queen.messages where queue = $1"
_MOST_UNSETTLED: Final = 2_000


class Item(NamedTuple):
    queue: str
    partition: str
    key: Key
    transaction_id: str

    @property
    def payload(self) -> dict[str, Any]:
        return {"w": self.key[0], "n": self.key[1]}


class Got(NamedTuple):
    """A message that was delivered."""

    partition: str
    payload: dict[str, Any]
    transaction_id: str
    partition_id: str
    lease_id: str

    @property
    def key(self) -> Key:
        return self.payload["w"], self.payload["n"]


class Door(Protocol):
    """One client of one server. `push` tells the status of each item, `ack` whether each message was settled."""

    async def push(self, items: Sequence[Item]) -> list[str]: ...

    async def pop(self, queue: str, group: str, partition: str | None, batch: int, seconds: float) -> list[Got]: ...

    async def ack(self, group: str, messages: Sequence[Got]) -> list[bool]: ...

    def close(self) -> None: ...


class HttpDoor:
    def __init__(self, port: int) -> None:
        self._client = Client(port)

    async def push(self, items: Sequence[Item]) -> list[str]:
        entries = [
            {"queue": one.queue, "partition": one.partition, "payload": one.payload, "transactionId": one[3]}
            for one in items
        ]
        reply = await self._client.post("/api/v1/push", {"items": entries})
        assert reply.status == 201, reply
        return [result["status"] for result in reply.body]

    async def pop(self, queue: str, group: str, partition: str | None, batch: int, seconds: float) -> list[Got]:
        path = f"/api/v1/pop/queue/{queue}" + ("" if partition is None else f"/partition/{partition}")
        query = f"batch={batch}&consumerGroup={group}&wait=true&timeout={int(seconds * 1000)}"
        reply = await self._client.get(f"{path}?{query}")
        assert reply.status in (200, 204), reply
        names = ("partition", "data", "transactionId", "partitionId", "leaseId")
        return [Got(*[one[name] for name in names]) for one in (reply.body["messages"] if reply.body else [])]

    async def ack(self, group: str, messages: Sequence[Got]) -> list[bool]:
        entries = [
            {"transactionId": one.transaction_id, "partitionId": one.partition_id, "leaseId": one.lease_id}
            for one in messages
        ]
        body = {"acknowledgments": [entry | {"status": "completed"} for entry in entries], "consumerGroup": group}
        reply = await self._client.post("/api/v1/ack/batch", body)
        assert reply.status == 200, reply
        return [result["success"] for result in reply.body]

    def close(self) -> None:
        assert self._client.repeats == 0, "a client had to repeat a request"
        self._client.close()


class Flow:
    """One run for so many seconds, and until it is `satisfied`, through doors of each of these kinds. `opened` reads
    what is stored encrypted.
    In a `rush`, producers push as much as they can, and consumers take all they get."""

    def __init__(
        self,
        doors: Sequence[Callable[[], Door]],
        database: Database,
        seconds: float,
        opened: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.doors = doors
        self.books = {queue: Books(GROUPS) for queue in QUEUES}
        self.happened: Counter[str] = Counter()
        self.unsettled = 0
        self.rush = False
        self.enough = asyncio.Event()
        self.satisfied: Callable[[], bool] = lambda: True
        self.drained = asyncio.Event()
        self._database = database
        self._seconds = seconds
        self._opened = opened

    async def run(self) -> None:
        """Produce for a while, consume until nothing is left, and check the books. The queues are configured."""
        print(f"PROOF_SEED={SEED}")
        async with asyncio.TaskGroup() as tasks:
            for number, (door, group) in enumerate((door, group) for door in self.doors for group in GROUPS):
                for wide in (True, False):
                    tasks.create_task(_consume(self, door(), group, random.Random(f"{SEED} {number} {wide}"), wide))
            tasks.create_task(last(self._seconds, self.enough, lambda: self.satisfied()))
            async with asyncio.TaskGroup() as producers:
                for number, door in enumerate([*self.doors, *self.doors]):
                    producers.create_task(_produce(self, door(), f"producer-{number}"))
            await self._wait_until_drained()
        print(dict(self.happened))
        for queue in QUEUES:
            await self._check(queue)

    async def _check(self, queue: str) -> None:
        rows = await self._database.fetch(STORED, queue)
        books = self.books[queue]
        books.check((row["partition"], row["seq"], self._key(row)) for row in rows)
        books.check_leases(LEASE_SECONDS)

    def _key(self, row: Any) -> Key:
        payload = row["payload"].encode()
        read = json.loads(self._opened(payload) if row["encrypted"] else payload)
        return read["w"], read["n"]

    async def _wait_until_drained(self) -> None:
        """A state that does not change for a while is stuck."""
        before, changed = None, time.monotonic()
        while left := [row for queue in QUEUES for row in await self._database.fetch(BEHIND, queue)]:
            if left != before:
                before, changed = left, time.monotonic()
            assert time.monotonic() - changed < STUCK_SECONDS, f"stuck: {left}"
            await asyncio.sleep(0.05)
        self.drained.set()


async def _produce(flow: Flow, door: Door, name: str) -> None:
    choice = random.Random(f"{SEED} {name}")
    number = 0
    while not flow.enough.is_set():
        await asyncio.sleep(0 if flow.rush else choice.uniform(0, 0.02))
        if flow.unsettled > _MOST_UNSETTLED:
            continue
        items = []
        for _ in range(50 if flow.rush else choice.choice([1, 1, 1, 5])):
            number += 1
            place = choice.choice(QUEUES), f"p{choice.randrange(PARTITIONS)}"
            items.append(Item(*place, (name, number), str(uuid_utils.uuid7())))
        statuses = await door.push(items)
        assert statuses == ["queued"] * len(items), statuses
        flow.happened["pushed"] += len(items)
        flow.unsettled += len(items) * len(GROUPS)
        for item in items:
            flow.books[item.queue].written[item.partition].append(item.key)
    door.close()


async def _consume(flow: Flow, door: Door, group: str, choice: random.Random, wide: bool) -> None:
    kind = "wide" if wide else "single"
    while not flow.drained.is_set():
        hurry = flow.enough.is_set()
        queue, partition = _chosen(choice, wide, hurry)
        batch, seconds = (100, 0.1) if hurry or flow.rush else choice.choice([(1, 0.1), (10, 0.1), (10, 0.4)])
        asked = time.monotonic()
        got = await door.pop(queue, group, partition, batch, seconds)
        flow.happened[f"{kind} {'something' if got else 'nothing'}"] += 1
        if not got:
            continue
        assert partition in (None, got[0].partition), f"{got[0].partition} was delivered to who wanted {partition}"
        delivery = flow.books[queue].deliver(group, got[0].partition, [one.key for one in got], asked)
        await asyncio.sleep(0 if flow.rush else choice.choice([0, 0, 0.05]))
        delivery.answering()
        for one, settled in zip(got, await door.ack(group, got), strict=True):
            assert settled, f"the ack of {one} was refused although its lease is long"
            delivery.settle(one.key)
            flow.unsettled -= 1
    door.close()


def _chosen(choice: random.Random, wide: bool, hurry: bool) -> tuple[str, str | None]:
    """Where to look. In a hurry, who wants single partitions leaves the other queues to those who want any."""
    if wide:
        return choice.choice([each for each in QUEUES if each != SINGLY]), None
    return SINGLY if hurry else choice.choice(QUEUES), f"p{choice.randrange(PARTITIONS)}"
