"""Does PostgreSQL answer right now? Asked for /health, where an idle worker would not notice otherwise.

The question has a connection of its own: a pool whose connections are all at work could not tell a busy database from
one that is away. One question is under way at a time, and its answer counts for a moment, so however many ask, the
database gets one short statement a second, and one attempt to connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from ..storage.errors import StorageError

FRESH: Final = 1.0
"""Seconds for which an answer counts."""
PATIENCE: Final = 1.0
"""Seconds in which PostgreSQL must answer. To connect may take as long again."""


class Probe:
    """`connect` gives a connection within `PATIENCE` seconds, or raises. Make it inside the running event loop."""

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._connection: asyncpg.Connection | None = None
        self._asking: asyncio.Task[bool] | None = None
        self._asked = float("-inf")

    async def answers(self) -> bool:
        """False after `PATIENCE` seconds at the latest."""
        asking = self._asking
        if asking is None or (asking.done() and self._loop.time() - self._asked >= FRESH):
            asking = self._asking = self._loop.create_task(self._ask())
        done, _ = await asyncio.wait([asking], timeout=PATIENCE)
        return bool(done) and asking.result()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        self._give_up()

    async def _ask(self) -> bool:
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            return await self._answered(self._connection)
        except (StorageError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            self._give_up()
            return False
        finally:
            self._asked = self._loop.time()

    async def _answered(self, connection: asyncpg.Connection) -> bool:
        """A connection on which nothing comes back is cut: to cancel its statement would wait for the same network."""
        cut = self._loop.call_later(PATIENCE, connection.terminate)
        try:
            return await connection.fetchval("select true") is True
        finally:
            cut.cancel()

    def _give_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
