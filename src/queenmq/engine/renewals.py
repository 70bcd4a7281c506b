"""Renewals: the leases of a flush are extended in one statement."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import asyncpg

from ..storage.ack import Renewal, renew_many
from .batcher import Batcher
from .config import EngineConfig
from .isolation import isolated
from .links import Links
from .persistence import persist

_PATIENCE: Final = 0.001


class RenewRequest:
    __slots__ = ("future", "lease_id", "seconds")
    size = 1
    weight = 0

    def __init__(self, lease_id: str, seconds: int, future: asyncio.Future[Renewal]) -> None:
        self.lease_id = lease_id
        self.seconds = seconds
        self.future = future

    def lanes(self) -> int:
        return 0


class Renewals:
    def __init__(self, config: EngineConfig, links: Links) -> None:
        self._config = config
        self._links = links
        self._loop = asyncio.get_running_loop()
        self.batcher: Batcher[RenewRequest] = Batcher(
            self._flush, patience=_PATIENCE, max_items=config.max_items, max_flushes=max(1, config.connections // 4)
        )

    def add(self, lease_id: str, seconds: int) -> asyncio.Future[Renewal]:
        future: asyncio.Future[Renewal] = self._loop.create_future()
        self.batcher.add(RenewRequest(lease_id, seconds, future))
        return future

    async def _flush(self, batch: list[RenewRequest]) -> None:
        await isolated(batch, self._renew, self.batcher.stats)

    async def _renew(self, batch: list[RenewRequest]) -> None:
        patience, stats = self._config.retry_timeout, self.batcher.stats
        renewals = await persist(self._links, partial(_attempt, batch), patience=patience, stats=stats)
        for request, renewal in zip(batch, renewals, strict=True):
            if not request.future.done():
                request.future.set_result(renewal)


async def _attempt(batch: list[RenewRequest], db: asyncpg.Connection, again: bool) -> list[Renewal]:
    return await renew_many(db, [(request.lease_id, request.seconds) for request in batch])
