"""Eviction: messages that waited longer than maxWaitTimeSeconds go to the dead letters, for each group on its own.

Each call is one short transaction; walk a pass with `after` and `next_after` as in retention. A group's cursor moves
past what is evicted; messages under a live lease are being processed and are left alone. Where no group exists yet,
queue mode is registered, so that the messages end in somebody's dead letters and not nowhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from .. import sql
from .pool import Executor, translated
from .pop import QUEUE_MODE

PARTITIONS_PER_STEP: Final = 2000


@dataclass(frozen=True, slots=True)
class Evicted:
    """What one step evicted for one group; `partition` when it was only one."""

    queue: str
    group: str
    partition: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class EvictStep:
    evicted: tuple[Evicted, ...]
    next_after: int | None

    @property
    def messages(self) -> int:
        return sum(evicted.messages for evicted in self.evicted)


async def evict(db: Executor, *, batch: int, after: int = 0, partitions: int = PARTITIONS_PER_STEP) -> EvictStep:
    """Dead-letter up to `batch` overdue messages."""
    async with translated():
        row = await db.fetchrow(sql.query("evict"), after, batch, partitions)
        if not row["ownerless"]:
            return _step(row["evicted"], row["next_after"])
        for queue in row["ownerless"]:
            await db.fetchval(sql.query("register_group_id"), queue, QUEUE_MODE)
    return _step(row["evicted"], after)


def _step(evicted: str, next_after: int | None) -> EvictStep:
    return EvictStep(tuple(Evicted(**entry) for entry in json.loads(evicted)), next_after)
