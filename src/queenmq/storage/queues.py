"""Queues: configure, look up, delete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from .. import sql
from ..domain.options import parse
from ..wire.names import check_name
from .pool import Executor, translated, undisturbed


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as it is stored: its names and the value of every option. None is an option never set."""

    queue_id: int
    uid: UUID
    name: str
    namespace: str
    task: str
    lease_time: int
    retry_limit: int
    retry_delay: int
    delayed_processing: int
    window_buffer: int
    max_wait_time_seconds: int
    max_size: int
    priority: int
    ttl: int | None
    dead_letter_queue: bool | None
    dlq_after_max_retries: bool | None
    retention_enabled: bool
    retention_seconds: int
    completed_retention_seconds: int
    dedup_window_seconds: int
    encryption_enabled: bool
    version: int
    created_at: datetime
    updated_at: datetime


_FIELDS = tuple(field.name for field in fields(Queue))


async def configure(
    db: Executor, queue: str, options: Mapping[str, object], *, namespace: str | None = None, task: str | None = None
) -> Queue:
    """Create a queue or change the options given; the others keep their values."""
    check_name("queue", queue)
    if namespace is not None:
        check_name("namespace", namespace, empty=True)
    if task is not None:
        check_name("task", task, empty=True)
    columns = json.dumps(parse(options))
    async with translated():
        row = await undisturbed(partial(db.fetchrow, sql.query("configure"), queue, namespace, task, columns))
    return _queue(row)


async def find(db: Executor, queue: str) -> Queue | None:
    async with translated():
        row = await db.fetchrow(sql.query("find_queue"), queue)
    return None if row is None else _queue(row)


async def list_queues(db: Executor) -> list[Queue]:
    """All queues, newest first."""
    async with translated():
        return [_queue(row) for row in await db.fetch(sql.query("list_queues"))]


async def delete(db: Executor, queue: str) -> bool:
    """Remove a queue with its messages, groups, subscriptions, dead letters and traces; False when there is none."""
    async with translated():
        return bool(await undisturbed(partial(db.fetchval, sql.query("delete_queue"), queue)))


def _queue(row: Any) -> Queue:
    return Queue(*(row[name] for name in _FIELDS))
