"""Connections. Every call of the storage engine runs on a connection opened here, with the settings of `session`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import asyncpg

from . import session
from .errors import AccessRefused, DatabaseUnavailable, UnsupportedDatabase, translate
from .url import for_driver

_DEADLOCKS: Final = 10
_LONGEST_PAUSE: Final = 1.0  # seconds before the last attempt
_CHANGED_TABLES: Final = (asyncpg.DatatypeMismatchError, asyncpg.UndefinedColumnError)
_CHANGES: Final = 3  # repetitions after which it is a defect
_STALE: Final = 100  # sessions in a row that are not as the role says
_BAD_OPTIONS: Final = (
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidParameterValueError,
    asyncpg.CantChangeRuntimeParamError,
    asyncpg.PostgresSyntaxError,
)
_Answer = TypeVar("_Answer")


class Executor(Protocol):
    """What a storage call needs: a connection, or a pool that lends one for the statement."""

    async def fetch(self, query: str, *args: Any) -> list[Any]: ...

    async def fetchrow(self, query: str, *args: Any) -> Any: ...

    async def fetchval(self, query: str, *args: Any) -> Any: ...

    async def execute(self, query: str, *args: Any) -> str: ...


async def connect(
    dsn: str,
    *,
    connect_timeout: float = 10,
    statement_timeout_ms: int = 0,
    pgbouncer: bool = False,
    lazy_commit: bool = False,
) -> asyncpg.Connection:
    """One connection with the engine's session settings."""
    options = session.arguments(statement_timeout_ms=statement_timeout_ms, pgbouncer=pgbouncer, lazy_commit=lazy_commit)
    async with _connecting():
        if pgbouncer:
            return await _accepted(for_driver(dsn), timeout=connect_timeout, **options)
        return await asyncpg.connect(for_driver(dsn), timeout=connect_timeout, **options)


async def _accepted(*arguments: Any, **options: Any) -> asyncpg.Connection:
    """A connection to PgBouncer behind which the settings are in effect."""
    for _ in range(_STALE):
        connection: asyncpg.Connection = await asyncpg.connect(*arguments, **options)
        try:
            if await session.accept(connection):
                return connection
        except BaseException:
            connection.terminate()
            raise
    raise UnsupportedDatabase(
        f"{_STALE} sessions behind PgBouncer lack settings that are stored with the role; run RECONNECT on its console."
    )


async def connect_unchecked(
    dsn: str, *, connect_timeout: float = 10, statement_timeout_ms: int = 0, pgbouncer: bool = False
) -> asyncpg.Connection:
    """For whoever puts the settings in effect: behind PgBouncer they may not be so yet."""
    options = session.arguments(statement_timeout_ms=statement_timeout_ms, pgbouncer=pgbouncer)
    async with _connecting():
        return await asyncpg.connect(for_driver(dsn), timeout=connect_timeout, **options)


async def create_pool(
    dsn: str, *, size: int, connect_timeout: float = 10, statement_timeout_ms: int = 0, pgbouncer: bool = False
) -> asyncpg.Pool:
    """A pool of such connections; it opens them as they are needed."""
    async with translated():
        return await asyncpg.create_pool(
            for_driver(dsn),
            min_size=0,
            max_size=size,
            timeout=connect_timeout,
            max_inactive_connection_lifetime=0,
            connect=_accepted if pgbouncer else None,
            **session.arguments(statement_timeout_ms=statement_timeout_ms, pgbouncer=pgbouncer),
        )


async def undisturbed(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Repeat a statement that was rolled back because of what another session did meanwhile.

    It was chosen as the victim of a deadlock: our statements take their locks in one order, but a SQL script that
    inserts into several partitions may take them in another. The pauses grow, so that the others get through meanwhile.

    Or it called a procedure that began before a migration changed a table and read the table after that: the variables
    of the procedure then have the old types. The second call has the new ones.
    """
    for attempt in range(_DEADLOCKS):
        try:
            return await call()
        except asyncpg.DeadlockDetectedError:
            await asyncio.sleep(random.random() * _LONGEST_PAUSE / 2 ** (_DEADLOCKS - 1 - attempt))
        except _CHANGED_TABLES:
            if attempt >= _CHANGES:
                raise
    return await call()


@asynccontextmanager
async def _connecting() -> AsyncIterator[None]:
    """As `translated`, and for what only a URL can bring about: `options` that PostgreSQL refuses, or no address."""
    async with translated():
        try:
            yield
        except _BAD_OPTIONS as error:
            raise AccessRefused(str(error)) from error
        except ValueError as error:
            if isinstance(error, asyncpg.InterfaceError):
                raise
            raise DatabaseUnavailable("the URL cannot be read") from error


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
