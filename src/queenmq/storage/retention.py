"""Retention: what a queue no longer keeps is removed in bounded steps.

Each call is one short transaction over whole segments. A pass walks all partitions: call with `after` 0, then with the
`next_after` of the answer, until it is None. Messages go by age (expired, ttl) or when every group has consumed them
(completed), never past an archive hold unless that lags by more than its cap; the answer names such overruns.
The two sweeps remove what is out of reach already: segments of deleted queues, and forgettable transactionIds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from .. import sql
from .pool import Executor, translated

PARTITIONS_PER_STEP: Final = 2000
"""How many partitions a step looks at, at most; most of them have nothing to remove."""
DEDUP_BLOCKS_PER_STEP: Final = 64
"""About 8,700 transactionIds."""
STREAM_IDLE_SECONDS: Final = 30 * 86_400
"""A Spark stream that was not in use for so long loses its positions; its checkpoint is of no use then."""
AWAITED_IDLE_SECONDS: Final = 7 * 86_400
"""A group that has not popped for so long what was not there starts anew, with its next pop."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What one step removed from a queue for one reason; `partition` when it was only one."""

    queue: str
    kind: Literal["expired", "ttl", "completed"]
    partition: str | None
    messages: int
    segments: int


@dataclass(frozen=True, slots=True)
class Overrun:
    """An archive hold that lost messages it had not released (None: it had released nothing), up to removed_to."""

    queue: str
    holder: str
    released_to: datetime | None
    removed_to: datetime


@dataclass(frozen=True, slots=True)
class TrimStep:
    removed: tuple[Removed, ...]
    overruns: tuple[Overrun, ...]
    next_after: int | None

    @property
    def messages(self) -> int:
        return sum(removed.messages for removed in self.removed)


@dataclass(frozen=True, slots=True)
class RemovedPartitions:
    queue: str
    partition: str | None
    partitions: int


@dataclass(frozen=True, slots=True)
class IdleStep:
    removed: tuple[RemovedPartitions, ...]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class SweepStep:
    """Rows or messages removed, and whether another step is worth its while now."""

    removed: int
    more: bool


async def trim(db: Executor, *, batch: int, after: int = 0, partitions: int = PARTITIONS_PER_STEP) -> TrimStep:
    """Remove up to `batch` messages (by whole segments: the last may exceed it) that their queues no longer keep."""
    async with translated():
        row = await db.fetchrow(sql.query("trim"), after, batch, partitions)
    return TrimStep(
        tuple(Removed(**entry) for entry in json.loads(row["removed"])),
        tuple(_overrun(entry) for entry in json.loads(row["overruns"])),
        row["next_after"],
    )


async def remove_idle_partitions(
    db: Executor, *, idle_seconds: float, batch: int, after: int = 0, partitions: int = PARTITIONS_PER_STEP
) -> IdleStep:
    """Remove up to `batch` partitions that hold no messages and saw no push and no consumer for so long."""
    async with translated():
        row = await db.fetchrow(sql.query("remove_idle_partitions"), after, idle_seconds, batch, partitions)
    return IdleStep(tuple(RemovedPartitions(**entry) for entry in json.loads(row["removed"])), row["next_after"])


async def sweep_orphans(db: Executor, *, batch: int, partitions: int = PARTITIONS_PER_STEP) -> SweepStep:
    """Remove up to `batch` messages of deleted queues. Costs nothing while no queue was deleted."""
    async with translated():
        row = await db.fetchrow(sql.query("sweep_orphans"), batch, partitions)
    return SweepStep(row["removed"], row["more"])


async def sweep_dedup(db: Executor, *, blocks: int = DEDUP_BLOCKS_PER_STEP) -> SweepStep:
    """Forget transactionIds in the next blocks of their table. Costs nothing until a tenth of them may be forgotten."""
    async with translated():
        row = await db.fetchrow(sql.query("sweep_dedup"), blocks)
    return SweepStep(row["removed"], row["more"])


async def forget_traces(db: Executor, *, older_than_seconds: float, batch: int) -> int:
    """Delete up to `batch` message traces of that age; fewer than `batch` means none are left."""
    return await delete_old(db, "forget_traces", older_than_seconds, batch)


async def forget_history(db: Executor, *, older_than_seconds: float, batch: int) -> int:
    """Delete up to `batch` audit rows of that age."""
    return await delete_old(db, "forget_retention_history", older_than_seconds, batch)


async def forget_streams(db: Executor, *, batch: int, idle_seconds: float = STREAM_IDLE_SECONDS) -> int:
    """Forget the positions of up to `batch` streams of Spark that were not in use for so long."""
    async with translated():
        return int(await db.fetchval(sql.query("forget_streams"), idle_seconds, batch))


async def forget_removals(db: Executor, *, batch: int, idle_seconds: float = STREAM_IDLE_SECONDS) -> int:
    """Forget up to `batch` removed partitions that every stream knows of. Comes after `forget_streams`: a stream that
    is kept must find each removal since it was last in use."""
    async with translated():
        return int(await db.fetchval(sql.query("forget_removals"), idle_seconds, batch))


async def forget_awaited(db: Executor, *, batch: int, idle_seconds: float = AWAITED_IDLE_SECONDS) -> int:
    """Forget up to `batch` pops of queues, partitions and namespaces that were not there and not popped for so long."""
    return await delete_old(db, "forget_awaited", idle_seconds, batch)


async def delete_old(db: Executor, query: str, *arguments: object) -> int:
    """Run one of the bounded deletes; returns the number of rows."""
    async with translated():
        return int((await db.execute(sql.query(query), *arguments)).rpartition(" ")[2])


def _overrun(entry: dict[str, str]) -> Overrun:
    released = entry["held_from"]
    return Overrun(
        entry["queue"],
        entry["holder"],
        None if released == "-infinity" else datetime.fromisoformat(released),
        datetime.fromisoformat(entry["removed_to"]),
    )
