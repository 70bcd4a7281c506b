"""Dead letters: list, remove, push again.

A dead letter owns a copy of its message, so all of this works when the message itself is long gone. To retry is to push
the copy as a new message of the same partition: cursors cannot go back for one message, so every group gets it, and it
stands behind what was pushed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

import asyncpg

from .. import sql
from ..wire.names import InvalidValue
from .errors import PartitionGone, StaleConfig, StorageError
from .pool import Executor, translated, undisturbed

MAX_RETRY: Final = 1000
"""Messages that one call pushes again at most: they travel in one transaction."""

_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up. `payload` is JSON text, encrypted when it says so."""

    id: UUID
    queue: str
    partition: str
    partition_uid: UUID
    group: str
    seq: int
    message_id: UUID
    transaction_id: str
    trace_id: UUID | None
    producer_sub: str | None
    payload: bytes
    encrypted: bool
    error: str
    retry_count: int
    created_at: datetime
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    dead_letters: list[DeadLetter]
    total: int


@dataclass(frozen=True, slots=True)
class Retried:
    """The new message that a dead letter became."""

    dead_letter: UUID
    queue: str
    partition: str
    partition_uid: UUID
    message_id: UUID
    transaction_id: str
    seq: int


async def list_dead_letters(
    db: Executor,
    *,
    queue: str | None = None,
    group: str | None = None,
    partition: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
    offset: int = 0,
) -> DeadLetterPage:
    """One page, newest failure first, and how many there are. `since` and `until` are about the failure."""
    async with translated():
        rows = await db.fetch(sql.query("list_dead_letters"), queue, group, partition, since, until, limit, offset)
    return DeadLetterPage([_dead_letter(row) for row in rows if row["id"] is not None], rows[0]["total"])


async def get(db: Executor, dead_letter: UUID) -> DeadLetter | None:
    async with translated():
        row = await db.fetchrow(sql.query("find_dead_letters"), dead_letter, None, None, None)
    return None if row is None else _dead_letter(row)


async def find(db: Executor, partition_uid: UUID, transaction_id: str, group: str | None = None) -> list[DeadLetter]:
    """The dead letters of one message, of all groups or of one, newest failure first."""
    async with translated():
        rows = await db.fetch(sql.query("find_dead_letters"), None, partition_uid, transaction_id, group)
    return [_dead_letter(row) for row in rows]


async def delete(db: Executor, dead_letter: UUID) -> bool:
    return await _delete(db, "delete_dead_letter", dead_letter) > 0


async def delete_message(db: Executor, partition_uid: UUID, transaction_id: str, group: str | None = None) -> int:
    """Remove the dead letters of one message; returns how many."""
    return await _delete(db, "delete_dead_letters_of_message", partition_uid, transaction_id, group)


async def delete_all(db: Executor, queue: str, group: str | None = None) -> int:
    """Remove the dead letters of a queue, or of one group on it; returns how many."""
    return await _delete(db, "delete_dead_letters_of_queue", queue, group)


async def retry(db: Executor, dead_letters: Sequence[UUID]) -> list[Retried]:
    """Push these again and remove them, all or none; those that do not exist are left out of the answer.

    Raises QueueFull when the queue has no room.
    """
    if len(dead_letters) > MAX_RETRY:
        raise InvalidValue("deadLetters", len(dead_letters), f"at most {MAX_RETRY} in one call")
    return await _retry(db, "retry_dead_letters", dead_letters)


async def retry_message(
    db: Executor, partition_uid: UUID, transaction_id: str, group: str | None = None
) -> list[Retried]:
    """Push one message again and remove its dead letters: one new message, whichever groups gave it up."""
    return await _retry(db, "retry_dead_letters_of_message", partition_uid, transaction_id, group)


async def retry_all(db: Executor, queue: str, group: str | None = None, *, limit: int = 100) -> list[Retried]:
    """Push the oldest messages again that a queue (or one group on it) gave up; call until the answer is empty."""
    return await _retry(db, "retry_dead_letters_of_queue", queue, group, min(limit, MAX_RETRY))


async def _retry(db: Executor, query: str, *arguments: Any) -> list[Retried]:
    for _ in range(_ATTEMPTS):
        try:
            async with translated():
                rows = await undisturbed(partial(db.fetch, sql.query(query), *arguments))
        except (asyncpg.SerializationError, PartitionGone, StaleConfig):
            continue  # somebody else was first: removed one of them, or the partition
        else:
            return [Retried(*row) for row in rows]
    raise StorageError(
        f"dead letters could not be retried in {_ATTEMPTS} attempts; others change them at the same time"
    )


async def _delete(db: Executor, query: str, *arguments: Any) -> int:
    async with translated():
        done = await db.execute(sql.query(query), *arguments)
    return int(done.rsplit(" ", 1)[-1])


def _dead_letter(row: Any) -> DeadLetter:
    return DeadLetter(
        row["id"],
        row["queue"],
        row["partition_name"],
        row["partition_uid"],
        row["consumer_group"],
        row["seq"],
        row["message_id"],
        row["transaction_id"],
        row["trace_id"],
        row["producer_sub"],
        row["data"],
        row["encrypted"],
        row["error_message"],
        row["retry_count"],
        row["created_at"],
        row["failed_at"],
    )
