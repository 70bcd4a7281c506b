"""Transactions: each is its own call and commit, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import asyncpg

from ..domain.segments import PushItem, Segment
from ..storage.ack import AckItem
from ..storage.directory import Directory
from ..storage.push import Sealer
from ..storage.transactions import Committed, Transaction
from .batcher import Batcher
from .budget import ITEM_BYTES, Budget
from .config import EngineConfig
from .isolation import isolated
from .links import Links
from .persistence import persist


class TransactionRequest:
    __slots__ = ("acks", "future", "size", "transaction", "weight")

    def __init__(
        self,
        transaction: Transaction,
        acks: Sequence[AckItem],
        pushes: Sequence[PushItem],
        future: asyncio.Future[Committed],
    ) -> None:
        self.transaction = transaction
        self.acks = acks
        self.size = len(acks) + len(pushes)
        self.weight = sum([len(item.payload) for item in pushes]) + self.size * ITEM_BYTES
        self.future = future

    def lanes(self) -> int:
        return 0


class Transactions:
    def __init__(
        self,
        config: EngineConfig,
        links: Links,
        directory: Directory,
        sealer: Sealer | None,
        budget: Budget,
        *,
        pushed: Callable[[Sequence[Segment]], None],
        freed: Callable[[str, str, str], None],
        released: Callable[[str, str, str], None],
    ) -> None:
        self._config = config
        self._links = links
        self._directory = directory
        self._sealer = sealer
        self._pushed = pushed
        self._freed = freed
        self._released = released
        self._loop = asyncio.get_running_loop()
        self.batcher: Batcher[TransactionRequest] = Batcher(
            self._flush, patience=0.0, max_items=1, max_flushes=max(1, config.connections // 4), budget=budget
        )

    def add(
        self, acks: Sequence[AckItem], pushes: Sequence[PushItem], required: Sequence[str]
    ) -> asyncio.Future[Committed]:
        future: asyncio.Future[Committed] = self._loop.create_future()
        transaction = Transaction(self._directory, acks, pushes, required, self._sealer)
        self.batcher.add(TransactionRequest(transaction, acks, pushes, future))
        return future

    async def _flush(self, batch: list[TransactionRequest]) -> None:
        await isolated(batch, self._commit, self.batcher.stats)

    async def _commit(self, batch: list[TransactionRequest]) -> None:
        request = batch[0]
        committed = await persist(
            self._links,
            partial(_attempt, request.transaction),
            patience=self._config.retry_timeout,
            stats=self.batcher.stats,
        )
        if not request.future.done():
            request.future.set_result(committed)
        self._pushed(request.transaction.segments)
        freed = {
            (result.queue, result.partition, item.group, item.partition_uid)
            for item, result in zip(request.acks, committed.acks, strict=True)
            if result.lease_released and result.queue is not None and result.partition is not None
        }
        for queue, partition, group, uid in freed:
            self._released(queue, uid, group)
            self._freed(queue, partition, group)


async def _attempt(transaction: Transaction, db: asyncpg.Connection, again: bool) -> Committed:
    return await transaction.commit(db, replay=again)
