"""Wait for a condition in the database, never for a length of time."""

from __future__ import annotations

import asyncio
from typing import Any

from queenmq.storage.store import Store


async def is_waiting(store: Store, work: asyncio.Future[Any]) -> bool:
    """True as soon as somebody waits for a lock; False when the work ends without."""
    while not work.done():
        if await store.pool.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        ):
            return True
        await asyncio.sleep(0.001)
    return False
