"""How often PostgreSQL had to end a deadlock. Calls are repeated after one, so only the count tells."""

from __future__ import annotations

import asyncio

import asyncpg

OTHERS = """
    select count(*) from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


async def deadlocks(dsn: str) -> int:
    """The count of a database that nobody else uses any more: sessions report what they saw when they end."""
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(30):
            while await connection.fetchval(OTHERS):  # noqa: ASYNC110  nothing in this process could set an event
                await asyncio.sleep(0.005)
        return int(
            await connection.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
        )
    finally:
        await connection.close()
