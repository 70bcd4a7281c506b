"""How many messages were pushed over time, and the roll-ups of metrics that answer it for ranges long gone.

What was measured outlives the messages: a metric `pushMessages` of a queue, summed up by the pipeline `rollup`, covers
the past up to where that pipeline has settled. The rest is counted in the messages that are stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from .. import sql
from . import system_state
from .metrics import Bucket, RollupRow
from .pool import Executor, translated, undisturbed

STATE: Final = "rollup:metrics"
WIDTHS: Final[dict[Bucket, timedelta]] = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RolledUp:
    """How far the roll-ups reach: computed up to `until`; rows older than `settled` count as complete."""

    until: datetime
    settled: datetime


@dataclass(frozen=True, slots=True)
class Filter:
    """Which queues; None means any."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """The messages pushed in the bucket that starts at `at`."""

    at: datetime
    messages: int


def floor(moment: datetime, bucket: Bucket) -> datetime:
    """The start of the bucket, in UTC, that a moment lies in."""
    return moment - (moment - _EPOCH) % WIDTHS[bucket]


def ceiling(moment: datetime, bucket: Bucket) -> datetime:
    """The first start of a bucket at or after a moment."""
    return moment + (_EPOCH - moment) % WIDTHS[bucket]


async def merge_rollup(db: Executor, rows: Sequence[RollupRow]) -> None:
    """Store roll-ups, each as {metric: {"count", "sum", …}}. A metric that was made of more rows before is kept."""
    ordered = sorted(rows, key=lambda row: (row.bucket, row.at, row.hostname, row.scope))
    async with translated():
        await undisturbed(
            lambda: db.execute(
                sql.query("merge_rollup"),
                [row.bucket for row in ordered],
                [row.at for row in ordered],
                [row.hostname for row in ordered],
                [row.scope for row in ordered],
                [json.dumps(row.metrics) for row in ordered],
            )
        )


async def rolled_up(db: Executor) -> RolledUp | None:
    """How far the roll-ups reach; None when there never was one."""
    found = await system_state.get(db, STATE)
    if not isinstance(found, dict):
        return None
    return RolledUp(datetime.fromisoformat(str(found["until"])), datetime.fromisoformat(str(found["settled"])))


async def put_rolled_up(db: Executor, reach: RolledUp) -> None:
    await system_state.put(db, STATE, {"until": reach.until.isoformat(), "settled": reach.settled.isoformat()})


async def pushed(db: Executor, bucket: Bucket, since: datetime, until: datetime, which: Filter) -> list[Point]:
    """One point for each bucket that overlaps [since, until), the oldest first, whole buckets each."""
    low, high = floor(since, bucket), ceiling(until, bucket)
    start, end = await _covered(db, bucket, low, high)
    found = await _rolled(db, bucket, start, end, which) if start < end else {}
    for first, last in ((low, start), (end, high)):
        if first < last:
            found |= await _stored(db, bucket, first, last, which)
    width = WIDTHS[bucket]
    return [Point(at, found.get(at, 0)) for at in (low + n * width for n in range((high - low) // width))]


async def _covered(db: Executor, bucket: Bucket, low: datetime, high: datetime) -> tuple[datetime, datetime]:
    """The part of a range that roll-ups answer: from the first that knows of pushes to where they are settled."""
    reach = await rolled_up(db)
    end = low if reach is None else max(low, min(high, floor(reach.settled, bucket)))
    if end == low:
        return low, low
    async with translated():
        start = await db.fetchval(sql.query("first_rolled_push"), bucket, low, end)
    return (low, low) if start is None else (start, end)


async def _rolled(db: Executor, bucket: Bucket, since: datetime, until: datetime, which: Filter) -> dict[datetime, int]:
    async with translated():
        rows = await db.fetch(
            sql.query("rolled_pushes"), bucket, since, until, which.queue, which.namespace, which.task
        )
    return {row["at"]: row["messages"] for row in rows}


async def _stored(db: Executor, bucket: Bucket, since: datetime, until: datetime, which: Filter) -> dict[datetime, int]:
    async with translated():
        rows = await db.fetch(
            sql.query("stored_pushes"), WIDTHS[bucket], since, until, which.queue, which.namespace, which.task
        )
    return {row["at"]: row["messages"] for row in rows}


async def rolled_lag(db: Executor, since: datetime, limit: int = 10_000) -> list[tuple[datetime, str, float]]:
    """The longest wait in seconds by hour and queue, from roll-ups of the metric `maxLagMs`, the newest first."""
    async with translated():
        rows = await db.fetch(sql.query("rolled_lag"), since, limit)
    return [(row["at"], row["queue"], row["seconds"]) for row in rows]
