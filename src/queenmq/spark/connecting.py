"""Ways to the database for Spark's processes: Arrow reads over ADBC, typed calls over the storage engine.

Plans carry a URL without its password. Whoever connects finds the password in its own environment: in DATABASE_URL
when that is the same database, else in PGPASSWORD, which both drivers read by themselves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from ..storage.pool import connect
from ..storage.url import without_password
from .errors import NotReady, Unreachable

if TYPE_CHECKING:
    import asyncpg
    from adbc_driver_postgresql import dbapi

_T = TypeVar("_T")
_MISSING: Final = ("42P01", "42883", "3F000", "42703")  # undefined table, function, schema, column
_SNAPSHOT: Final = "set transaction isolation level repeatable read, read only"


def with_password(url: str) -> str:
    """The URL to connect with."""
    known = os.environ.get("DATABASE_URL")
    return known if known and without_password(known)[0] == url else url


@contextmanager
def arrow_reads(url: str, *, writes: bool = False) -> Iterator[dbapi.Cursor]:
    """A cursor in one transaction that returns Arrow batches. Its statements all see the database as it is at the
    first of them and can only read; those of one that `writes` see each other's time, and are committed at the end."""
    from adbc_driver_postgresql import dbapi

    try:
        connection = dbapi.connect(_for_libpq(with_password(url)), autocommit=False)
    except dbapi.Error as error:
        raise Unreachable(f"PostgreSQL cannot be reached: {_first_line(error)}") from None
    with connection, connection.cursor() as cursor:
        try:
            if not writes:
                cursor.execute(_SNAPSHOT)
            yield cursor
            connection.commit()
        except dbapi.ProgrammingError as error:
            if error.sqlstate in _MISSING:
                raise NotReady(
                    "the database has no queenmq schema, or that of another version; run: queen db migrate"
                ) from error
            raise


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection for typed calls."""
    connection = await connect(with_password(url))
    try:
        yield connection
    finally:
        await connection.close()


def call(url: str, work: Callable[[asyncpg.Connection], Awaitable[_T]]) -> _T:
    """One typed call on a connection of its own, from code that is not asynchronous. In a thread of its own: notebooks
    have an event loop that is running already."""

    async def called() -> _T:
        async with connected(url) as connection:
            return await work(connection)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(called())).result()


def _for_libpq(url: str) -> str:
    """Without what only other drivers know."""
    return url.replace("ssl=true", "sslmode=require")


def _first_line(error: Exception) -> str:
    """libpq says nothing of the password."""
    return str(error).strip().splitlines()[0]
