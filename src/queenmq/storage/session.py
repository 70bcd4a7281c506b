"""The settings that every session of ours must have, and how it gets them behind PgBouncer.

They are part of the engine's correctness and speed: READ COMMITTED, because each statement of a procedure must see what
was committed while it waited for a lock; UTC; generic plans that follow an index in its order, because every hot
statement has its index and a plan made while a table was small must not survive its growth.

A direct connection names them when it starts. PgBouncer refuses that, and in transaction mode runs each transaction on
any of its own sessions; there they are stored with the role, for this database only, so that each session PgBouncer
opens has them. Each connection then checks that it is so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from .. import sql
from .errors import AccessRefused, UnsupportedDatabase

ALWAYS: Final = {"application_name": "queenmq", "timezone": "UTC"}
"""Named at the start of every connection: PgBouncer accepts these and keeps them for each of its clients."""
NEEDED: Final = {
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}
_SILENCE: Final = 5.0
_TRIES: Final = 50
_PAUSE: Final = 0.1


class SharedConnection(asyncpg.Connection):
    """A connection to PgBouncer. A reset after each use would reach some session, not the one that was used."""

    def get_reset_query(self) -> str:
        return ""


def arguments(*, statement_timeout_ms: int, pgbouncer: bool, lazy_commit: bool = False) -> dict[str, Any]:
    """What the driver must be told besides where the database is.

    `lazy_commit` is for what may be lost when PostgreSQL crashes: it is not waited for until it is on disk.
    """
    if pgbouncer:
        # A timeout on our side, with a cancel request, instead of one that would have to be a setting of the role.
        timeout = statement_timeout_ms / 1000 or None
        return {"server_settings": ALWAYS, "connection_class": SharedConnection, "command_timeout": timeout}
    settings = ALWAYS | NEEDED | {"statement_timeout": str(statement_timeout_ms)}
    if lazy_commit:
        settings |= {"synchronous_commit": "off"}
    # PostgreSQL cancels what takes too long; ours is for a PostgreSQL that says nothing any more.
    timeout = statement_timeout_ms / 1000 + _SILENCE if statement_timeout_ms else None
    return {"server_settings": settings, "command_timeout": timeout}


@dataclass(frozen=True, slots=True)
class State:
    """What a connection in PgBouncer mode has found behind it."""

    lacking: dict[str, str]
    """Settings that are not in effect, with their values."""
    stored: bool
    """Are all settings stored with the role? Then a session that lacks one began before that."""
    pooled: bool
    """Is PgBouncer there, or PostgreSQL itself?"""


async def look(connection: asyncpg.Connection) -> State:
    """Raises UnsupportedDatabase when there is a PgBouncer that cannot do what we need."""
    [row] = await connection.fetch(sql.query("session_state"), list(NEEDED))
    pooled = row["pid"] != connection.get_server_pid()
    if pooled and not row["tracked"]:
        raise UnsupportedDatabase(
            "PgBouncer does not keep track of prepared statements. It must be version 1.21 or newer, with "
            "max_prepared_statements above 0."
        )
    found = zip(NEEDED, row["values"], strict=True)
    stored = {f"{name}={value}" for name, value in NEEDED.items()} <= set(row["stored"] or ())
    return State({name: value for name, value in found if value != NEEDED[name]}, stored, pooled)


async def accept(connection: asyncpg.Connection) -> bool:
    """Are the settings in effect? A session from before they were stored is ended, and the caller connects again;
    otherwise UnsupportedDatabase says what is missing."""
    state = await look(connection)
    if not state.lacking:
        return True
    if state.stored and state.pooled:
        await end(connection)
        return False
    values = ", ".join(f"{name} is {value}, not {NEEDED[name]}" for name, value in state.lacking.items())
    raise UnsupportedDatabase(
        f"The sessions behind PgBouncer do not have the settings this server needs: {values}. `queen db migrate` "
        "with QUEEN_PGBOUNCER=true stores them with the role.",
        detail=values,
    )


async def store(connection: asyncpg.Connection) -> None:
    """Make the settings defaults of the role in this database, for the sessions that begin from now on."""
    wanted = NEEDED.items()
    statements = [await connection.fetchval(sql.query("store_setting"), name, value) for name, value in wanted]
    try:
        async with connection.transaction():
            for statement in statements:
                await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as error:
        raise AccessRefused(
            f"The role may not store its session settings ({error}). Let an administrator run: {'; '.join(statements)}"
        ) from error


async def retire(connection: asyncpg.Connection, report: Callable[[str], None]) -> None:
    """End the sessions that PgBouncer opened before now, each when it has rested, so that nobody works on without the
    settings; PgBouncer opens others. This one goes last."""
    if not (await look(connection)).pooled:
        return
    moment: datetime = await connection.fetchval(sql.query("database_time"))
    left = 0
    for _ in range(_TRIES):
        left = await connection.fetchval(sql.query("retire_sessions"), moment)
        if left == 0:
            break
        await asyncio.sleep(_PAUSE)
    if left:
        report(
            f"{left} sessions behind PgBouncer are in use and keep their earlier settings; run RECONNECT on its console"
        )
    await end(connection)


async def end(connection: asyncpg.Connection) -> None:
    """End the session that happens to run this, and with it the connection."""
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        await connection.execute(sql.query("end_own_session"))
    connection.terminate()
