"""Bring a database to this version's schema, and say how it stands.

Migrations are numbered, append-only and applied once, each in its own transaction, recorded with a checksum. Procedures
are replaced as a whole by those of a higher version, never by those of a lower one. Online migrations come last, since
they take long and nothing waits for them. An advisory lock lets one session migrate while others wait; behind
PgBouncer, where a session belongs to no client, each step takes it for its transaction and looks again. `lock_timeout`
keeps a waiting DDL statement from freezing the traffic behind it, and the statement is then tried again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import asyncpg

from .. import sql
from . import ddl, online, session
from .ddl import Report, Way
from .errors import UnsupportedDatabase
from .pool import connect, connect_unchecked, translated
from .schema_state import MigrationState, procedures, recorded, refuse_changed, refuse_incompatible, states

_LOCK_KEY: Final = 0x7175_6565_6E  # "queen"
_OLDEST: Final = 150000


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


async def migrate(
    dsn: str,
    *,
    lock_timeout_ms: int = 2000,
    connect_timeout: float = 10,
    pgbouncer: bool = False,
    report: Report = lambda _: None,
    finish_online: bool = True,
    replace_procedures: bool | None = None,
) -> MigrationReport:
    """Apply what is missing. Safe when several servers start together, and while traffic runs.

    Without `finish_online`, online migrations are left pending unless the database is new. `replace_procedures`:
    whether those of another build of the same version are replaced; by default, a checkout does that and an installed
    package does not.
    """
    way = Way(lock_timeout_ms, pgbouncer, report, _LOCK_KEY)
    replace = sql.is_checkout() if replace_procedures is None else replace_procedures
    connection = await connect_unchecked(dsn, connect_timeout=connect_timeout, pgbouncer=pgbouncer)
    try:
        async with translated():
            stored = pgbouncer and await _store_settings(connection, way)
            await _require_supported(connection)
            applied, replaced = await _bring_up(connection, way, finish_online, replace)
            if stored:
                await session.retire(connection, report)
            return MigrationReport(tuple(applied), replaced, _version(connection))
    finally:
        await connection.close(timeout=connect_timeout)


async def status(dsn: str, *, connect_timeout: float = 10, pgbouncer: bool = False) -> list[MigrationState]:
    """Every migration known here or applied there."""
    connection = await connect_unchecked(dsn, connect_timeout=connect_timeout, pgbouncer=pgbouncer)
    try:
        async with translated():
            return states(await recorded(connection))
    finally:
        await connection.close()


async def check(dsn: str, *, connect_timeout: float = 10, pgbouncer: bool = False) -> list[Problem]:
    """What is wrong with this database's schema or its derived tables; nothing when all is well."""
    found = await status(dsn, connect_timeout=connect_timeout, pgbouncer=pgbouncer)
    problems = [
        Problem("migrations", state.name, _explain(state)) for state in found if state.state not in ("applied", "newer")
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


def _explain(state: MigrationState) -> str:
    if state.steps is not None:
        return f"is pending: {state.steps[0]} of {state.steps[1]} steps are done"
    if state.state == "incompatible":
        return f"is incompatible: it requires version {state.requires} or newer, this is version {sql.VERSION}"
    if state.state == "differs":
        return f"differs: they are of another build of version {sql.VERSION}"
    return f"is {state.state}"


async def _require_supported(connection: asyncpg.Connection) -> None:
    number = int(await connection.fetchval("show server_version_num"))
    if number < _OLDEST:
        raise UnsupportedDatabase(f"PostgreSQL 15 or newer is needed; this server is {_version(connection)}.")
    encoding = await connection.fetchval("show server_encoding")
    if encoding != "UTF8":
        raise UnsupportedDatabase(f"The database must be encoded in UTF8; this one is {encoding}.")


def _version(connection: asyncpg.Connection) -> str:
    return str(connection.get_settings().server_version).split()[0]


async def _store_settings(connection: asyncpg.Connection, way: Way) -> bool:
    """Behind PgBouncer: store the session settings with the role when they are not in effect. Was that done?"""
    state = await session.look(connection)
    if not state.lacking or state.stored:
        return False
    async with ddl.step(connection, way):
        if (await session.look(connection)).stored:
            return False
        way.report(f"storing session settings with the role: {', '.join(state.lacking)}")
        await session.store(connection)
    return True


async def _bring_up(
    connection: asyncpg.Connection, way: Way, finish_online: bool, replace: bool
) -> tuple[list[str], bool]:
    """The names of what was applied, and whether the procedures were replaced."""
    applied: list[str] = []
    replaced = False
    found = await _look(connection)
    new = all(state.state == "pending" for state in found)
    if _has_work(found, replace):
        async with ddl.alone(connection, way):
            await ddl.patiently(lambda: _bootstrap(connection, way), way.report, "schema_migrations")
            if _has_work(await _look(connection), replace):  # otherwise the session that we waited for has done it
                applied, replaced = await _apply(connection, way, replace)
    elif any(state.state == "differs" for state in found):
        way.report(
            f"the procedures are of another build of version {sql.VERSION} and stay; `queen db migrate "
            "--replace-procedures` replaces them"
        )
    if new:  # its tables are empty: the steps take no time, and their names would only be noise
        way = dataclasses.replace(way, report=lambda _: None)
    if finish_online or new:
        applied += await online.finish(connection, way)
    return applied, replaced


async def _look(connection: asyncpg.Connection) -> list[MigrationState]:
    """Raises when this code cannot work with the database, or another build has migrated it."""
    found = states(await recorded(connection))
    refuse_incompatible(found)
    refuse_changed(found)
    return found


def _has_work(found: list[MigrationState], replace: bool) -> bool:
    return any(state.needed or (replace and state.state == "differs") for state in found)


async def _apply(connection: asyncpg.Connection, way: Way, replace: bool) -> tuple[list[str], bool]:
    async def run(script: sql.Script, wanted: Callable[[MigrationState], bool]) -> bool:
        return await ddl.patiently(lambda: _run(connection, script, way, wanted), way.report, script.name)

    applied = [
        script.name for script in sql.migrations() if not script.steps and await run(script, lambda state: state.needed)
    ]
    replaced = await run(procedures(), lambda state: state.needed or (replace and state.state == "differs"))
    return applied, replaced


async def _bootstrap(connection: asyncpg.Connection, way: Way) -> None:
    async with ddl.step(connection, way):
        await connection.execute(sql.query("bootstrap"))


async def _run(
    connection: asyncpg.Connection, script: sql.Script, way: Way, wanted: Callable[[MigrationState], bool]
) -> bool:
    """Apply a script if it is still wanted under the lock. Was it applied?"""
    async with ddl.step(connection, way):
        found = states(await recorded(connection))
        if not any(state.number == script.number and wanted(state) for state in found):
            return False
        way.report(f"applying migration {script.name}" if script.number > 0 else "replacing procedures")
        await connection.execute(script.text)
        record = (script.number, script.name, script.checksum, sql.VERSION, script.requires, None)
        await connection.execute(sql.query("record_migration"), *record)
        return True
