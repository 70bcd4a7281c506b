"""Metric rows: what each worker measured, and the roll-ups of it.

A row's numbers are one JSON object; `scope` is a queue's name, or empty for the worker itself. Writing the same row
again replaces it, so a call whose answer was lost may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from .. import sql
from .pool import Executor, translated
from .retention import delete_old

Bucket = Literal["minute", "hour", "day"]
MAX_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class MetricRow:
    at: datetime
    hostname: str
    worker_id: str
    metrics: Mapping[str, Any]
    scope: str = ""


@dataclass(frozen=True, slots=True)
class RollupRow:
    """The metrics of one bucket that starts at `at`; an empty hostname means the whole cluster."""

    bucket: Bucket
    at: datetime
    metrics: Mapping[str, Any]
    hostname: str = ""
    scope: str = ""


async def insert(db: Executor, rows: Sequence[MetricRow]) -> None:
    """Store rows, each (at, hostname, worker, scope) once."""
    async with translated():
        await db.execute(
            sql.query("insert_metrics"),
            [row.at for row in rows],
            [row.hostname for row in rows],
            [row.worker_id for row in rows],
            [row.scope for row in rows],
            [json.dumps(row.metrics) for row in rows],
        )


async def upsert_rollup(db: Executor, rows: Sequence[RollupRow]) -> None:
    async with translated():
        await db.execute(
            sql.query("upsert_rollup"),
            [row.bucket for row in rows],
            [row.at for row in rows],
            [row.hostname for row in rows],
            [row.scope for row in rows],
            [json.dumps(row.metrics) for row in rows],
        )


async def read(
    db: Executor,
    since: datetime,
    until: datetime,
    *,
    bucket: Bucket | None = None,
    hostname: str | None = None,
    scope: str | None = None,
    limit: int = MAX_ROWS,
) -> list[MetricRow]:
    """Rows of [since, until), oldest first: raw, or those of a bucket. None for hostname or scope means any."""
    async with translated():
        if bucket is None:
            rows = await db.fetch(sql.query("read_metrics"), since, until, hostname, scope, limit)
        else:
            rows = await db.fetch(sql.query("read_rollup"), since, until, hostname, scope, limit, bucket)
    return [
        MetricRow(row["at"], row["hostname"], row["worker_id"], json.loads(row["metrics"]), row["scope"])
        for row in rows
    ]


async def forget(db: Executor, *, older_than_seconds: float, batch: int, bucket: Bucket | None = None) -> int:
    """Delete up to `batch` raw rows (or rows of a bucket) of that age; fewer than `batch` means none are left."""
    if bucket is None:
        return await delete_old(db, "forget_metrics", older_than_seconds, batch)
    return await delete_old(db, "forget_rollup", older_than_seconds, batch, bucket)
