"""Leases that nobody will use: they are given back, so that their messages need not wait until the leases run out.

A lease whose client has left is given back at once. One that a lost statement may have won is given back more than
once: PostgreSQL may still be at that statement when we have long turned away from it, and win the lease afterwards.
Whoever waits for a partition that becomes free by this is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import asyncpg

from ..storage.ack import Freed, release
from ..storage.errors import DatabaseUnavailable, StorageError
from .config import EngineConfig
from .links import Links
from .persistence import persist
from .stats import OperationStats

_LATER: Final = (0.5, 5.0)  # seconds after which a lease in doubt is given back again, and
_LAST: Final = 2.0  # so long after PostgreSQL has ended the statement
_PAUSE: Final = 0.5

_log = logging.getLogger(__name__)


class Returns:
    """`count`: the leases given back because their clients had left. `freed` is told of queue, partition and group of
    each cursor that is free again."""

    def __init__(
        self, config: EngineConfig, links: Links, stats: OperationStats, freed: Callable[[str, str, str], None]
    ) -> None:
        self._patience = config.retry_timeout
        self._pauses = (*_LATER, config.statement_timeout_ms / 1000 + _LAST)
        self._links = links
        self._stats = stats
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._leases: list[str] = []
        self._running: asyncio.Task[None] | None = None
        self._stopping = False
        self.count = 0

    def add(self, leases: list[str]) -> None:
        """Give these back soon, together with others."""
        if not leases or self._links.closed:
            return
        self._leases += leases
        if self._running is None:
            self._running = self._loop.create_task(self._run())

    def doubt(self, leases: list[str]) -> None:
        """A statement that may win these was lost, and may be running still."""
        if leases:
            for pause in self._pauses:
                self._loop.call_later(pause, self.add, leases)

    async def finish(self) -> None:
        """Give back what there is, as far as PostgreSQL is there."""
        self._stopping = True
        while self._running is not None:
            await self._running

    async def _run(self) -> None:
        try:
            while self._leases and not self._links.closed:
                leases, self._leases = self._leases, []
                if not await self._give_back(leases):
                    self._leases = leases + self._leases
                    await asyncio.sleep(_PAUSE)
        finally:
            self._running = None

    async def _give_back(self, leases: list[str]) -> bool:
        """False when it has to be tried again."""
        try:
            freed = await persist(self._links, partial(_release, leases), patience=self._patience, stats=self._stats)
        except (StorageError, asyncpg.PostgresError) as error:
            if isinstance(error, DatabaseUnavailable) and not self._stopping:
                return False
            _log.warning("%d leases could not be given back, and will run out: %s", len(leases), error)
            return True
        for each in freed:
            self._freed(*each)
        return True


async def _release(leases: list[str], db: asyncpg.Connection, again: bool) -> list[Freed]:
    return await release(db, leases)
