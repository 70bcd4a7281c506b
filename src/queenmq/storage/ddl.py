"""How the schema is changed beside traffic: in short transactions that give way, by one session at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import asyncpg

from .errors import MigrationBusy

Report = Callable[[str], None]
ATTEMPTS: Final = 30
_GAVE_WAY: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.QueryCanceledError)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Way:
    """How to change the schema: how long a step may wait for its locks, through what, where to report, and under which
    advisory lock."""

    lock_timeout_ms: int
    pgbouncer: bool
    report: Report
    key: int


@asynccontextmanager
async def alone(connection: asyncpg.Connection, way: Way) -> AsyncIterator[None]:
    """Exclude other sessions that use the same lock; behind PgBouncer, `step` does that for each transaction."""
    if way.pgbouncer:
        yield
        return
    await _take_lock(connection, "select pg_try_advisory_lock($1)", way)
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", way.key)


@asynccontextmanager
async def step(connection: asyncpg.Connection, way: Way) -> AsyncIterator[None]:
    """A transaction that holds up traffic for a bounded time and, behind PgBouncer, excludes other migrations."""
    async with connection.transaction():
        await connection.execute(
            f"set local lock_timeout = {int(way.lock_timeout_ms)}; set local statement_timeout = 0"
        )
        if way.pgbouncer:
            await _take_lock(connection, "select pg_try_advisory_xact_lock($1)", way)
        yield


async def patiently(action: Callable[[], Awaitable[_T]], report: Report, what: str) -> _T:
    """Repeat a DDL step that gave way to traffic, with growing pauses."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await action()
        except _GAVE_WAY:
            report(f"{what} waits for running transactions (attempt {attempt} of {ATTEMPTS})")
            await asyncio.sleep(min(0.05 * attempt, 1))
    raise MigrationBusy(
        f"{what} could not get its locks in {ATTEMPTS} attempts. A long transaction is open on a queen table; "
        "find it in pg_stat_activity, end it, and run `queen db migrate` again.",
        detail=what,
    )


async def _take_lock(connection: asyncpg.Connection, attempt: str, way: Way) -> None:
    """Waiting is reported every ten seconds and ends with an error after a minute."""
    for waited in range(60):
        if await connection.fetchval(attempt, way.key):
            return
        if waited % 10 == 0:
            way.report(f"another session is migrating this database; waiting ({waited} s)")
        await asyncio.sleep(1)
    raise MigrationBusy(
        "Another session has been migrating this database for a minute; look for it in pg_stat_activity."
    )
