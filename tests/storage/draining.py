"""Consume until nothing comes any more, and messages of known age to start from."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from queenmq.storage.store import Store

from .shorthand import QUEUE, numbers, push
from .time_travel import age_messages


async def drain(store: Store, group: str, **options: Any) -> list[int]:
    """Everything the group gets, until nothing comes any more."""
    got: list[int] = []
    while batch := numbers(await store.pop(QUEUE, group, batch=100, partitions=50, auto_ack=True, **options)):
        got += batch
    return got


async def push_apart(store: Store, *values: int, partition: str = "p") -> None:
    """One message a minute, the last one a minute old."""
    for value in values:
        await push(store, value, partition=partition)
        await age_messages(store.pool, 60, partition=partition)


async def created(store: Store) -> dict[int, datetime]:
    """When each message was created, by its payload."""
    rows = await store.pool.fetch("select payload::text, created_at from queen.messages")
    return {int(row["payload"]): row["created_at"] for row in rows}
