"""Single messages and the contents of queues, as people look at them: get, list, delete, dead-letter, clear.

There is no state per message. What a message's state is follows from where the cursors of its partition stand; that a
message was deleted, from the gap that it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, get_args
from uuid import UUID

from .. import sql
from ..wire.names import InvalidValue
from .pool import Executor, translated, undisturbed
from .pop import QUEUE_MODE

MessageStatus = Literal["pending", "processing", "completed", "dead_letter"]
STATUSES: Final = frozenset(get_args(MessageStatus))

BY_HAND: Final = "Moved to the dead letter queue by hand"


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message without its payload. `queue_status` is None where queue mode is not used."""

    id: UUID
    transaction_id: str
    partition_uid: UUID
    queue: str
    partition: str
    namespace: str
    task: str
    seq: int
    status: MessageStatus
    queue_status: MessageStatus | None
    consumed_by: int
    total_groups: int
    trace_id: UUID | None
    producer_sub: str | None
    priority: int
    created_at: datetime
    leased_until: datetime | None


@dataclass(frozen=True, slots=True)
class GroupsInUse:
    """How queues are consumed: in queue mode, and by how many named groups."""

    queue_mode: bool
    named: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group and one message."""

    name: str
    consumed: bool
    leased_until: datetime | None


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A message with everything known of it. `stored` is False when only the copy in a dead letter is left."""

    info: MessageInfo
    payload: bytes
    encrypted: bool
    stored: bool
    error: str | None
    retry_count: int | None
    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int | None
    groups: list[GroupState]


@dataclass(frozen=True, slots=True)
class Deleted:
    message: bool
    dead_letters: int


_INFO: Final = MessageInfo.__match_args__


async def list_messages(
    db: Executor,
    *,
    queue: str | None = None,
    partition: str | None = None,
    namespace: str | None = None,
    task: str | None = None,
    status: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 200,
    offset: int = 0,
) -> list[MessageInfo]:
    """One page of stored messages, newest first; `since` and `until` are inclusive."""
    if status is not None and status not in STATUSES:
        raise InvalidValue("status", status, f"one of {', '.join(sorted(STATUSES))}")
    async with translated():
        rows = await db.fetch(
            sql.query("list_messages"), queue, partition, namespace, task, status, since, until, limit, offset
        )
    return [_info(row) for row in rows]


async def groups_in_use(
    db: Executor, *, queue: str | None = None, namespace: str | None = None, task: str | None = None
) -> GroupsInUse:
    async with translated():
        row = await db.fetchrow(sql.query("groups_in_use"), queue, namespace, task)
    return GroupsInUse(row["queue_mode"], row["named"])


async def get(db: Executor, partition_uid: UUID, transaction_id: str) -> MessageDetail | None:
    """One message; when it is gone, what a dead letter has kept of it; None when there is neither."""
    async with translated():
        row = await db.fetchrow(sql.query("get_message"), partition_uid, transaction_id)
        if row is None:
            return None
        groups = await db.fetch(sql.query("groups_of_message"), row["partition_id"], row["seq"])
    return MessageDetail(
        _info(row),
        row["payload"],
        row["encrypted"],
        row["stored"],
        row["error_message"],
        row["retry_count"],
        row["lease_time"],
        row["retry_limit"],
        row["retry_delay"],
        row["ttl"],
        [GroupState(*group) for group in groups],
    )


async def delete(db: Executor, partition_uid: UUID, transaction_id: str) -> Deleted:
    """Remove one message and its dead letters. Its transactionId may be used again.

    A consumer that holds it keeps its lease on the others; its ack of this one is answered "Message not found".
    """
    async with translated():
        row = await undisturbed(partial(db.fetchrow, sql.query("delete_message"), partition_uid, transaction_id))
    return Deleted(row["deleted"], row["dead_letters"])


async def dead_letter(
    db: Executor, partition_uid: UUID, transaction_id: str, group: str | None = QUEUE_MODE, *, reason: str = BY_HAND
) -> Literal["copied", "skipped", "removed"]:
    """Give a message up for a group: it has its dead letter afterwards and does not get the message (again).

    A cursor steps over a message only when it is the next one ("skipped"). Another one has to be taken out of the
    partition ("removed"), which is done only when no other group needs it; else MessageNeeded says which groups do.
    None as the group gives it up for every group that has not consumed it yet. A message that the group has consumed
    already is only copied. Raises MessageNotFound.
    """
    async with translated():
        outcome: Literal["copied", "skipped", "removed"] = await undisturbed(
            partial(db.fetchval, sql.query("dead_letter_message"), partition_uid, transaction_id, group, reason)
        )
    return outcome


async def clear(db: Executor, queue: str, partition: str | None = None) -> int:
    """Remove every message of a queue or of one partition, consumed or not; returns how many.

    Leases end and groups stand at the end. Dead letters stay. An archive hold does not stop this: it is done by hand.
    """
    async with translated():
        return int(await undisturbed(partial(db.fetchval, sql.query("clear"), queue, partition)))


def _info(row: Any) -> MessageInfo:
    return MessageInfo(*(row[name] for name in _INFO))
