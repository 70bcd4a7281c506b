"""Mixed traffic: producers, consumers and disturbances of every chosen kind at once, against one server.

Each kind has a queue of its own, so that a problem names what it is about. When it is enough, producers stop,
consumers complete everything that is left, and the ledgers are compared with what the database holds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uuid_utils

from queenmq.server.settings import Settings
from queenmq.server.sweep import sweep
from tests.amounts import SEED
from tests.proof.client import Client, Reply
from tests.proof.kinds import KINDS, LEASE_SECONDS, Kind
from tests.proof.ledger import Delivery, Key, Verdict
from tests.proof.traffic import BEHIND, STUCK_SECONDS, Database, last

STORED = """
    select partition, seq, payload ->> 'w' as w, (payload ->> 'n')::int as n, transaction_id
    from queen.messages where queue = $1
"""
DEAD = """
    select d.consumer_group, d.partition_name, convert_from(d.data, 'UTF8')::jsonb ->> 'w' as w,
        (convert_from(d.data, 'UTF8')::jsonb ->> 'n')::int as n
    from queen.dead_letter_queue d join queen.queues q using (queue_id) where q.name = $1
"""
SEEK = "select queen.seek_v1($1, $2, $3, 'beginning', null)"
SHORTEN = """
    update queen.partition_consumers c
    set lease_expires_at = least(c.lease_expires_at, t.soon), ready_at = least(c.ready_at, t.soon)
    from queen.queues q, (select clock_timestamp() + make_interval(secs => $2) as soon) t
    where q.name = $1 and c.queue_id = q.queue_id and c.lease_id is not null
"""
"""A push may make the queue anew before it is configured: leases of that moment would last for minutes."""
MOST_WAITING = 300
DISTURBED_EVERY = 1.5
LEAVERS_CUT = 0.1
"""A client that leaves reads what has come, and closes: of so many of them, an answer may come between the two."""

Message = dict[str, Any]


class Mixture:
    """One run against the server on this port. `dsn` is where retention works and groups are moved."""

    def __init__(self, port: int, database: Database, dsn: str, kinds: Sequence[str], seconds: float) -> None:
        self.port = port
        self.database = database
        self.dsn = dsn
        self.kinds = [KINDS[name] for name in kinds if KINDS[name].groups]
        self.ledgers = {kind.name: kind.ledger() for kind in self.kinds}
        self.happened: Counter[str] = Counter()
        self.satisfied: Callable[[], bool] = lambda: True
        self.enough = asyncio.Event()
        self.drained = asyncio.Event()
        self.killed = False
        self._seconds = seconds

    async def run(self, *beside: Callable[[Mixture], Awaitable[None]]) -> list[str]:
        """Returns what is wrong. `beside` are disturbances of the caller, until it is enough."""
        print(f"PROOF_SEED={SEED} PROOF_KINDS={','.join(kind.name for kind in self.kinds)}")
        for kind in self.kinds:
            await self._prepare(kind)
        began = time.monotonic()
        async with asyncio.TaskGroup() as consumers:
            consumers.create_task(last(self._seconds, self.enough, lambda: self.satisfied()))
            for kind in self.kinds:
                for number in range(kind.shape().consumers):
                    for group in kind.groups:
                        consumers.create_task(Consumer(self, kind, group, number).run())
            async with asyncio.TaskGroup() as producers:
                for work in (*beside, _seeking, _deleting, _sweeping):
                    producers.create_task(_as_coroutine(work(self)))
                for kind in self.kinds:
                    for number in range(kind.shape().producers):
                        producers.create_task(Producer(self, kind, number).run())
            print(f"producers have ended after {time.monotonic() - began:.1f} s")
            await self._wait_until_drained()
        print(f"everything was consumed after {time.monotonic() - began:.1f} s", dict(self.happened))
        return [f"{kind.name}: {problem}" for kind in self.kinds for problem in await self._problems(kind)]

    async def _prepare(self, kind: Kind) -> None:
        """The queue and its groups are there before the first message: retention waits for the groups it knows."""
        print(kind.name, kind.shape())
        client = Client(self.port)
        reply = await client.post("/api/v1/configure", kind.configuration())
        assert reply.body["configured"] is True, reply
        for group in kind.groups:
            assert (await client.get(f"/api/v1/pop/queue/{kind.queue}?consumerGroup={group}")).status == 204
        client.close()

    async def _wait_until_drained(self) -> None:
        """A state that does not change for a while is stuck."""
        before, changed = None, time.monotonic()
        while left := [row for kind in self.kinds for row in await self.database.fetch(BEHIND, kind.queue)]:
            if left != before:
                before, changed = left, time.monotonic()
            if time.monotonic() - changed > STUCK_SECONDS:
                self.happened["stuck"] += 1
                break
            await asyncio.sleep(0.05)
        self.drained.set()

    async def _problems(self, kind: Kind) -> list[str]:
        rows = await self.database.fetch(STORED, kind.queue)
        dead = await self.database.fetch(DEAD, kind.queue)
        ledger = self.ledgers[kind.name]
        ledger.restarts = self.killed
        behind = await self.database.fetch(BEHIND, kind.queue)
        stuck = [f"stuck: {dict(row)}" for row in behind]
        return stuck + ledger.problems(
            [(row["partition"], row["seq"], (row["w"], row["n"]), row["transaction_id"]) for row in rows],
            [(row["consumer_group"], row["partition_name"], (row["w"], row["n"])) for row in dead],
        )


class Producer:
    def __init__(self, mixture: Mixture, kind: Kind, number: int) -> None:
        self._mixture = mixture
        self._kind = kind
        self._ledger = mixture.ledgers[kind.name]
        self._shape = kind.shape()
        self._name = f"{kind.name}-{number}"
        self._choice = random.Random(f"{SEED} producer {self._name}")
        self._client = Client(mixture.port)
        self._count = 0

    async def run(self) -> None:
        while not self._mixture.enough.is_set():
            await asyncio.sleep(self._choice.uniform(0, 0.03))
            if not self._kind.bound and self._ledger.waiting > MOST_WAITING:
                continue
            await self._push(self._items())
        self._client.close()

    def _items(self) -> list[Message]:
        """To one partition, or spread over several; with ids, or without."""
        count = self._choice.randint(1, self._shape.most_pushed)
        named = not self._kind.ids or self._choice.random() < 0.3
        home = None if self._choice.random() < 0.3 else self._partition()
        return [self._item(named, home or self._partition()) for _ in range(count)]

    def _partition(self) -> str:
        return f"p{self._choice.randrange(self._shape.partitions)}"

    def _item(self, named: bool, partition: str) -> Message:
        self._count += 1
        item = {"queue": self._kind.queue, "partition": partition, "payload": {"w": self._name, "n": self._count}}
        return item | ({"transactionId": str(uuid_utils.uuid7())} if named else {})

    async def _push(self, items: list[Message]) -> None:
        sent, before = time.monotonic(), self._client.unanswered
        reply = await self._client.post("/api/v1/push", {"items": items})
        assert reply.status in (201, 429), reply
        if reply.status == 429:
            self._mixture.happened["queue full"] += 1
            return
        lost = self._client.unanswered > before
        for item, result in zip(items, reply.body, strict=True):
            self._note(item, result, sent, sure="transactionId" in item or not lost)
        if self._kind.ids and self._choice.random() < 0.4:
            await self._push_again(items, reply)

    def _note(self, item: Message, result: Message, sent: float, *, sure: bool) -> None:
        if result["status"] == "failed":
            assert result["code"] == "queue_full", result
            self._mixture.happened["queue full"] += 1
            return
        self._mixture.happened[f"{self._kind.name} pushed"] += 1
        self._ledger.push(_key(item["payload"]), item["partition"], sent, sure=sure)

    async def _push_again(self, items: list[Message], first: Reply) -> None:
        """As a replay does: with the ids that the server gave, in another order, beside a message that is new."""
        again = [item | {"transactionId": one["transactionId"]} for item, one in zip(items, first.body, strict=True)]
        self._choice.shuffle(again)
        sent = time.monotonic()
        fresh = self._item(True, self._partition())
        reply = await self._client.post("/api/v1/push", {"items": [*again, fresh]})
        assert reply.status == 201, reply
        for item, result in zip(again, reply.body[:-1], strict=True):
            self._mixture.happened["given id pushed again"] += 1
            if result["status"] != "duplicate":
                self._ledger.not_duplicates.append(_key(item["payload"]))
        self._note(fresh, reply.body[-1], sent, sure=True)


class Consumer:
    def __init__(self, mixture: Mixture, kind: Kind, group: str, number: int) -> None:
        self._mixture = mixture
        self._kind = kind
        self._group = group
        self._ledger = mixture.ledgers[kind.name]
        self._shape = kind.shape()
        self._choice = random.Random(f"{SEED} consumer {kind.name} {group} {number}")
        self._client = Client(mixture.port)

    async def run(self) -> None:
        while not self._mixture.drained.is_set():
            asked = time.monotonic()
            messages = await self._pop()
            deliveries = [
                (
                    self._ledger.deliver(
                        self._group, part[0]["partition"], map(_of, part), asked, auto=self._kind.auto
                    ),
                    part,
                )
                for part in _by_partition(messages)
            ]
            if deliveries and not self._kind.auto:
                await self._settle(deliveries)
        self._client.close()

    async def _pop(self) -> list[Message]:
        leaves = self._kind.leaves and not self._mixture.enough.is_set() and self._choice.random() < 0.1
        batch = 1 if leaves else self._choice.randint(1, self._shape.most_popped)
        if leaves:
            self._mixture.happened[f"{self._kind.name} left"] += 1
            left = self._mixture.happened[f"{self._kind.name} left"]
            self._ledger.cut_answers = max(self._ledger.cut_answers, 3, int(left * LEAVERS_CUT))
            reply = await self._client.leave(self._path(batch), self._choice.uniform(0, 0.02))
        else:
            before = self._client.unanswered
            reply = await self._client.get(self._path(batch))
            self._ledger.cut_answers += batch * (self._client.unanswered - before)
        if reply is None or reply.status >= 500:
            return []
        assert reply.status in (200, 204), reply
        return list(reply.body["messages"]) if reply.body else []

    def _path(self, batch: int) -> str:
        """By queue, by the name of a partition, or by namespace."""
        partition = f"p{self._choice.randrange(self._shape.partitions)}"
        of_queue = f"/queue/{self._kind.queue}?"
        by_name = f"/queue/{self._kind.queue}/partition/{partition}?"
        where = self._choice.choice([of_queue, of_queue, by_name, f"?namespace={self._kind.namespace}&"])
        query = f"batch={batch}&partitions={self._choice.choice([1, 2, 10])}&consumerGroup={self._group}"
        wait = f"wait=true&timeout={self._choice.choice([50, 300])}"
        return f"/api/v1/pop{where}{query}&{wait}{'&autoAck=true' if self._kind.auto else ''}"

    async def _settle(self, deliveries: list[tuple[Delivery, list[Message]]]) -> None:
        """All partitions in one batch of acks, in random order."""
        if self._choice.random() < 0.01 and not self._mixture.enough.is_set():
            self._mixture.happened["silent"] += 1
            return
        items = [(one, message, self._status()) for one, part in deliveries for message in part]
        if self._choice.random() < 0.8:
            items = _riffled(self._choice, items)
        else:
            self._choice.shuffle(items)
        acks = [_ack(message, status) for _, message, status in items]
        sent = time.monotonic()
        reply = await self._client.post("/api/v1/ack/batch", {"consumerGroup": self._group, "acknowledgments": acks})
        assert reply.status == 200, reply
        self._note(items, reply, sent)

    def _status(self) -> str:
        if not self._kind.verdicts or self._mixture.enough.is_set():
            return "completed"
        return self._choice.choices(["completed", "failed", "retry", "dlq"], [80, 10, 7, 3])[0]

    def _note(self, items: list[tuple[Delivery, Message, str]], reply: Reply, sent: float) -> None:
        passed: dict[int, int] = {}
        for (delivery, message, status), result in zip(items, reply.body, strict=True):
            key = _of(message)
            position = delivery.keys.index(key)
            # A later message of the partition that stood before it has settled this one, too.
            excused = position < passed.get(delivery.number, -1)
            if status in ("completed", "dlq") or result["dlq"]:
                passed[delivery.number] = max(position, passed.get(delivery.number, -1))
            done, dead = bool(result["success"]), bool(result["dlq"])
            delivery.verdicts.append(
                Verdict(key, status, done, dead, sent, time.monotonic(), reply.attempts == 1, excused)
            )
            self._mixture.happened[f"{status}{' dead' if dead else ''}{'' if done else ' refused'}"] += 1


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def _until_enough(mixture: Mixture, wanted: Callable[[Kind], bool]) -> list[Kind]:
    """The kinds that want a disturbance, each time it is due; none when it is enough."""
    try:
        async with asyncio.timeout(DISTURBED_EVERY):
            await mixture.enough.wait()
    except TimeoutError:
        return [kind for kind in mixture.kinds if wanted(kind)]
    return []


async def _seeking(mixture: Mixture) -> None:
    choice = random.Random(f"{SEED} seeks")
    while kinds := await _until_enough(mixture, lambda kind: kind.seeks):
        for kind in kinds:
            group = choice.choice(kind.groups)
            partition = choice.choice([None, "p0"])
            began = time.monotonic()
            await mixture.database.fetch(SEEK, kind.queue, group, partition)
            mixture.ledgers[kind.name].seek(began, group, partition)
            mixture.happened["seek"] += 1


async def _deleting(mixture: Mixture) -> None:
    client = Client(mixture.port)
    while kinds := await _until_enough(mixture, lambda kind: kind.deletes):
        for kind in kinds:
            began = time.monotonic()
            reply = await client.delete(f"/api/v1/resources/queues/{kind.queue}")
            assert reply.status == 200, reply
            mixture.ledgers[kind.name].delete(began)
            mixture.happened["deletion"] += 1
            await client.post("/api/v1/configure", kind.configuration())
            await mixture.database.fetch(SHORTEN, kind.queue, LEASE_SECONDS)
    client.close()


async def _sweeping(mixture: Mixture) -> None:
    settings = Settings.from_env({"DATABASE_URL": mixture.dsn})
    while await _until_enough(mixture, lambda kind: kind.sweeps):
        swept = await sweep(settings, mixture.dsn, lambda _: None)
        mixture.happened["trimmed"] += next(one.count for one in swept if "past their retention" in one.what)


def _riffled(choice: random.Random, items: list[tuple[Delivery, Message, str]]) -> list[tuple[Delivery, Message, str]]:
    """Partitions mixed at random; the messages of each stay in their order."""
    piles: dict[int, list[tuple[Delivery, Message, str]]] = {}
    for item in items:
        piles.setdefault(item[0].number, []).append(item)
    order = [number for number, pile in piles.items() for _ in pile]
    choice.shuffle(order)
    return [piles[number].pop(0) for number in order]


def _by_partition(messages: list[Message]) -> list[list[Message]]:
    found: dict[str, list[Message]] = {}
    for message in messages:
        found.setdefault(message["partition"], []).append(message)
    return list(found.values())


def _ack(message: Message, status: str) -> Message:
    names = ("transactionId", "partitionId", "leaseId")
    return {name: message[name] for name in names} | {"status": status, "error": status}


def _of(message: Message) -> Key:
    return _key(message["data"])


def _key(payload: Message) -> Key:
    return payload["w"], payload["n"]
