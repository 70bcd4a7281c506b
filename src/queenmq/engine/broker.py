"""One worker's engine: every operation a client can ask for, as a future of its answer."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from typing import Any

from ..domain.segments import PushItem
from ..storage.ack import AckItem, AckResult, Renewal
from ..storage.pop import QUEUE_MODE, PopResult
from ..storage.store import Store
from ..storage.transactions import Committed
from ..wire.requests import AckEntry, PushEntry
from .config import EngineConfig
from .requests import PopAsk, PushReceipt, TransactionAsk


class Broker:
    """Futures end with the answer, with a StorageError, an EngineError or an InvalidValue. Cancelling the future of a
    pop says that the client has left: it takes no message any more, and a lease it has won is given back."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @classmethod
    async def open(cls, config: EngineConfig) -> Broker:
        return cls(
            await Store.open(
                config.dsn,
                size=config.admin_connections,
                statement_timeout_ms=config.statement_timeout_ms,
                connect_timeout=config.connect_timeout,
            )
        )

    async def drain(self) -> None:
        """Take nothing new, answer parked pops with nothing, finish what is under way."""

    async def close(self) -> None:
        await self.store.close()

    def push(self, items: Sequence[PushEntry], producer_sub: str | None = None) -> Future[PushReceipt]:
        async def work() -> PushReceipt:
            return PushReceipt(items, await self.store.push(_items(items, producer_sub)))

        return asyncio.ensure_future(work())

    def pop(self, ask: PopAsk) -> Future[PopResult]:
        async def work() -> PopResult:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + ask.wait
            while True:
                result = await self._pop_once(ask)
                if result.claims or loop.time() >= deadline:
                    return result
                await asyncio.sleep(min(0.1, deadline - loop.time()))

        return asyncio.ensure_future(work())

    async def _pop_once(self, ask: PopAsk) -> PopResult:
        options: dict[str, Any] = {
            "batch": ask.batch,
            "partitions": ask.partitions,
            "auto_ack": ask.auto_ack,
            "subscription_mode": ask.subscription_mode,
            "subscription_from": ask.subscription_from,
        }
        if ask.queue is None:
            return await self.store.pop_matching(ask.namespace, ask.task, ask.group, **options)
        return await self.store.pop(ask.queue, ask.group, partition=ask.partition, **options)

    def ack(self, items: Sequence[AckEntry], group: str | None = None) -> Future[list[AckResult]]:
        return asyncio.ensure_future(self.store.ack([_ack(item, group or QUEUE_MODE) for item in items]))

    def transaction(self, ask: TransactionAsk) -> Future[Committed]:
        """Pushes and acks in the order of the operations, each kind by itself. Fails with LeaseNotHeld, AckRefused or
        QueueFull when it cannot be done, and then nothing was done."""
        pushes: list[PushItem] = []
        acks: list[AckItem] = []
        for operation in ask.operations:
            if isinstance(operation, AckEntry):
                acks.append(_ack(operation, operation.consumer_group or QUEUE_MODE))
            else:
                pushes += _items(operation, ask.producer_sub)
        return asyncio.ensure_future(self.store.commit(self.store.transaction(acks, pushes, ask.required_leases)))

    def renew(self, lease_id: str, seconds: int) -> Future[Renewal]:
        return asyncio.ensure_future(self.store.renew(lease_id, seconds))

    def stats(self) -> dict[str, Any]:
        """Counters and timings of this worker's engine, fit for JSON."""
        return {}


def _items(entries: Sequence[PushEntry], producer_sub: str | None) -> list[PushItem]:
    return [
        PushItem(
            entry.queue,
            bytes(entry.payload),
            entry.partition or "Default",
            entry.transaction_id,
            entry.trace_id,
            producer_sub,
        )
        for entry in entries
    ]


def _ack(entry: AckEntry, group: str) -> AckItem:
    return AckItem(
        entry.partition_id,
        entry.transaction_id,
        status=entry.status or "completed",
        group=group,
        lease_id=entry.lease_id or None,
        error=entry.error,
    )
