"""Push: pack, store, and say for each message what became of it.

The fast path is one round trip. A transactionId that is already stored fails that statement as a whole; the plan then
looks up which ones they are, leaves them out, and tries again. A plan keeps its ids, so it can also be run again
after the connection broke: what was stored by the first attempt is recognised and reported as queued.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Literal, Protocol

import asyncpg

from .. import sql
from ..domain.cipher import EncryptionUnavailable
from ..domain.ids import base_key
from ..domain.segments import NOWHERE, Encoded, Parcel, PushItem, Receipt, Segment, Verdict, encode, group
from .directory import Directory
from .errors import PartitionGone, QueueFull, StaleConfig, StorageError, translate
from .pool import Executor, undisturbed

_ATTEMPTS: Final = 50
_NO_KEY: Final = "the queue is encrypted and this server has no QUEEN_ENCRYPTION_KEY; nothing was stored"


class Sealer(Protocol):
    """What encrypts payloads on their way into an encrypted queue."""

    def seal(self, payloads: list[bytes]) -> list[bytes]: ...


class PushPlan:
    """The messages of one flush on their way into the database. `whole`: when one of them cannot be encrypted, none is
    stored, and EncryptionUnavailable is raised."""

    def __init__(
        self, parcels: Iterable[Parcel], directory: Directory, sealer: Sealer | None = None, *, whole: bool = False
    ) -> None:
        self.segments, self.receipts = group(parcels)
        self._directory = directory
        self._sealer = sealer
        self._whole = whole

    async def prepare(self, db: Executor) -> Encoded:
        """Find the partitions and encode what is not settled yet."""
        missing = [segment for segment in self.segments if segment.place is NOWHERE]
        if missing:
            await self._locate(db, missing)
            if self._sealer is None:
                await self._doubt(db, [segment for segment in missing if _plain(segment)])
            for segment in missing:
                if segment.place.encryption_enabled and segment.payloads is None:
                    self._seal(segment)
        return encode(self.segments)

    async def _locate(self, db: Executor, segments: Sequence[Segment]) -> None:
        places = await self._directory.partitions(db, [(each.queue, each.partition) for each in segments])
        for segment, place in zip(segments, places, strict=True):
            segment.place = place

    async def _doubt(self, db: Executor, unsealed: Sequence[Segment]) -> None:
        """These would be refused, since there is no key: only the database may say that their queues are encrypted."""
        if unsealed:
            await self._directory.confirm(db, [segment.queue for segment in unsealed])
            await self._locate(db, unsealed)

    def _seal(self, segment: Segment) -> None:
        """A queue that is wrongly remembered as encrypted gets its messages sealed too: they are marked as such one by
        one, and delivered in clear."""
        open_ones = _plain(segment)
        if self._sealer is None:
            if self._whole and open_ones:
                raise EncryptionUnavailable(segment.queue)
            segment.settle({at: self._refused(segment, at, "failed", _NO_KEY) for at in open_ones})
            return
        segment.payloads = [bytes(item.payload) for item in segment.items]
        sealed = self._sealer.seal([segment.payloads[position] for position in open_ones])
        for position, payload in zip(open_ones, sealed, strict=True):
            segment.payloads[position] = payload
        segment.marks = [True] * len(segment.items)

    async def recover(self, db: Executor, error: Exception) -> None:
        """Change the plan so that the next attempt does not fail for the same reason; raises when there is no way."""
        known = translate(error)
        orphaned = isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "segments_pkey"
        if orphaned or isinstance(known, PartitionGone | StaleConfig):
            # numbers of a deleted partition start over and may meet segments that are not swept yet
            self._replace_places()
            if isinstance(known, StaleConfig):
                self._directory.configs.remove_all([segment.queue for segment in self.segments])
        elif isinstance(error, asyncpg.UniqueViolationError):
            await self.drop_stored(db)
        elif isinstance(known, QueueFull):
            # what our own first attempt has stored fills the queue too, and is not refused
            if not await self.drop_stored(db):
                largest, room = map(int, (error.hint or "0 0").split())  # type: ignore[attr-defined]
                self._fit(int(known.detail or 0), largest, room)
        elif known is not None:
            raise known from error
        else:
            raise error

    def stored(self, lasts: dict[int, int]) -> None:
        """Note a success: the last sequence number of each partition."""
        for segment in self.segments:
            last = lasts.get(segment.place.partition_id)
            if last is not None:
                segment.last_seq = last

    def verdicts(self) -> list[Verdict]:
        """One verdict per message, in the order given."""
        return [verdict for receipt in self.receipts for verdict in receipt.verdicts()]

    async def drop_stored(self, db: Executor) -> bool:
        """Settle what the database already holds: our own first attempt, or somebody else's message. False: nothing."""
        encoded = await self.prepare(db)
        pids = [encoded.pids[position >> 16] for position in encoded.key_pos]
        rows = await db.fetch(sql.query("stored_keys"), pids, encoded.keys)
        held = {(row["partition_id"], str(row["h"])): row for row in rows}
        for segment in self.segments:
            base = held.get((segment.place.partition_id, base_key(segment.base)))
            if base is not None:
                ids = enumerate(segment.ids())
                segment.settle({at: segment.queued(at, message, base["seq"] + index) for index, (at, message) in ids})
                continue
            keys = segment.keys or []
            found = {at: held.get((segment.place.partition_id, keys[at] or "")) for at in segment.open()}
            segment.settle({at: _duplicate(segment, at, row) for at, row in found.items() if row is not None})
        return bool(rows)

    def _replace_places(self) -> None:
        """Resolve the partitions again; ids stay as they are."""
        self._directory.forget_partitions((segment.queue, segment.partition) for segment in self.segments)
        for segment in self.segments:
            segment.place = NOWHERE

    def _fit(self, queue_id: int, largest: int, room: int) -> None:
        """Leave out what does not fit into a full queue: requests, in the order of their arrival, each as a whole."""
        for receipt in self.receipts:
            wanted = [
                (run.segment, [at for at in run.segment.open() if run.start <= at < run.start + run.length])
                for run in receipt.runs
                if run.segment.place.queue_id == queue_id
            ]
            given = sum(len(positions) for _, positions in wanted)
            if given <= room:
                room -= given
                continue
            for segment, positions in wanted:
                error = f"queue {segment.queue} is full: maxSize is {largest}, room for {room} more, {given} given"
                if given > largest:
                    error += f"; it never takes more than {largest} at once"
                segment.settle({at: self._refused(segment, at, "queue_full", error) for at in positions})

    @staticmethod
    def _refused(segment: Segment, position: int, status: Literal["queue_full", "failed"], error: str) -> Verdict:
        transaction_id = segment.items[position].transaction_id or ""
        return Verdict(status, transaction_id, None, segment.place.uid, None, error)


def _plain(segment: Segment) -> list[int]:
    """The positions still to be stored in a queue that is taken for encrypted, and not encrypted yet."""
    if not segment.place.encryption_enabled or segment.payloads is not None:
        return []
    marks = segment.marks or [False] * len(segment.items)
    return [position for position in segment.open() if not marks[position]]


def _duplicate(segment: Segment, position: int, row: asyncpg.Record) -> Verdict:
    message = str(row["message_id"]) if row["message_id"] else None
    ours = message is not None and message[:32] == segment.base[:32]
    status: Literal["queued", "duplicate"] = "queued" if ours else "duplicate"
    return Verdict(status, segment.items[position].transaction_id or "", message, segment.place.uid, row["seq"])


async def push(
    db: Executor, directory: Directory, items: Sequence[PushItem], sealer: Sealer | None = None
) -> list[Verdict]:
    """Store messages of any number of queues and partitions in one transaction; order is kept per partition."""
    plan = PushPlan([Parcel.of(items)], directory, sealer)
    await execute(db, plan)
    return plan.verdicts()


def statement(encoded: Encoded) -> tuple[str, tuple[object, ...]]:
    """The call that stores this, and its arguments; it returns pairs of a partition and its last sequence number."""
    if len(encoded.pids) == 1:
        return sql.query("push_segment"), encoded.only()
    return sql.query("push"), encoded.arguments()


async def execute(db: Executor, plan: PushPlan) -> None:
    """Run a plan until nothing of it is open."""
    for _ in range(_ATTEMPTS):
        encoded = await plan.prepare(db)
        if not encoded.pids:
            return
        query, arguments = statement(encoded)
        try:
            rows = await undisturbed(partial(db.fetch, query, *arguments))
        except Exception as error:
            await plan.recover(db, error)
        else:
            plan.stored({row[0]: row[1] for row in rows})
            return
    raise StorageError(
        f"a push did not come to rest in {_ATTEMPTS} attempts; its partitions are deleted as fast as they are made"
    )


__all__ = ["PushPlan", "Receipt", "Sealer", "Verdict", "execute", "push"]
