"""Connections. Every call of the storage engine runs on a connection opened here.

The settings are part of the engine's correctness and speed: READ COMMITTED, because each statement of a procedure
must see what was committed while it waited for a lock; UTC; generic plans that follow an index in its order, because
every hot statement has its index and a plan made while a table was small must not survive its growth.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import asyncpg

from .errors import translate

_DEADLOCKS: Final = 10
_Answer = TypeVar("_Answer")

_SESSION: Final = {
    "application_name": "queenmq",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}


class Executor(Protocol):
    """What a storage call needs: a connection, or a pool that lends one for the statement."""

    async def fetch(self, query: str, *args: Any) -> list[Any]: ...

    async def fetchrow(self, query: str, *args: Any) -> Any: ...

    async def fetchval(self, query: str, *args: Any) -> Any: ...

    async def execute(self, query: str, *args: Any) -> str: ...


async def connect(dsn: str, *, connect_timeout: float = 10, statement_timeout_ms: int = 0) -> asyncpg.Connection:
    """One connection with the engine's session settings."""
    settings = _SESSION | {"statement_timeout": str(statement_timeout_ms)}
    async with translated():
        return await asyncpg.connect(dsn, timeout=connect_timeout, server_settings=settings)


async def create_pool(
    dsn: str, *, size: int, connect_timeout: float = 10, statement_timeout_ms: int = 0
) -> asyncpg.Pool:
    """A pool of such connections; it opens them as they are needed."""
    settings = _SESSION | {"statement_timeout": str(statement_timeout_ms)}
    async with translated():
        return await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=size,
            timeout=connect_timeout,
            server_settings=settings,
            max_inactive_connection_lifetime=0,
        )


async def undeadlocked(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Repeat a statement that was chosen as the victim of a deadlock.

    Ours take their locks in one order; a SQL script that inserts into several partitions may take them in another.
    """
    for _ in range(_DEADLOCKS):
        try:
            return await call()
        except asyncpg.DeadlockDetectedError:
            continue
    return await call()


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Turn errors of the driver into the errors of this room."""
    try:
        yield
    except Exception as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error
