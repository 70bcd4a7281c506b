"""Messages to read: what a server's flushes would have left, written straight into the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uuid_utils

from queenmq.domain.segments import PushItem
from queenmq.storage.store import Store

QUEUE = "bench"
PARTITIONS = 100
FLUSH = 200
"""Messages per segment: what a server that is busy writes at once to one partition."""
_PAYLOAD = (
    b'{"order": %d, "customer": "customer-%d", "total": 12.5, "items": [1, 2, 3, 4], "note": "' + b"x" * 90 + b'"}'
)


def fill(dsn: str, messages: int, progress: Callable[[str], None]) -> None:
    """So many messages in segments of FLUSH, over PARTITIONS partitions."""

    async def work() -> None:
        store = await Store.open(dsn)
        try:
            for first in range(0, messages, FLUSH):
                partition = f"p{first // FLUSH % PARTITIONS}"
                await store.push([item(partition, number) for number in range(first, min(first + FLUSH, messages))])
                if first % 100_000 == 0:
                    progress(f"{first:,} of {messages:,} messages pushed")
            await store.pool.execute("vacuum analyze queen.segments")
        finally:
            await store.close()

    asyncio.run(work())


def fill_partitions(dsn: str, partitions: int, progress: Callable[[str], None]) -> None:
    """One message in each of so many partitions."""

    async def work() -> None:
        store = await Store.open(dsn)
        try:
            for first in range(0, partitions, 1000):
                await store.push([item(f"p{number}", number) for number in range(first, min(first + 1000, partitions))])
                progress(f"{first:,} of {partitions:,} partitions made")
        finally:
            await store.close()

    asyncio.run(work())


def push(dsn: str, messages: int) -> None:
    async def work() -> None:
        store = await Store.open(dsn)
        try:
            await store.push([item("p0", number) for number in range(messages)])
        finally:
            await store.close()

    asyncio.run(work())


def item(partition: str, number: int) -> PushItem:
    payload = _PAYLOAD % (number, number % 97)
    return PushItem(queue=QUEUE, partition=partition, payload=payload, transaction_id=str(uuid_utils.uuid7()))
