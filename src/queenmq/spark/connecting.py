"""Ways to the database for Spark's processes: Arrow reads over ADBC, typed calls over the storage engine.

Plans carry a URL without its password. Whoever connects finds the password in its own environment: in DATABASE_URL
when that is the same database, else in PGPASSWORD, which both drivers read by themselves. Spark starts a process for
every plan and many for tasks, so what not each of them needs is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from .. import sql
from ..storage.url import without_password
from .errors import NotReady, OptionError, Unreachable

if TYPE_CHECKING:
    import asyncpg
    from adbc_driver_postgresql import dbapi

_T = TypeVar("_T")
PGBOUNCER: Final = "QUEEN_PGBOUNCER"
_YES: Final = ("true", "1")
_NO: Final = ("false", "0", "")
_MISSING: Final = ("42P01", "42883", "3F000", "42703")  # undefined table, function, schema, column


def with_password(url: str) -> str:
    """The URL to connect with."""
    known = os.environ.get("DATABASE_URL")
    return known if known and without_password(known)[0] == url else url


@contextmanager
def arrow_reads(url: str, *, writes: bool = False) -> Iterator[dbapi.Cursor]:
    """A cursor in one transaction, on a connection of its own; as ArrowSession has it."""
    session = ArrowSession(url)
    try:
        with session.transaction(writes=writes) as cursor:
            yield cursor
    finally:
        session.close()


class ArrowSession:
    """A connection that returns Arrow batches, opened when it is needed and kept. One that broke is replaced."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: dbapi.Connection | None = None

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[dbapi.Cursor]:
        """Its statements all see the database as it is at the first of them, and can only read. Those of one that
        `writes` see each what is there when it begins, and are committed at the end."""
        from adbc_driver_postgresql import dbapi

        cursor = self._begun(sql.query("spark_begin_writes" if writes else "spark_begin_reads"))
        try:
            with cursor:
                yield cursor
            assert self._connection is not None
            self._connection.commit()
        except BaseException as error:
            self.close()
            if isinstance(error, dbapi.ProgrammingError) and error.sqlstate in _MISSING:
                raise NotReady(
                    "the database has no queenmq schema, or that of another version; run: queen db migrate"
                ) from error
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it may be broken
                connection.close()

    def _begun(self, statement: str) -> dbapi.Cursor:
        from adbc_driver_postgresql import dbapi

        kept = self._connection is not None
        try:
            cursor = self._opened().cursor()
            cursor.execute(statement)
        except dbapi.Error as error:
            self.close()
            if kept:
                return self._begun(statement)
            raise Unreachable(f"PostgreSQL cannot be reached: {_first_line(error)}") from None
        return cursor

    def _opened(self) -> dbapi.Connection:
        from adbc_driver_postgresql import dbapi

        if self._connection is None:
            self._connection = dbapi.connect(_for_libpq(with_password(self._url)), autocommit=False)
        return self._connection


async def typed(url: str) -> asyncpg.Connection:
    """A connection for typed calls, through PgBouncer where the environment says so, as for the server."""
    from ..storage.pool import connect

    given = os.environ.get(PGBOUNCER, "").lower()
    if given not in _YES + _NO:
        raise OptionError(f"{PGBOUNCER} (environment)", given, "true, false, 1 or 0")
    return await connect(with_password(url), pgbouncer=given in _YES)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """The same, closed at the end."""
    connection = await typed(url)
    try:
        yield connection
    finally:
        await connection.close()


def call(url: str, work: Callable[[asyncpg.Connection], Awaitable[_T]]) -> _T:
    """One typed call on a connection of its own, from code that is not asynchronous. In a thread of its own: notebooks
    have an event loop that is running already."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

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
