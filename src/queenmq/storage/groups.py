"""Consumer groups: who is behind, and by how much; move, restart and forget them.

A group is a row per queue, with a cursor on every partition of it. Lag counts from the cursor to the last message; what
the group's subscription will skip is no lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal
from uuid import UUID

from .. import sql
from .pool import Executor, translated, undisturbed

LAGGING_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Group:
    """One group on one queue. `members` are the partitions it has a cursor on."""

    name: str
    queue: str
    members: int
    lagging_partitions: int
    lag: int
    lag_seconds: float
    state: Literal["Stable", "Lagging", "Dead"]
    subscription_mode: Literal["all", "new", "timestamp"] | None
    subscription_timestamp: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class CursorLag:
    """One cursor; the lease is None when none is live."""

    group: str
    queue: str
    partition: str
    partition_uid: UUID
    lag: int
    lag_seconds: float
    oldest_unconsumed_at: datetime | None
    lease_id: UUID | None
    lease_expires_at: datetime | None
    last_consumed_at: datetime | None
    consumed: int


async def list_groups(db: Executor) -> list[Group]:
    """All groups, one entry per queue. A group that has never consumed is Dead, one over 300 s behind is Lagging."""
    async with translated():
        rows = await db.fetch(sql.query("list_groups"))
    return [
        Group(
            row["name"],
            row["queue"],
            row["members"],
            row["lagging"],
            row["lag"],
            row["lag_seconds"],
            _state(row),
            row["subscription_mode"],
            row["subscription_timestamp"],
            row["created_at"],
        )
        for row in rows
    ]


async def lagging(db: Executor, min_seconds: float) -> list[CursorLag]:
    """Every cursor whose oldest open message is older than this, the worst first."""
    async with translated():
        return [_lag(row) for row in await db.fetch(sql.query("lagging_cursors"), min_seconds)]


async def describe(db: Executor, group: str) -> dict[str, list[CursorLag]]:
    """The cursors of a group by queue; empty when it is not known."""
    async with translated():
        rows = await db.fetch(sql.query("cursor_lag"), group)
    queues: dict[str, list[CursorLag]] = {}
    for row in rows:
        queues.setdefault(row["queue"], []).append(_lag(row))
    return queues


async def move_subscription(db: Executor, group: str, timestamp: datetime) -> int:
    """Let a group that subscribed as new or from a time start after another time; returns how many subscriptions.

    It holds for cursors without a position yet, and when the group starts over.
    """
    async with translated():
        return int(await undisturbed(partial(db.fetchval, sql.query("move_subscription"), group, timestamp)))


async def seek(
    db: Executor,
    group: str,
    queue: str,
    target: datetime | Literal["beginning", "end"],
    *,
    partition: str | None = None,
) -> int:
    """Move a group's cursors to the beginning, to the end, or behind the last message up to a time; returns how many.

    Leases end: what was delivered under them can no longer be acknowledged.
    """
    place = "timestamp" if isinstance(target, datetime) else target
    moment = target if isinstance(target, datetime) else None
    async with translated():
        return int(await undisturbed(partial(db.fetchval, sql.query("seek"), queue, group, partition, place, moment)))


async def delete(db: Executor, group: str, queue: str | None = None, *, metadata: bool = True) -> int:
    """Forget a group's cursors and leases, on one queue or on all; returns how many cursors.

    With its metadata goes its subscription: its next pop is its first. Without, it starts over where it subscribed.
    """
    async with translated():
        return int(await undisturbed(partial(db.fetchval, sql.query("delete_group"), group, queue, metadata)))


def _state(row: Any) -> Literal["Stable", "Lagging", "Dead"]:
    if row["last_consumed_at"] is None:
        return "Dead"
    return "Lagging" if row["lag_seconds"] > LAGGING_SECONDS else "Stable"


def _lag(row: Any) -> CursorLag:
    return CursorLag(
        row["consumer_group"],
        row["queue"],
        row["partition"],
        row["partition_uid"],
        row["lag"],
        row["lag_seconds"],
        row["oldest_unconsumed_at"],
        row["lease_id"],
        row["lease_expires_at"],
        row["last_consumed_at"],
        row["consumed"],
    )
