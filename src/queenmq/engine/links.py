"""The sidecar's own connections.

They are opened when work waits for one, lent to one flush at a time, and replaced when they break, so a restarted
PostgreSQL is found again without anybody's help.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from ..storage.errors import DatabaseUnavailable

_CLOSE_SECONDS: Final = 2.0


class Links:
    """At most `size` connections."""

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._idle: list[asyncpg.Connection] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._retired: set[asyncpg.Connection] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._closed = False
        self.open = 0
        self.healthy = True
        """Whether the last attempt to reach PostgreSQL succeeded."""

    @property
    def closed(self) -> bool:
        return self._closed

    async def take(self) -> asyncpg.Connection:
        while True:
            if self._closed:
                raise DatabaseUnavailable("the worker is stopping")
            while self._idle:
                link = self._idle.pop()
                if not link.is_closed():
                    return link
                self.open -= 1
            if self.open < self._size:
                return await self._open()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    async def _open(self) -> asyncpg.Connection:
        self.open += 1
        try:
            link = await self._connect()
        except BaseException as error:
            self.open -= 1
            self.healthy = self.healthy and not isinstance(error, DatabaseUnavailable)
            self._next()
            raise
        self.healthy = True
        return link

    def give_back(self, link: asyncpg.Connection) -> None:
        """Whoever took a connection gives it back, also a broken one."""
        if link.is_closed() or self._closed:
            self._retired.discard(link)
            self.open -= 1
            self.healthy = self.healthy and not link.is_closed()
            link.terminate()
        elif link in self._retired:
            self.open -= 1
            farewell = asyncio.get_running_loop().create_task(self._see_off(link))
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)
        else:
            self._idle.append(link)
        self._next()

    def _next(self) -> None:
        """Let whoever waits longest look again."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def drop(self, link: asyncpg.Connection) -> None:
        """Do not use this connection again: a statement may still be running on it, or the server behind it cannot do
        what is asked."""
        link.terminate()

    def retire(self, link: asyncpg.Connection) -> None:
        """Do not use this connection again: nothing is heard from it. When it is given back, whatever runs on it is
        cancelled, and nobody waits for that."""
        self._retired.add(link)

    async def _see_off(self, link: asyncpg.Connection) -> None:
        try:
            await link.close(timeout=_CLOSE_SECONDS)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            link.terminate()
        finally:
            self._retired.discard(link)

    async def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._closed = True
        idle, self._idle = self._idle, []
        self.open -= len(idle)
        for link in idle:
            await self._see_off(link)
        while self._waiting:
            self._next()
        await asyncio.gather(*self._farewells)
