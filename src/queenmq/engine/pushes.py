"""Pushes: the requests of a flush become one plan, one call and one commit, and each gets its own receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from zlib import crc32

import asyncpg

from ..domain.segments import DEFAULT_PARTITION, Parcel, Receipt, Segment
from ..storage.directory import Directory
from ..storage.push import PushPlan, Sealer, execute
from ..wire.requests import PushEntry
from .batcher import LANES, Batcher
from .budget import Budget
from .config import EngineConfig
from .isolation import isolated
from .links import Links
from .persistence import persist


class PushRequest:
    __slots__ = ("_lanes", "future", "parcel", "size", "weight")

    def __init__(self, parcel: Parcel, weight: int, future: asyncio.Future[Receipt]) -> None:
        self.parcel = parcel
        self.future = future
        self.size = len(parcel.items)
        self.weight = weight
        self._lanes = 0

    def lanes(self) -> int:
        if not self._lanes:
            for queue, partition in {(item.queue, item.partition or DEFAULT_PARTITION) for item in self.parcel.items}:
                self._lanes |= 1 << crc32(f"{queue}\x1e{partition}".encode()) % LANES
        return self._lanes


class Pushes:
    """`pushed` is told which partitions have new messages."""

    def __init__(
        self,
        config: EngineConfig,
        links: Links,
        directory: Directory,
        sealer: Sealer | None,
        budget: Budget,
        *,
        pushed: Callable[[Sequence[Segment]], None],
    ) -> None:
        self._patience = config.retry_timeout
        self._links = links
        self._directory = directory
        self._sealer = sealer
        self._pushed = pushed
        self._loop = asyncio.get_running_loop()
        self.batcher: Batcher[PushRequest] = Batcher(
            self._flush,
            patience=config.batch_wait,
            max_items=config.max_items,
            max_flushes=max(1, config.connections // 2),
            gather=config.batch_wait,
            budget=budget,
        )

    def add(self, items: Sequence[PushEntry], producer_sub: str | None, weight: int) -> asyncio.Future[Receipt]:
        subs: list[str | None] | None = None if producer_sub is None else [producer_sub] * len(items)
        future: asyncio.Future[Receipt] = self._loop.create_future()
        self.batcher.add(PushRequest(Parcel(items, subs), weight, future))
        return future

    async def _flush(self, batch: list[PushRequest]) -> None:
        await isolated(batch, self._store, self.batcher.stats)

    async def _store(self, batch: list[PushRequest]) -> None:
        plan = PushPlan([request.parcel for request in batch], self._directory, self._sealer)
        await persist(self._links, partial(_attempt, plan), patience=self._patience, stats=self.batcher.stats)
        for request, receipt in zip(batch, plan.receipts, strict=True):
            if not request.future.done():
                request.future.set_result(receipt)
        self._pushed(plan.segments)


async def _attempt(plan: PushPlan, db: asyncpg.Connection, again: bool) -> None:
    """The plan recognises what an earlier attempt has stored by its ids, so every attempt is the same."""
    await execute(db, plan)
