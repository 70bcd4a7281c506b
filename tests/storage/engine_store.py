"""The calls of `Store`, made through the engine: what holds of the one must hold of the other.

The engine has statements of its own for plain traffic (`push_segment`, `pop_any`, `ack_plain`), and it merges requests.
Each call goes to the broker of the next worker, so that a lease is won by one and settled by another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from queenmq.domain.segments import PushItem
from queenmq.engine.acks import Stretch
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.requests import PopAsk
from queenmq.storage import queues
from queenmq.storage.ack import AckItem, AckResult, Renewal
from queenmq.storage.pop import QUEUE_MODE, PopResult
from queenmq.storage.push import Verdict
from queenmq.storage.store import Store, SubscriptionMode
from queenmq.storage.transactions import Committed
from queenmq.wire.requests import AckEntry, PushEntry

NAME = """
    select m.transaction_id from queen.partitions p, queen.message_at(p.partition_id, $2) m where p.uid = $1::uuid
"""


class EngineStore(Store):
    """Close it where it was opened: its brokers belong to one event loop."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        super().__init__(brokers[0].store.pool, None, brokers[0].store.directory)
        self._brokers = brokers
        self._turns = itertools.cycle(brokers)

    @classmethod
    async def through(cls, dsn: str, workers: int = 1) -> EngineStore:
        config = EngineConfig(dsn=dsn, connections=4, admin_connections=4)
        return cls([await Broker.open(config) for _ in range(workers)])

    async def close(self) -> None:
        for broker in self._brokers:
            await broker.drain()
            await broker.close()

    async def configure(
        self, queue: str, *, namespace: str | None = None, task: str | None = None, **options: object
    ) -> queues.Queue:
        return await next(self._turns).store.configure(queue, namespace=namespace, task=task, **options)

    async def delete_queue(self, queue: str) -> bool:
        return await next(self._turns).store.delete_queue(queue)

    async def push(self, items: Sequence[PushItem]) -> list[Verdict]:
        entries = [
            PushEntry(item.queue, msgspec.Raw(item.payload), item.partition, item.transaction_id) for item in items
        ]
        return (await next(self._turns).push(entries)).verdicts()

    async def pop(
        self,
        queue: str,
        group: str = QUEUE_MODE,
        *,
        batch: int = 1,
        partition: str | None = None,
        partitions: int = 1,
        auto_ack: bool = False,
        subscription_mode: SubscriptionMode = "all",
        subscription_from: datetime | Literal["now"] | None = None,
    ) -> PopResult:
        if auto_ack:  # the model knows the form of SQL; that of the engine has tests/engine/test_auto_ack.py
            return await super().pop(
                queue,
                group,
                batch=batch,
                partition=partition,
                partitions=partitions,
                auto_ack=True,
                subscription_mode=subscription_mode,
                subscription_from=subscription_from,
            )
        broker = next(self._turns)
        broker.shared.hints.forget_queue(queue)  # a hint may cost time, which a test that moves the clock does not have
        return await broker.pop(
            PopAsk(
                queue,
                partition,
                group=group,
                batch=batch,
                partitions=partitions,
                subscription_mode=subscription_mode,
                subscription_from=subscription_from,
            )
        )

    async def ack(self, items: Sequence[AckItem]) -> list[AckResult]:
        return (await self.acks([items]))[0]

    async def acks(self, requests: Sequence[Sequence[AckItem]]) -> list[list[AckResult]]:
        """Requests that reach one worker in this order at the same time. A request of several groups is one for
        each of them."""
        entries = [[await self._entry(item) for item in items] for items in requests]
        broker = next(self._turns)
        answers = [await_all(broker, items, named) for items, named in zip(requests, entries, strict=True)]
        return list(await asyncio.gather(*answers))

    async def _entry(self, item: AckItem) -> AckEntry:
        name = item.transaction_id
        if name is None:
            name = await self.pool.fetchval(NAME, item.partition_uid, item.seq) or "gone"
        return AckEntry(name, item.partition_uid, item.status, item.lease_id, item.error)

    async def renew(self, lease_id: str, seconds: int = 60) -> Renewal:
        return await next(self._turns).renew(lease_id, seconds)

    async def transact(
        self, acks: Sequence[AckItem], pushes: Sequence[PushItem], required_leases: Sequence[str]
    ) -> Committed:
        return await next(self._turns).transactions.add(acks, pushes, required_leases)


def await_all(broker: Broker, items: Sequence[AckItem], entries: list[AckEntry]) -> asyncio.Future[list[AckResult]]:
    """Send a request now, and gather its results when they come."""
    groups: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(item.group, []).append(index)
    pending = [(indexes, broker.ack([entries[index] for index in indexes], group)) for group, indexes in groups.items()]

    async def results() -> list[AckResult]:
        found: dict[int, AckResult] = {}
        for indexes, future in pending:
            found |= zip(indexes, results_of(await future), strict=True)
        return [found[index] for index in range(len(items))]

    return asyncio.ensure_future(results())


def results_of(stretches: list[Stretch]) -> list[AckResult]:
    results: list[AckResult] = []
    for stretch in stretches:
        if stretch.results is not None:
            results += stretch.results
            continue
        assert stretch.held is not None
        names = (stretch.held.queue, stretch.held.partition)
        results += [AckResult(0, e.transaction_id, True, None, *names, stretch.released) for e in stretch.entries]
    return results
