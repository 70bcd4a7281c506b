"""Pushes straight into PostgreSQL, by the same plans and procedures that the server uses.

A plan keeps the ids of its messages. When the connection breaks it is run again on another one, and what the first
attempt has stored is recognised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import asyncpg

from ..domain.cipher import EncryptionUnavailable
from ..domain.segments import Parcel, Verdict
from ..storage.directory import Directory
from ..storage.errors import AccessRefused, DatabaseUnavailable, SchemaMissing, StorageError, translate
from ..storage.push import PushPlan, execute
from .connecting import typed
from .errors import NotReady, SparkError, Unreachable, WriteRefused
from .pushing import Patience, Tally
from .reader import cipher

_UNDONE: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)


class DatabasePusher:
    """One connection, opened when it is needed."""

    def __init__(self, url: str, max_retry_seconds: float) -> None:
        self._url = url
        self._patience = max_retry_seconds
        self._sealer = cipher()
        self._directory = Directory()
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection | None = None

    def push(self, parcel: Parcel) -> Tally:
        patience = Patience(self._patience)
        tally = Tally()
        while True:
            plan = PushPlan([parcel], self._directory, self._sealer, whole=True)
            self._store(plan, patience)
            if plan.receipts[0].complete:
                return tally + Tally(len(parcel.items))
            verdicts = plan.verdicts()
            tally += _counted(verdicts)
            full = [index for index, verdict in enumerate(verdicts) if verdict.status == "queue_full"]
            if not full:
                return tally
            patience.wait(verdicts[full[0]].error or "the queue is full")
            if len(full) > 1:  # a queue may have room for some of them, or be smaller than a push
                half = len(full) // 2
                return tally + self.push(_only(parcel, full[:half])) + self.push(_only(parcel, full[half:]))
            parcel = _only(parcel, full)

    def close(self) -> None:
        self._disconnect()
        self._runner.close()

    def _store(self, plan: PushPlan, patience: Patience) -> None:
        while True:
            try:
                return self._runner.run(self._attempt(plan))
            except EncryptionUnavailable as error:
                raise WriteRefused(
                    f"queue {error.queue} is encrypted and there is no QUEEN_ENCRYPTION_KEY in the environment of the "
                    "executors; nothing of this push was stored"
                ) from None
            except Exception as error:
                known = error if isinstance(error, StorageError) else translate(error)
                if not isinstance(known, DatabaseUnavailable) and not isinstance(error, _UNDONE):
                    raise (_final(known) if known else error) from None
                self._disconnect()
                patience.wait(f"PostgreSQL cannot store it now ({known.message if known else error})")

    async def _attempt(self, plan: PushPlan) -> None:
        if self._connection is None:
            self._connection = await typed(self._url)
        await execute(self._connection, plan)

    def _disconnect(self) -> None:
        """Without a word to a server that may be gone."""
        if self._connection is not None:
            self._runner.run(_terminated(self._connection))
            self._connection = None


async def _terminated(connection: asyncpg.Connection) -> None:
    connection.terminate()


def _counted(verdicts: Sequence[Verdict]) -> Tally:
    statuses = [verdict.status for verdict in verdicts]
    return Tally(statuses.count("queued"), statuses.count("duplicate"))


def _only(parcel: Parcel, rows: list[int]) -> Parcel:
    return Parcel(
        [parcel.items[row] for row in rows],
        parcel.subs and [parcel.subs[row] for row in rows],
        parcel.marks and [parcel.marks[row] for row in rows],
    )


def _final(error: StorageError) -> SparkError:
    if isinstance(error, SchemaMissing):
        return NotReady(f"the database is not ready for this queenmq ({error.message}); run: queen db migrate")
    if isinstance(error, AccessRefused):
        return Unreachable(f"PostgreSQL refuses the access: {error.message}")
    return WriteRefused(f"the database refuses the push: {error.message}")
