"""Compares what is remembered of queues with the database, now and then, and learns what is asked for.

Whoever changes a queue tells everybody, but what is told may be lost: this is what makes it right again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from random import random
from typing import Any

import asyncpg

from .. import sql
from ..cluster.shared_state import SharedState
from ..storage.errors import StorageError
from ..storage.pool import translated
from ..storage.queue_configs import load_config, load_configs
from ..storage.store import Store

_log = logging.getLogger(__name__)


class Refresher:
    """Make it inside the running event loop."""

    def __init__(self, store: Store, shared: SharedState, every: float) -> None:
        self._store = store
        self._shared = shared
        self._every = every
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._learning: set[str] = set()
        # The workers of a server begin together, and need not ask together.
        self._timer = self._loop.call_later(every * (0.5 + random() / 2), self._due)

    def close(self) -> None:
        self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def soon(self) -> None:
        """A server is back: it may have told what we have not heard."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._start(self._refresh())

    def learn(self, queue: str) -> None:
        """The configuration of this queue is wanted, and not remembered."""
        if queue not in self._learning and self._store.directory.configs.enabled:
            self._learning.add(queue)
            self._start(self._learn(queue))

    def _due(self) -> None:
        self._timer = self._loop.call_later(self._every, self._due)
        self.soon()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _refresh(self) -> None:
        configs = self._store.directory.configs
        try:
            if len(configs):
                asked = configs.snapshot
                configs.refresh(await load_configs(self._store.pool), asked)
            if self._shared.gateway is not None:
                async with translated():
                    self._shared.clock(await self._store.pool.fetchval(sql.query("database_clock")))
        except (StorageError, asyncpg.PostgresError) as error:
            _log.info("what is remembered of queues could not be compared with the database: %s", error)

    async def _learn(self, queue: str) -> None:
        try:
            config = await load_config(self._store.pool, queue)
            if config is not None:
                self._store.directory.configs.put(queue, config)
        except (StorageError, asyncpg.PostgresError) as error:
            _log.info("the configuration of a queue could not be read: %s", error)
        finally:
            self._learning.discard(queue)
