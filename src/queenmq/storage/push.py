"""Push: pack, store, and say for each message what became of it.

The fast path is one round trip. A transactionId that is already stored fails that statement as a whole; the plan then
looks up which ones they are, leaves them out, and tries again. A plan keeps its ids, so it can also be run again
after the connection broke: what was stored by the first attempt is recognised and reported as queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import asyncpg

from .. import sql
from ..domain.segments import Encoded, PushItem, Segment, encode, group
from .directory import Directory
from .errors import PartitionGone, QueueFull, StaleConfig, StorageError, translate
from .pool import Executor, undeadlocked

_ATTEMPTS: Final = 50


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one message. A duplicate carries the id of the message that was there first."""

    status: Literal["queued", "duplicate", "queue_full"]
    transaction_id: str
    message_id: str | None
    partition_id: str
    seq: int | None
    error: str | None = None


class PushPlan:
    """The messages of one flush on their way into the database."""

    def __init__(self, items: Sequence[PushItem], directory: Directory) -> None:
        self._items = items
        self._directory = directory
        self._segments: list[Segment] | None = None
        self._twins: dict[int, int] = {}
        self._verdicts: dict[int, Verdict] = {}

    async def prepare(self, db: Executor) -> Encoded:
        """Find the partitions and encode what is not settled yet."""
        if self._segments is None:
            places = await self._directory.partitions(db, [(item.queue, item.partition) for item in self._items])
            self._segments, self._twins = group(self._items, places)
        return encode(self._segments, self._items)

    async def recover(self, db: Executor, error: Exception) -> None:
        """Change the plan so that the next attempt does not fail for the same reason; raises when there is no way."""
        known = translate(error)
        orphaned = isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "segments_pkey"
        if orphaned or isinstance(known, PartitionGone | StaleConfig):
            # numbers of a deleted partition start over and may meet segments that are not swept yet
            await self._replace_places(db)
        elif isinstance(error, asyncpg.UniqueViolationError):
            await self._drop_stored(db)
        elif isinstance(known, QueueFull):
            self._drop_queue(int(known.detail or 0), known)
        elif known is not None:
            raise known from error
        else:
            raise error

    def stored(self, lasts: dict[int, int]) -> None:
        """Note a success: the last sequence number of each partition."""
        for segment in self._segments or ():
            last = lasts.get(segment.place.partition_id)
            if last is None:
                continue
            first = last - len(segment.indexes) + 1
            for offset, (index, message) in enumerate(zip(segment.indexes, segment.ids(), strict=True)):
                self._queued(index, message, segment, first + offset)

    def verdicts(self) -> list[Verdict]:
        """One verdict per message, in the order given."""
        for index, first in self._twins.items():
            winner = self._verdicts[first]
            status = "duplicate" if winner.status == "queued" else winner.status
            self._verdicts[index] = Verdict(
                status, winner.transaction_id, winner.message_id, winner.partition_id, winner.seq, winner.error
            )
        return [self._verdicts[index] for index in range(len(self._items))]

    def _queued(self, index: int, message: str, segment: Segment, seq: int) -> None:
        transaction_id = self._items[index].transaction_id or message
        self._verdicts[index] = Verdict("queued", transaction_id, message, segment.place.uid, seq)

    async def _drop_stored(self, db: Executor) -> None:
        """Settle what the database already holds: our own first attempt, or somebody else's message."""
        encoded = encode(self._segments or (), self._items)
        pids = [encoded.pids[position >> 16] for position in encoded.key_pos]
        rows = await db.fetch(sql.query("stored_keys"), pids, encoded.keys)
        held = {(row["partition_id"], str(row["h"])): row for row in rows}
        for segment in self._segments or ():
            base = held.get((segment.place.partition_id, segment.base))
            if base is not None:
                for offset, (index, message) in enumerate(zip(segment.indexes, segment.ids(), strict=True)):
                    self._queued(index, message, segment, base["seq"] + offset)
                segment.keep([False] * len(segment.indexes))
                continue
            wanted = []
            for index, key in zip(segment.indexes, segment.keys, strict=True):
                row = held.get((segment.place.partition_id, key)) if key else None
                wanted.append(row is None)
                if row is not None:
                    self._verdicts[index] = self._duplicate(index, segment, row)
            segment.keep(wanted)

    def _duplicate(self, index: int, segment: Segment, row: asyncpg.Record) -> Verdict:
        message = str(row["message_id"]) if row["message_id"] else None
        ours = message is not None and message[:32] == segment.base[:32]
        return Verdict(
            "queued" if ours else "duplicate",
            self._items[index].transaction_id or "",
            message,
            segment.place.uid,
            row["seq"],
        )

    async def _replace_places(self, db: Executor) -> None:
        """Resolve the partitions again; ids stay as they are."""
        for segment in self._segments or ():
            names = {(self._items[index].queue, self._items[index].partition) for index in segment.indexes}
            self._directory.forget_partitions(names)
            for place in await self._directory.partitions(db, list(names)):
                segment.place = place
        if self._segments is not None:
            self._segments.sort(key=lambda segment: segment.place.partition_id)

    def _drop_queue(self, queue_id: int, error: StorageError) -> None:
        for segment in self._segments or ():
            if segment.place.queue_id == queue_id:
                for index in segment.indexes:
                    self._verdicts[index] = Verdict(
                        "queue_full",
                        self._items[index].transaction_id or "",
                        None,
                        segment.place.uid,
                        None,
                        error.message,
                    )
                segment.keep([False] * len(segment.indexes))


async def push(db: Executor, directory: Directory, items: Sequence[PushItem]) -> list[Verdict]:
    """Store messages of any number of queues and partitions in one transaction; order is kept per partition."""
    plan = PushPlan(items, directory)
    await execute(db, plan)
    return plan.verdicts()


async def execute(db: Executor, plan: PushPlan) -> None:
    """Run a plan until nothing of it is open."""
    statement = sql.query("push")
    for _ in range(_ATTEMPTS):
        encoded = await plan.prepare(db)
        if not encoded.pids:
            return
        try:
            rows = await undeadlocked(partial(db.fetch, statement, *encoded))
        except Exception as error:
            await plan.recover(db, error)
        else:
            plan.stored({row[0]: row[1] for row in rows})
            return
    raise StorageError(
        f"a push did not come to rest in {_ATTEMPTS} attempts; its partitions are deleted as fast as they are made"
    )
