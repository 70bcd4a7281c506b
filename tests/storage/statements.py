"""Which statements something takes: the named queries that reached PostgreSQL, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
from asyncpg.connection import LoggedQuery

from queenmq import sql
from queenmq.storage.pool import Executor

_NAMES = {
    sql.query(name): name
    for name in (
        "find_partitions",
        "ensure_partitions",
        "queue_configs_of",
        "push",
        "push_segment",
        "register_group",
        "transaction",
    )
}


@asynccontextmanager
async def statements(connection: asyncpg.Connection) -> AsyncIterator[list[str]]:
    """All that this connection is asked meanwhile, also by the driver itself."""
    seen: list[str] = []

    def log(query: LoggedQuery) -> None:
        seen.append(_NAMES.get(query.query, query.query))

    with connection.query_logger(log):
        yield seen
        await asyncio.sleep(0)  # the driver tells of a statement in the next round of the loop


class Counted:
    """A connection or pool, and what we have asked it; a statement that failed has a `!` before its name."""

    def __init__(self, db: Executor) -> None:
        self._db = db
        self.seen: list[str] = []

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        with self._noted(query):
            return await self._db.fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> Any:
        with self._noted(query):
            return await self._db.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        with self._noted(query):
            return await self._db.fetchval(query, *args)

    async def execute(self, query: str, *args: Any) -> str:
        with self._noted(query):
            return await self._db.execute(query, *args)

    def new(self) -> list[str]:
        """What was asked since this was called last."""
        seen, self.seen = self.seen, []
        return seen

    @contextmanager
    def _noted(self, query: str) -> Iterator[None]:
        name = _NAMES.get(query, query)
        try:
            yield
        except BaseException:
            name = f"!{name}"
            raise
        finally:
            self.seen.append(name)
