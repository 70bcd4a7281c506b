"""Keep trying: which failures of a call are worth another attempt, and how long.

A call that is repeated here must be idempotent: pushes carry their ids, acks and transactions recognise themselves,
pops first give back what a lost attempt may have won. So a broken connection, a deadlock or a timeout costs a client
time, not an error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, TypeVar

import asyncpg

from ..storage.errors import DatabaseUnavailable, StorageError, translate
from .links import Links
from .stats import OperationStats

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_Answer = TypeVar("_Answer")


class Failure(Enum):
    LOST = "the connection broke: the call may have been done"
    UNDONE = "the call was rolled back, and may succeed when it is repeated"
    FINAL = "repeating it would not help"


_UNDONE: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.TooManyConnectionsError,
    asyncpg.CannotConnectNowError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DiskFullError,
    asyncpg.InvalidCachedStatementError,
)


def classify(error: Exception) -> Failure:
    cause = error.__cause__ if isinstance(error, StorageError) and isinstance(error.__cause__, Exception) else error
    if isinstance(error, _UNDONE) or isinstance(cause, _UNDONE):
        return Failure.UNDONE
    if isinstance(error, DatabaseUnavailable) or isinstance(translate(error), DatabaseUnavailable):
        return Failure.LOST
    return Failure.FINAL


class Unfinished(DatabaseUnavailable):
    """PostgreSQL did not answer for as long as we try. Whether the call was done is not known."""


async def persist(
    links: Links,
    call: Callable[[asyncpg.Connection, bool], Awaitable[_Answer]],
    *,
    patience: float,
    stats: OperationStats,
) -> _Answer:
    """Run `call(connection, again)` until it succeeds, fails for good, or `patience` seconds of failures have passed.

    `again` is True when an earlier attempt may have been done.
    """
    loop = asyncio.get_running_loop()
    deadline: float | None = None
    pause = _FIRST_PAUSE
    again = False
    while True:
        try:
            link = await links.take()
            try:
                answer = await call(link, again)
                links.healthy = True
                return answer
            except (asyncio.CancelledError, asyncpg.ReadOnlySQLTransactionError):
                links.drop(link)
                raise
            except Exception as error:
                if classify(error) is Failure.LOST:
                    again = True
                    links.retire(link)
                raise
            finally:
                links.give_back(link)
        except Exception as error:
            failure = classify(error)
            if failure is Failure.FINAL:
                if again:
                    raise Unfinished(f"PostgreSQL lost the connection, and then: {error}") from error
                raise
            now = loop.time()
            deadline = now + patience if deadline is None else deadline
            if now + pause > deadline:
                raise _given_up(error, again) from error
        stats.retries += 1
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _given_up(error: Exception, again: bool) -> StorageError:
    if again:
        return Unfinished(f"PostgreSQL does not answer: {error}")
    return DatabaseUnavailable(f"PostgreSQL cannot do this now: {error}")
