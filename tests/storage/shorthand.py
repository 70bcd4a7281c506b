"""What the storage tests say often: push numbers, read numbers back, ack by number, look at a cursor.

Payloads are the numbers themselves and each partition is counted from 1, so that a payload is its sequence number
and a test reads as the numbers it expects.
"""

from __future__ import annotations

from typing import Any

from queenmq.domain.segments import PushItem
from queenmq.storage.ack import AckItem
from queenmq.storage.pop import QUEUE_MODE, Claim, PopResult
from queenmq.storage.store import Store

QUEUE = "orders"
DAY = 86400


async def push(store: Store, *numbers: int, partition: str = "p", queue: str = QUEUE) -> None:
    """One push of these payloads to one partition."""
    await store.push([PushItem(queue, str(number).encode(), partition) for number in numbers])


def held(won: Claim) -> str:
    """The lease of a claim that has one."""
    assert won.lease_id is not None
    return won.lease_id


def numbers(result: PopResult) -> list[int]:
    return [int(message.payload) for message in result.messages()]


def by_partition(result: PopResult) -> dict[str, list[int]]:
    return {claim.partition: [int(message.payload) for message in claim.messages()] for claim in result.claims}


async def claim(store: Store, batch: int = 10, group: str = QUEUE_MODE, queue: str = QUEUE) -> Claim:
    """Pop from one partition, which must have something."""
    return (await store.pop(queue, group, batch=batch)).claims[0]


def ack_of(
    won: Claim,
    seq: int,
    status: str = "completed",
    *,
    group: str = QUEUE_MODE,
    lease: str | None = "",
    error: str | None = None,
) -> AckItem:
    """An ack under the claim's own lease, or under another one, or (None) without."""
    return AckItem(
        won.partition_uid,
        seq=seq,
        status=status,
        group=group,
        lease_id=won.lease_id if lease == "" else lease,
        error=error,
    )


async def ack(store: Store, won: Claim, seq: int, status: str = "completed", **more: Any) -> bool:
    """Ack one message; was it accepted?"""
    return (await store.ack([ack_of(won, seq, status, **more)]))[0].success


async def cursor(store: Store, partition: str = "p", group: str = QUEUE_MODE, queue: str = QUEUE) -> Any:
    return await store.pool.fetchrow(
        "select c.*, c.ready_at <= clock_timestamp() as ready from queen.partition_consumers c"
        " join queen.partitions p using (partition_id) join queen.queues q on q.queue_id = p.queue_id"
        " join queen.consumer_groups_metadata g using (group_id) where q.name = $1 and p.name = $2 and g.name = $3",
        queue,
        partition,
        group,
    )


async def dead_letters(store: Store) -> list[tuple[int, int, str]]:
    """(seq, retry count, error) of every dead letter, oldest failure first."""
    rows = await store.pool.fetch(
        "select seq, retry_count, error_message from queen.dead_letter_queue order by failed_at, seq"
    )
    return [tuple(row) for row in rows]
