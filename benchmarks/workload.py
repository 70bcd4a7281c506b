"""Messages and calls that the benchmarks share: 100-byte payloads, time-ordered transactionIds."""

from __future__ import annotations

from typing import Any

import uuid_utils

from queenmq.domain.ids import message_id
from queenmq.domain.segments import Parcel, PushItem
from queenmq.storage.directory import Directory
from queenmq.storage.pool import Executor
from queenmq.storage.pop import register
from queenmq.storage.push import PushPlan, statement

MESSAGES = 1000
QUEUE = "bench"


def payload(number: int) -> bytes:
    return b'{"id":%010d,"type":"order.created","amount":42.50,"customer":"c-%06d","note":"abcdefghij klm"}' % (
        1_000_000_000 + number,
        number % 1_000_000,
    )


def items(partitions: int, *, named: bool = True, count: int = MESSAGES, prefix: str = "p") -> list[PushItem]:
    """A flush: `count` messages spread over partitions."""
    return [
        PushItem(QUEUE, payload(n), f"{prefix}{n % partitions}", str(uuid_utils.uuid7()) if named else None)
        for n in range(count)
    ]


async def push_call(db: Executor, directory: Directory, messages: list[PushItem]) -> tuple[Any, ...]:
    """The statement of a flush, and its arguments."""
    query, arguments = statement(await PushPlan([Parcel.of(messages)], directory).prepare(db))
    return query, *arguments


async def group_id(db: Executor, queue: str, group: str, mode: str) -> int:
    """Register a group on a queue that exists."""
    place = await register(db, Directory(), queue, group, mode=mode, start=None)
    if place is None:
        raise LookupError(f"no queue {queue}")
    return place.group_id


def row_arguments() -> tuple[list[str], list[int], list[str], list[str]]:
    """The same messages for a table with one row per message: ids, partitions, transactionIds, payloads."""
    base = str(uuid_utils.uuid7())
    ids = [message_id(base, n) for n in range(MESSAGES)]
    txs = [str(uuid_utils.uuid7()) for _ in range(MESSAGES)]
    return ids, [n % 100 + 1 for n in range(MESSAGES)], txs, [payload(n).decode() for n in range(MESSAGES)]
