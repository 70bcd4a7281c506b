"""What the tests of retention share: a whole pass, and a look at what is left."""

from __future__ import annotations

from typing import Any, Final

from queenmq.storage import retention
from queenmq.storage.pop import QUEUE_MODE
from queenmq.storage.retention import Removed, TrimStep
from queenmq.storage.store import Store
from tests.storage.shorthand import QUEUE

COMPLETED: Final[dict[str, Any]] = {"retentionEnabled": True, "completedRetentionSeconds": 60}
EXPIRED: Final[dict[str, Any]] = {"retentionEnabled": True, "retentionSeconds": 60}


async def trim(store: Store, batch: int = 1000, **more: int) -> list[TrimStep]:
    """A whole pass."""
    steps: list[TrimStep] = []
    after: int | None = 0
    while after is not None:
        steps.append(await retention.trim(store.pool, batch=batch, after=after, **more))
        after = steps[-1].next_after
    return steps


async def trimmed(store: Store, **more: int) -> list[Removed]:
    return [removed for step in await trim(store, **more) for removed in step.removed]


async def stored(store: Store, partition: str = "p", queue: str = QUEUE) -> list[int]:
    rows = await store.pool.fetch(
        "select seq from queen.messages where queue = $1 and partition = $2 order by seq", queue, partition
    )
    return [row["seq"] for row in rows]


async def lookup(store: Store, partition: str = "p") -> Any:
    return await store.pool.fetchrow(
        "select l.* from queen.partition_lookup l join queen.partitions p using (partition_id) where p.name = $1",
        partition,
    )


async def consume(store: Store, count: int, group: str = QUEUE_MODE) -> None:
    assert len((await store.pop(QUEUE, group, batch=count, auto_ack=True)).messages()) == count


async def history(store: Store) -> list[tuple[Any, ...]]:
    rows = await store.pool.fetch(
        "select kind, queue_name, partition_name, messages from queen.retention_history order by id"
    )
    return [tuple(row) for row in rows]


async def consistent(store: Store) -> None:
    assert await store.pool.fetch("select * from queen.partition_lookup_check()") == []


async def age_segments(store: Store) -> None:
    """Messages are older now, without a lock that pushes take: they go on beside it."""
    await store.pool.execute("update queen.segments set created_at = created_at - interval '100 s'")
