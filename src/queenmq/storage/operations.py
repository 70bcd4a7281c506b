"""The operation queue: what was accepted under overload and is done later.

Operations of one lane, a (queue, partition), are done one at a time in the order they were accepted, on any server. A
failed one that will be tried again holds its lane; one that has failed too often is given up and the lane goes on. A
lane is as urgent as its most urgent operation. A claim is its worker and its moment, so one that was lost to a timeout
finishes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from .. import sql
from ..domain.ids import is_uuid, new_id
from .pool import Executor, translated
from .retention import delete_old

Status = Literal["pending", "processing", "completed", "failed"]
Lane = tuple[str, str | None]

OPERATIONS_PER_SECOND: Final = 100
"""What the processor is expected to do; only the estimated wait depends on it."""
HOUR: Final = 3600
WEEK: Final = 604800


@dataclass(slots=True)
class NewOperation:
    """Work to be done later. `priority`: 1 = critical, 5 = normal, 10 = low. Keep the id to repeat a call safely."""

    type: str
    queue: str
    partition: str | None
    payload: bytes
    priority: int = 5
    timeout_seconds: int = 30
    max_retries: int = 3
    id: str = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """An accepted operation; `position` pending ones are as urgent or more."""

    id: str
    position: int

    @property
    def estimated_wait_seconds(self) -> int:
        return -(-self.position // OPERATIONS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as it is stored."""

    id: UUID
    operation_type: str
    queue_name: str
    partition_name: str | None
    priority: int
    payload: bytes
    status: Status
    created_at: datetime
    processing_started_at: datetime | None
    processed_at: datetime | None
    claimed_by_worker: str | None
    timeout_seconds: int
    retry_count: int
    max_retries: int
    error_message: str | None
    result: bytes | None


@dataclass(frozen=True, slots=True)
class OperationCount:
    type: str
    status: Status
    count: int
    oldest_seconds: float
    bytes: int


_FIELDS: Final = tuple(entry.name for entry in fields(Operation))


async def enqueue(db: Executor, operations: Sequence[NewOperation]) -> list[Enqueued]:
    """Accept operations, each at the end of its lane, all or none. An id that is there already is not added again.

    The id in the answer may differ from the one given: a server whose clock is behind still adds at the end.
    """
    async with translated():
        rows = await db.fetch(
            sql.query("enqueue_operations"),
            [operation.id for operation in operations],
            [operation.type for operation in operations],
            [operation.queue for operation in operations],
            [operation.partition for operation in operations],
            [operation.priority for operation in operations],
            [operation.payload for operation in operations],
            [operation.timeout_seconds for operation in operations],
            [operation.max_retries for operation in operations],
        )
    return [Enqueued(str(row["id"]), row["ahead"]) for row in rows]


async def has_pending(db: Executor, lanes: Sequence[Lane]) -> set[Lane]:
    """Those of the lanes that have unfinished operations: what comes later must queue behind them."""
    async with translated():
        rows = await db.fetch(
            sql.query("pending_lanes"), [queue for queue, _ in lanes], [partition for _, partition in lanes]
        )
    return {lanes[row["ord"] - 1] for row in rows}


async def claim(db: Executor, worker: str, *, limit: int) -> list[Operation]:
    """Up to `limit` operations to do now, one per lane at most, most urgent first."""
    async with translated():
        return [_operation(row) for row in await db.fetch(sql.query("claim_operations"), worker, limit)]


async def complete(db: Executor, claimed: Operation, result: bytes | None = None) -> bool:
    """Finish a claimed operation; False when the claim was lost."""
    async with translated():
        return await db.fetchval(sql.query("finish_operation"), *_claim(claimed), result, None, 0) is not None


async def fail(
    db: Executor, claimed: Operation, error: str, *, retry_in_seconds: float = 0
) -> Literal["pending", "failed"] | None:
    """Note a failed attempt: pending = will be tried again, failed = that was the last; None: the claim was lost."""
    async with translated():
        status: Literal["pending", "failed"] | None = await db.fetchval(
            sql.query("finish_operation"), *_claim(claimed), None, error, retry_in_seconds
        )
    return status


async def reclaim(db: Executor, *, limit: int) -> dict[str, Status]:
    """Take back what workers hold longer than its timeout; ids with what became of them (pending or failed)."""
    async with translated():
        await db.execute(sql.query("promote_operations"))
        return {str(row["id"]): row["status"] for row in await db.fetch(sql.query("reclaim_operations"), limit)}


async def get(db: Executor, operation_id: str) -> Operation | None:
    if not is_uuid(operation_id):
        return None
    async with translated():
        row = await db.fetchrow(sql.query("get_operation"), operation_id)
    return None if row is None else _operation(row)


async def stats(db: Executor) -> list[OperationCount]:
    """How many operations there are per type and status, and the age of the oldest."""
    async with translated():
        rows = await db.fetch(sql.query("operation_stats"))
    return [
        OperationCount(row["operation_type"], row["status"], row["count"], row["oldest_seconds"], row["bytes"])
        for row in rows
    ]


async def forget(db: Executor, *, batch: int, completed_seconds: float = HOUR, failed_seconds: float = WEEK) -> int:
    """Delete up to `batch` operations that were finished so long ago."""
    return await delete_old(db, "forget_operations", completed_seconds, failed_seconds, batch)


def _claim(claimed: Operation) -> tuple[UUID, str | None, datetime | None]:
    return claimed.id, claimed.claimed_by_worker, claimed.processing_started_at


def _operation(row: Any) -> Operation:
    return Operation(*(row[name] for name in _FIELDS))
