"""Bring a database to this version's schema, and say how it stands.

Migrations are numbered, append-only and applied once, each in its own transaction, recorded with a checksum.
Procedures are replaced as a whole when their text differs from what was applied last. An advisory lock lets one
session migrate while others wait; behind PgBouncer, where a session is nobody's own, each step takes it for its
transaction and looks again. `lock_timeout` keeps a waiting DDL statement from freezing the traffic behind it, and the
statement is then tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import asyncpg

from .. import sql
from . import session
from .errors import MigrationBusy, SchemaChanged, SchemaMissing, SchemaNewer, UnsupportedDatabase
from .pool import Executor, connect, connect_unchecked, translated

Report = Callable[[str], None]
State = Literal["applied", "pending", "changed", "unknown"]

_LOCK_KEY: Final = 0x7175_6565_6E  # "queen"
_PROCEDURES: Final = 0  # the number under which the procedures' checksum is recorded
_ATTEMPTS: Final = 30
_OLDEST: Final = 150000


@dataclass(frozen=True, slots=True)
class MigrationState:
    number: int
    name: str
    state: State
    applied_at: datetime | None


@dataclass(frozen=True, slots=True)
class MigrationReport:
    applied: tuple[str, ...]
    procedures_replaced: bool
    server_version: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that `check` found: which check, about what, and the finding."""

    check: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Recorded:
    name: str
    checksum: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class _Way:
    """How to migrate: how long a step may wait for its locks, through what, and whom to tell."""

    lock_timeout_ms: int
    pgbouncer: bool
    report: Report


async def migrate(
    dsn: str,
    *,
    lock_timeout_ms: int = 2000,
    connect_timeout: float = 10,
    pgbouncer: bool = False,
    report: Report = lambda _: None,
) -> MigrationReport:
    """Apply what is missing. Safe when several servers start together, and while traffic runs."""
    way = _Way(lock_timeout_ms, pgbouncer, report)
    connection = await connect_unchecked(dsn, connect_timeout=connect_timeout, pgbouncer=pgbouncer)
    try:
        async with translated():
            stored = pgbouncer and await _store_settings(connection, way)
            await _require_supported(connection)
            done = await _bring_up(connection, way)
            if stored:
                await session.retire(connection, report)
            return done
    finally:
        await connection.close()


async def status(dsn: str, *, connect_timeout: float = 10, pgbouncer: bool = False) -> list[MigrationState]:
    """Every migration known here or applied there."""
    connection = await connect_unchecked(dsn, connect_timeout=connect_timeout, pgbouncer=pgbouncer)
    try:
        async with translated():
            return _states(await _recorded(connection))
    finally:
        await connection.close()


async def check(dsn: str, *, connect_timeout: float = 10, pgbouncer: bool = False) -> list[Problem]:
    """What is wrong with this database's schema or its derived tables; nothing when all is well."""
    problems = [
        Problem("migrations", state.name, f"is {state.state}")
        for state in await status(dsn, connect_timeout=connect_timeout, pgbouncer=pgbouncer)
        if state.state != "applied"
    ]
    if problems:
        return problems
    connection = await connect(dsn, connect_timeout=connect_timeout, pgbouncer=pgbouncer)
    try:
        async with translated():
            rows = await connection.fetch(sql.query("partition_lookup_check"))
    finally:
        await connection.close()
    return [Problem("partition_lookup", f"{row['queue_name']}/{row['partition_name']}", row["problem"]) for row in rows]


async def require_current(connection: Executor) -> None:
    """Refuse to work on a schema that this code was not written for."""
    states = _states(await _recorded(connection))
    if any(state.state == "pending" for state in states):
        raise SchemaMissing("The database schema is older than this version; run `queen db migrate`.")


def _states(recorded: dict[int, _Recorded]) -> list[MigrationState]:
    states = [_state(script, recorded.get(script.number)) for script in sql.migrations()]
    known = {script.number for script in sql.migrations()}
    states += [
        MigrationState(number, row.name, "unknown", row.applied_at)
        for number, row in sorted(recorded.items())
        if number not in known and number != _PROCEDURES
    ]
    procedures = sql.Script(_PROCEDURES, "procedures", _procedures_text())
    row = recorded.get(_PROCEDURES)
    states.append(
        _state(procedures, row)
        if row is None or row.checksum == procedures.checksum
        else MigrationState(_PROCEDURES, "procedures", "pending", row.applied_at)
    )
    return states


def _state(script: sql.Script, row: _Recorded | None) -> MigrationState:
    if row is None:
        return MigrationState(script.number, script.name, "pending", None)
    state: State = "applied" if row.checksum == script.checksum else "changed"
    return MigrationState(script.number, script.name, state, row.applied_at)


def _is_current(recorded: dict[int, _Recorded]) -> bool:
    """Nothing to do? Raises when the database is ahead of this code, or has other migrations under the same numbers."""
    states = _states(recorded)
    for state in states:
        if state.state == "unknown":
            raise SchemaNewer(
                f"The database was migrated by a newer version (it has {state.name}, this version ends at "
                f"{sql.migrations()[-1].name}). Start that version, or restore a backup.",
                detail=state.name,
            )
        if state.state == "changed":
            raise SchemaChanged(
                f"Migration {state.name} was applied with another text than this version ships. The database "
                "was migrated by a different build; nothing was changed.",
                detail=state.name,
            )
    return all(state.state == "applied" for state in states)


async def _require_supported(connection: asyncpg.Connection) -> None:
    number = int(await connection.fetchval("show server_version_num"))
    if number < _OLDEST:
        raise UnsupportedDatabase(f"PostgreSQL 15 or newer is needed; this server is {_version(connection)}.")
    encoding = await connection.fetchval("show server_encoding")
    if encoding != "UTF8":
        raise UnsupportedDatabase(f"The database must be encoded in UTF8; this one is {encoding}.")


def _version(connection: asyncpg.Connection) -> str:
    return str(connection.get_settings().server_version).split()[0]


async def _recorded(connection: Executor) -> dict[int, _Recorded]:
    if not await connection.fetchval(sql.query("has_migrations_table")):
        return {}
    rows = await connection.fetch(sql.query("recorded_migrations"))
    return {row["number"]: _Recorded(row["name"], row["checksum"], row["applied_at"]) for row in rows}


async def _store_settings(connection: asyncpg.Connection, way: _Way) -> bool:
    """Behind PgBouncer: store the session settings with the role when they are not in effect. Was that done?"""
    state = await session.look(connection)
    if not state.lacking or state.stored:
        return False
    async with _step(connection, way):
        if (await session.look(connection)).stored:
            return False
        way.report(f"storing session settings with the role: {', '.join(state.lacking)}")
        await session.store(connection)
    return True


async def _bring_up(connection: asyncpg.Connection, way: _Way) -> MigrationReport:
    if _is_current(await _recorded(connection)):
        return MigrationReport((), False, _version(connection))
    if not way.pgbouncer:
        await _take_lock(connection, "select pg_try_advisory_lock($1)", way.report)
    await _patiently(lambda: _bootstrap(connection, way), way.report, "schema_migrations")
    if _is_current(await _recorded(connection)):  # the session we waited for has done it
        return MigrationReport((), False, _version(connection))
    applied = []
    for script in sql.migrations():
        if await _patiently(lambda script=script: _run(connection, script, way), way.report, script.name):  # type: ignore[misc]
            applied.append(script.name)
    procedures = sql.Script(_PROCEDURES, "procedures", _procedures_text())
    replaced = await _patiently(lambda: _run(connection, procedures, way), way.report, "procedures")
    return MigrationReport(tuple(applied), replaced, _version(connection))


async def _bootstrap(connection: asyncpg.Connection, way: _Way) -> bool:
    async with _step(connection, way):
        await connection.execute(sql.query("bootstrap"))
        return True


async def _run(connection: asyncpg.Connection, script: sql.Script, way: _Way) -> bool:
    """Apply a script unless its text is what was applied last. Was it applied?"""
    async with _step(connection, way):
        row = (await _recorded(connection)).get(script.number)
        if row is not None and row.checksum == script.checksum:
            return False
        way.report(f"applying migration {script.name}" if script.number else "replacing procedures")
        await connection.execute(script.text)
        await connection.execute(sql.query("record_migration"), script.number, script.name, script.checksum)
        return True


@asynccontextmanager
async def _step(connection: asyncpg.Connection, way: _Way) -> AsyncIterator[None]:
    """A transaction that holds up traffic for a bounded time and, behind PgBouncer, excludes other migrations."""
    async with connection.transaction():
        await connection.execute(
            f"set local lock_timeout = {int(way.lock_timeout_ms)}; set local statement_timeout = 0"
        )
        if way.pgbouncer:
            await _take_lock(connection, "select pg_try_advisory_xact_lock($1)", way.report)
        yield


async def _take_lock(connection: asyncpg.Connection, attempt: str, report: Report) -> None:
    """Held until the connection or transaction ends. Waiting is reported once a second and ends with an error after a
    minute."""
    for waited in range(60):
        if await connection.fetchval(attempt, _LOCK_KEY):
            return
        report(f"another session is migrating this database; waiting ({waited} s)")
        await asyncio.sleep(1)
    raise MigrationBusy(
        "Another session has been migrating this database for a minute; look for it in pg_stat_activity."
    )


async def _patiently(action: Callable[[], Awaitable[bool]], report: Report, what: str) -> bool:
    """Repeat a DDL step that gave way to traffic, with growing pauses."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await action()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            report(f"{what} waits for running transactions (attempt {attempt} of {_ATTEMPTS})")
            await asyncio.sleep(min(0.05 * attempt, 1))
    raise MigrationBusy(
        f"{what} could not get its locks in {_ATTEMPTS} attempts. A long transaction is open on a queen table; "
        "find it in pg_stat_activity, end it, and run `queen db migrate` again.",
        detail=what,
    )


def _procedures_text() -> str:
    return "\n".join(script.text for script in sql.procedures())
