"""Traces: what consumers note about the messages they work on.

A trace belongs to a message, by its partition and transactionId, and may carry names that connect traces of many
messages. It stays when the message goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from .. import sql
from ..domain.ids import new_id
from ..wire.names import check_name
from .errors import MessageNotFound
from .pool import Executor, translated


@dataclass(frozen=True, slots=True)
class Trace:
    """One note. `data` is JSON text."""

    id: UUID
    event_type: str
    data: bytes
    group: str | None
    worker_id: str | None
    created_at: datetime
    names: list[str]


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """A trace and its message; the partition is None when it was removed, the payload when the message was."""

    trace: Trace
    transaction_id: str
    partition_uid: UUID
    queue: str
    partition: str | None
    payload: bytes | None
    encrypted: bool


@dataclass(frozen=True, slots=True)
class TracePage:
    traces: list[TracedMessage]
    total: int


@dataclass(frozen=True, slots=True)
class TraceName:
    name: str
    traces: int
    messages: int
    last_seen: datetime


@dataclass(frozen=True, slots=True)
class TraceNamePage:
    names: list[TraceName]
    total: int


async def add(
    db: Executor,
    partition_uid: UUID,
    transaction_id: str,
    data: bytes,
    *,
    group: str | None = None,
    event_type: str = "info",
    worker_id: str | None = None,
    names: Iterable[str] = (),
) -> UUID:
    """Note something about a message and return the note's id. Raises MessageNotFound when there is no such message."""
    chosen = list(names)
    for name in chosen:
        check_name("traceNames", name)
    check_name("eventType", event_type)
    arguments = (new_id(), partition_uid, transaction_id, group, event_type, data, worker_id, chosen)
    try:
        async with translated():
            trace: UUID | None = await db.fetchval(sql.query("add_trace"), *arguments)
    except asyncpg.ForeignKeyViolationError:
        trace = None  # the queue was deleted this moment
    if trace is None:
        raise MessageNotFound("Message not found", detail=transaction_id)
    return trace


async def of_message(db: Executor, partition_uid: UUID, transaction_id: str) -> list[Trace]:
    """Everything noted about a message, oldest first."""
    async with translated():
        return [_trace(row) for row in await db.fetch(sql.query("traces_of_message"), partition_uid, transaction_id)]


async def by_name(db: Executor, name: str, *, limit: int = 100, offset: int = 0) -> TracePage:
    """Everything noted under a name, oldest first, across messages and queues."""
    async with translated():
        rows = await db.fetch(sql.query("traces_by_name"), name, limit, offset)
    traces = [
        TracedMessage(
            _trace(row),
            row["transaction_id"],
            row["partition_uid"],
            row["queue"],
            row["partition"],
            row["payload"],
            bool(row["encrypted"]),
        )
        for row in rows
        if row["id"] is not None
    ]
    return TracePage(traces, rows[0]["total"])


async def list_names(db: Executor, *, limit: int = 50, offset: int = 0) -> TraceNamePage:
    """The names in use, last seen first."""
    async with translated():
        rows = await db.fetch(sql.query("trace_names"), limit, offset)
    names = [
        TraceName(row["trace_name"], row["traces"], row["messages"], row["last_seen"])
        for row in rows
        if row["trace_name"] is not None
    ]
    return TraceNamePage(names, rows[0]["total"])


def _trace(row: Any) -> Trace:
    return Trace(
        row["id"],
        row["event_type"],
        row["data"].encode(),
        row["consumer_group"],
        row["worker_id"],
        row["created_at"],
        list(row["names"]),
    )
