"""Archive holds: a pipeline that archives a queue keeps retention from removing what it has not committed yet.

A hold says up to which time everything is archived and only ever moves forward. It protects at most `cap_seconds` of
history: a pipeline that stopped must not fill the disk. Then retention passes the hold, marks it and reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from .. import sql
from .pool import Executor, translated

WEEK: Final = 604800


@dataclass(frozen=True, slots=True)
class Hold:
    """Messages created at or before `released_to` are archived; None while nothing is."""

    queue: str
    holder: str
    released_to: datetime | None
    cap_seconds: int
    overrun_at: datetime | None
    updated_at: datetime


async def acquire(
    db: Executor, queue: str, holder: str, *, released_to: datetime | None = None, cap_seconds: int = WEEK
) -> Hold | None:
    """Hold a queue from now on; a hold that is there already keeps its place. None when there is no such queue."""
    async with translated():
        return _hold(await db.fetchrow(sql.query("acquire_hold"), queue, holder, released_to, cap_seconds))


async def advance(db: Executor, queue: str, holder: str, released_to: datetime) -> Hold | None:
    """Release everything created up to a time, unless that was done already. None when there is no hold."""
    async with translated():
        return _hold(await db.fetchrow(sql.query("advance_hold"), queue, holder, released_to))


async def release(db: Executor, queue: str, holder: str) -> bool:
    """End a hold; False when there is none."""
    async with translated():
        return await db.fetchval(sql.query("release_hold"), queue, holder) is not None


async def list_holds(db: Executor, queue: str | None = None) -> list[Hold]:
    """The holds on a queue, or all."""
    async with translated():
        rows = await db.fetch(sql.query("list_holds"), queue)
    return [_row(row) for row in rows]


def _hold(row: Any) -> Hold | None:
    return None if row is None else _row(row)


def _row(row: Any) -> Hold:
    return Hold(
        row["queue"], row["holder"], row["released_to"], row["cap_seconds"], row["overrun_at"], row["updated_at"]
    )
