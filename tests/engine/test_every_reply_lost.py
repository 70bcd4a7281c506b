"""Every reply of PostgreSQL is lost in turn, in every operation and every variant of it.

A scenario is a small history: messages are pushed, delivered and settled. It is run again and again; in run k the reply
of its k-th round trip is lost, until a run has fewer round trips than that. After each run a ledger says whether a
message was lost, stored twice, or delivered again after it was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.requests import TransactionAsk
from queenmq.storage.pop import QUEUE_MODE, PopResult
from tests.engine.relay import Relay
from tests.engine.saying import acks_of, ask, entry, successes

MOST_ROUND_TRIPS = 60
STORED = "select partition, payload::text::int from queen.messages where queue = $1 order by partition, seq"
HELD = "select count(*) from queen.partition_consumers where lease_id is not null"


@dataclass
class History:
    """One run: its queue, its shape, and what its client has heard."""

    broker: Broker
    queue: str
    random: random.Random
    group: str = QUEUE_MODE
    pushed: dict[str, list[int]] = field(default_factory=dict)
    delivered: dict[str, list[int]] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    """What the client has asked for again."""

    async def push(self, *, named: bool | None = None) -> None:
        """A few messages to a few partitions, in a few requests at once."""
        for _ in range(self.random.randint(1, 2)):
            requests = []
            for _ in range(self.random.randint(1, 3)):
                items = []
                for _ in range(self.random.randint(1, 3)):
                    partition = self.random.choice(["p", "p", "q", "r"])
                    number = sum(map(len, self.pushed.values()))
                    self.pushed.setdefault(partition, []).append(number)
                    tx = f"{self.queue}-{number}" if self.random.random() < 0.5 else None
                    items.append(entry(number, partition, tx, self.queue))
                requests.append(self.broker.push(items))
            for receipt in await asyncio.gather(*requests):
                assert {verdict.status for verdict in receipt.verdicts()} == {"queued"}

    async def pop(self, **way: Any) -> PopResult:
        asked = {"queue": self.queue, "group": self.group, "batch": self.random.randint(1, 4), **way}
        return await self.broker.pop(ask(**asked))

    def note(self, result: PopResult) -> None:
        for claim in result.claims:
            heard = self.delivered.setdefault(claim.partition, [])
            for message in claim.messages():
                number = int(message.payload)
                assert number in self.again or number not in heard, f"{number} was delivered again"
                self.again.discard(number)
                if number not in heard:
                    heard.append(number)

    async def settle(self, result: PopResult, last: str | None = None) -> None:
        """Acknowledge what was delivered; `last`: the last message of each partition gets another status."""
        acks = acks_of(result)
        if last is not None:
            ends = {ack.partition_id: ack for ack in acks}.values()
            for ack in ends:
                ack.status = last
            if last != "dlq":
                self.again |= {int(list(claim.messages())[-1].payload) for claim in result.claims}
        if acks:
            assert all(successes(await self.broker.ack(acks, self.group)))

    async def drain(self, **way: Any) -> None:
        """Take what is left, in all ways that find it."""
        empty = 0
        while empty < 2:
            result = await self.pop(**{"partitions": 9, **way})
            self.note(result)
            if not way.get("auto_ack"):
                await self.settle(result)
            empty = 0 if result.claims else empty + 1

    async def check(self) -> None:
        rows = await self.broker.store.pool.fetch(STORED, self.queue)
        stored: dict[str, list[int]] = {}
        for partition, number in rows:
            stored.setdefault(partition, []).append(number)
        assert {name: sorted(numbers) for name, numbers in stored.items()} == self.pushed, "stored once"
        assert self.delivered == stored, "delivered in order, each once"
        assert not self.again
        await self.broker.pops.idle()
        assert await self.broker.store.pool.fetchval(HELD) == 0, "no lease is left"


Scenario = Callable[[History], Awaitable[None]]
WAYS: dict[str, dict[str, Any]] = {
    "any": {},
    "named": {"partition": "p"},
    "several": {"partitions": 3},
    "namespace": {"queue": None},
}


def popping(way: dict[str, Any], *, group: str, auto_ack: bool) -> Scenario:
    async def scenario(history: History) -> None:
        history.group = group
        where = dict(way)
        if "queue" in where:
            where["namespace"] = history.queue
        await history.push()
        for _ in range(3):
            result = await history.pop(**where, auto_ack=auto_ack)
            history.note(result)
            if not auto_ack:
                await history.settle(result)
        await history.drain(auto_ack=auto_ack, **({} if "partition" in where else where))
        await history.drain()

    return scenario


def acking(last: str | None, partitions: int) -> Scenario:
    async def scenario(history: History) -> None:
        await history.push()
        result = await history.pop(partitions=partitions, batch=9)
        history.note(result)
        await history.settle(result, last)
        await history.drain()

    return scenario


async def renewing(history: History) -> None:
    await history.push()
    result = await history.pop(batch=9)
    history.note(result)
    assert (await history.broker.renew(result.claims[0].lease_id or "", 500)).renewed == 1
    await history.settle(result)
    await history.drain()


async def transacting(history: History) -> None:
    await history.push()
    result = await history.pop(batch=9)
    history.note(result)
    acks = acks_of(result)
    number = sum(map(len, history.pushed.values()))
    history.pushed.setdefault("z", []).append(number)
    work = TransactionAsk([[entry(number, "z", queue=history.queue)], *acks], [acks[0].lease_id or ""])
    committed = await history.broker.transaction(work)
    assert [verdict.status for verdict in committed.pushes] == ["queued"]
    assert all(outcome.success for outcome in committed.acks)
    await history.drain()


async def waiting(history: History) -> None:
    """A pop that waits for a queue that is not there, for a group that has to be registered."""
    history.group = "g"
    pop = history.broker.pop(ask(20.0, queue=history.queue, group="g", subscription_mode="new", auto_ack=True))
    await asyncio.sleep(0)
    while history.broker.stats()["waiting"]["parked"] == 0:  # noqa: ASYNC110  nobody signals it
        await asyncio.sleep(0.001)
    await history.push()
    history.note(await pop)
    await history.drain()


SCENARIOS: dict[str, Scenario] = {
    **{
        f"pop {name} {group} {'auto' if auto else 'leased'}": popping(way, group=group, auto_ack=auto)
        for name, way in WAYS.items()
        for group in (QUEUE_MODE, "g")
        for auto in (False, True)
    },
    **{f"ack {last} of {count}": acking(last, count) for last in (None, "retry", "failed", "dlq") for count in (1, 3)},
    "renew": renewing,
    "transaction": transacting,
    "wait": waiting,
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_nothing_is_lost_doubled_or_delivered_again(relay: Relay, relayed: Broker, name: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for k in range(MOST_ROUND_TRIPS):
        history = History(relayed, f"queue {k}", random.Random(seed))
        if name.startswith(("ack", "pop namespace")):  # elsewhere the first push makes the queue
            await relayed.store.configure(history.queue, namespace=history.queue, retryDelay=0, retryLimit=9)
        before = relay.lost
        relay.lose_replies(1, after=k)
        async with asyncio.timeout(60):
            await SCENARIOS[name](history)
        relay.lose_replies(0)
        await history.check()
        if relay.lost == before:
            assert k > 2
            return
    raise AssertionError(f"more than {MOST_ROUND_TRIPS} round trips")
