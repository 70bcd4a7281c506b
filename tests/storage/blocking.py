"""Wait until one session really waits for another, so that a test knows in which order two transactions meet."""

from __future__ import annotations

import asyncio

import asyncpg

from queenmq.storage.pool import Executor


async def blocked(db: Executor, holder: asyncpg.Connection, statement: str) -> None:
    """Return when a statement that contains this text waits for a lock of the holder.

    `db` must not be inside a transaction: there, what others do is looked at once and remembered.
    """
    waits = (
        "select exists (select from pg_stat_activity where query like '%' || $1 || '%'"
        " and pid <> pg_backend_pid() and $2 = any (pg_blocking_pids(pid)))"
    )
    async with asyncio.timeout(30):
        while True:
            if await db.fetchval(waits, statement, holder.get_server_pid()):
                return
            await asyncio.sleep(0.005)
