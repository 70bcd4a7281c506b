"""Bring a database to this version's schema, and say how it stands.

Migrations are numbered, append-only and applied once, each in its own transaction, recorded with a checksum.
Procedures are replaced as a whole when their text differs from what was applied last. An advisory lock lets one
session migrate while others wait; `lock_timeout` keeps a waiting DDL statement from freezing the traffic behind it,
and the statement is then tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import asyncpg

from .. import sql
from .errors import MigrationBusy, SchemaChanged, SchemaMissing, SchemaNewer, UnsupportedDatabase
from .pool import Executor, connect, translated

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


async def migrate(
    dsn: str, *, lock_timeout_ms: int = 2000, connect_timeout: float = 10, report: Report = lambda _: None
) -> MigrationReport:
    """Apply what is missing. Safe when several servers start together, and while traffic runs."""
    connection = await connect(dsn, connect_timeout=connect_timeout)
    try:
        async with translated():
            await _require_supported(connection)
            if _is_current(await _recorded(connection)):
                return MigrationReport((), False, _version(connection))
            await _take_lock(connection, report)
            return await _apply(connection, lock_timeout_ms, report)
    finally:
        await connection.close()


async def status(dsn: str, *, connect_timeout: float = 10) -> list[MigrationState]:
    """Every migration known here or applied there."""
    connection = await connect(dsn, connect_timeout=connect_timeout)
    try:
        async with translated():
            return _states(await _recorded(connection))
    finally:
        await connection.close()


async def check(dsn: str, *, connect_timeout: float = 10) -> list[Problem]:
    """What is wrong with this database's schema or its derived tables; nothing when all is well."""
    problems = [
        Problem("migrations", state.name, f"is {state.state}")
        for state in await status(dsn, connect_timeout=connect_timeout)
        if state.state != "applied"
    ]
    if problems:
        return problems
    connection = await connect(dsn, connect_timeout=connect_timeout)
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


async def _take_lock(connection: asyncpg.Connection, report: Report) -> None:
    """Held until the connection closes. Waiting is reported once a second and ends with an error after a minute."""
    for waited in range(60):
        if await connection.fetchval("select pg_try_advisory_lock($1)", _LOCK_KEY):
            return
        report(f"another session is migrating this database; waiting ({waited} s)")
        await asyncio.sleep(1)
    raise MigrationBusy(
        "Another session has been migrating this database for a minute; look for it in pg_stat_activity."
    )


async def _apply(connection: asyncpg.Connection, lock_timeout_ms: int, report: Report) -> MigrationReport:
    await connection.execute(f"set lock_timeout = {int(lock_timeout_ms)}")
    await _patiently(lambda: connection.execute(sql.query("bootstrap")), report, "schema_migrations")
    recorded = await _recorded(connection)
    if _is_current(recorded):  # the session we waited for has done it
        return MigrationReport((), False, _version(connection))
    applied = []
    for script in sql.migrations():
        if script.number not in recorded:
            report(f"applying migration {script.name}")
            await _patiently(lambda script=script: _run(connection, script), report, script.name)  # type: ignore[misc]
            applied.append(script.name)
    text = _procedures_text()
    procedures = sql.Script(_PROCEDURES, "procedures", text)
    row = recorded.get(_PROCEDURES)
    if row is None or row.checksum != procedures.checksum:
        report("replacing procedures")
        await _patiently(lambda: _run(connection, procedures), report, "procedures")
    return MigrationReport(tuple(applied), True, _version(connection))


async def _run(connection: asyncpg.Connection, script: sql.Script) -> None:
    async with connection.transaction():
        await connection.execute(script.text)
        await connection.execute(sql.query("record_migration"), script.number, script.name, script.checksum)


async def _patiently(action: Callable[[], Awaitable[object]], report: Report, what: str) -> None:
    """Repeat a DDL step that gave way to traffic, with growing pauses."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await action()
            return
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
