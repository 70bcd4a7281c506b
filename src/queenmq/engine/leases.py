"""What this worker remembers of the leases it has given out: which messages each covers, by transactionId.

It saves an ack the search for its messages, nothing more: whether a lease is still held is always decided by the
database. A lease that is not remembered (it was given out by another worker) is read from the database once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .. import sql
from ..domain.ids import SUFFIXES, is_uuid
from ..domain.segments import SEPARATOR
from ..storage.pool import Executor, translated
from ..storage.pop import Claim, SegmentRow

MAX_BYTES: Final = 128 * 1024 * 1024
_LEASE_BYTES: Final = 1024
_MESSAGE_BYTES: Final = 256  # its name as a text and its place, once an ack has asked for them
_Column = tuple[int, int, str, int, bytes | None]  # last_seq, n, base, base_idx, tx of a segment


class Held:
    """One partition under a lease: the messages (from_seq, to_seq]."""

    __slots__ = (
        "_columns",
        "_seqs",
        "_txs",
        "from_seq",
        "group",
        "group_id",
        "partition",
        "partition_id",
        "queue",
        "to_seq",
    )

    def __init__(
        self,
        queue: str,
        partition: str,
        partition_id: int,
        group: str,
        group_id: int,
        from_seq: int,
        to_seq: int,
        columns: list[_Column],
    ) -> None:
        self.queue = queue
        self.partition = partition
        self.partition_id = partition_id
        self.group = group
        self.group_id = group_id
        self.from_seq = from_seq
        self.to_seq = to_seq
        self._columns = columns
        self._txs: list[str] | None = None
        self._seqs: dict[str, int] | None = None

    @property
    def weight(self) -> int:
        """The bytes it takes, roughly."""
        names = sum([len(tx) for *_, tx in self._columns if tx is not None])
        return _LEASE_BYTES + (self.to_seq - self.from_seq) * _MESSAGE_BYTES + names

    def upto(self, transaction_ids: Sequence[str]) -> int | None:
        """The highest sequence number among these messages; None when one of them is not in the lease."""
        if self._txs is None:
            self._txs, self._seqs = self._unpack()
        if transaction_ids == self._txs:
            return self.to_seq
        seqs = self._seqs or {}
        try:
            return max([seqs[name] for name in transaction_ids])
        except KeyError:
            return None

    def seq(self, transaction_id: str) -> int | None:
        if self._txs is None:
            self._txs, self._seqs = self._unpack()
        return (self._seqs or {}).get(transaction_id)

    def _unpack(self) -> tuple[list[str], dict[str, int]]:
        """The transactionIds in order, and their sequence numbers. Of equal ones the last counts, as for the client."""
        names: list[str] = []
        seqs: dict[str, int] = {}
        for last, count, base, index, tx in self._columns:
            first = last - count + 1
            low, high = max(0, self.from_seq - first + 1), count - max(0, last - self.to_seq)
            given = tx.decode().split("\x1e") if tx is not None else [""] * count
            for offset in range(low, high):
                name = given[offset] or base[:32] + SUFFIXES[index + offset]
                names.append(name)
                seqs[name] = first + offset
        return names, seqs


class LeaseMemory:
    """Bounded: the lease given out first is forgotten first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._leases: dict[str, dict[str, Held]] = {}
        self._bytes = 0
        self._max = max_bytes

    def __len__(self) -> int:
        return len(self._leases)

    def remember(self, lease_id: str, group: str, claims: Sequence[Claim]) -> None:
        held = {}
        for claim in claims:
            columns = [_leased(row, claim) for row in claim.segments]
            held[claim.partition_uid] = Held(
                claim.queue,
                claim.partition,
                claim.partition_id,
                group,
                claim.group_id,
                claim.from_seq,
                claim.to_seq,
                columns,
            )
        self._add(lease_id, held)

    def find(self, lease_id: str | None, partition_uid: str, group: str) -> Held | None:
        if not lease_id:
            return None
        partitions = self._leases.get(lease_id)
        held = None if partitions is None else partitions.get(partition_uid)
        return held if held is not None and held.group == group else None

    def knows(self, lease_id: str) -> bool:
        return lease_id in self._leases

    def forget(self, lease_id: str, partition_uid: str) -> None:
        """The lease on this partition has ended."""
        partitions = self._leases.get(lease_id)
        if partitions is None:
            return
        held = partitions.pop(partition_uid, None)
        if held is not None:
            self._bytes -= held.weight
        if not partitions:
            del self._leases[lease_id]

    async def read(self, db: Executor, lease_ids: Sequence[str]) -> None:
        """Learn from the database what these leases hold."""
        wanted = [lease for lease in dict.fromkeys(lease_ids) if lease not in self._leases and is_uuid(lease)]
        if not wanted:
            return
        async with translated():
            rows = await db.fetch(sql.query("leased_ranges"), wanted)
        found: dict[str, dict[str, Held]] = {}
        for row in rows:
            partitions = found.setdefault(str(row["lease_id"]), {})
            uid = str(row["uid"])
            if uid not in partitions:
                partitions[uid] = _held(row)
            partitions[uid]._columns.append((row["last_seq"], row["n"], str(row["base"]), row["base_idx"], row["tx"]))
        for lease_id, held in found.items():
            self._add(lease_id, held)

    def _add(self, lease_id: str, held: dict[str, Held]) -> None:
        for old in self._leases.pop(lease_id, {}).values():  # two flushes may read the same lease
            self._bytes -= old.weight
        self._leases[lease_id] = held
        self._bytes += sum([each.weight for each in held.values()])
        while self._bytes > self._max and len(self._leases) > 1:
            for old in self._leases.pop(next(iter(self._leases))).values():
                self._bytes -= old.weight


def _leased(row: SegmentRow, claim: Claim) -> _Column:
    """The part of a segment that the claim covers: a large segment may be delivered in many small pieces."""
    skipped = max(0, claim.from_seq - (row.last_seq - row.n))
    last = min(row.last_seq, claim.to_seq)
    count = row.n - skipped - (row.last_seq - last)
    tx = row.tx
    if tx is not None and count < row.n:
        tx = SEPARATOR.join(tx.split(SEPARATOR)[skipped : skipped + count])
    return last, count, row.base, row.base_idx + skipped, tx


def _held(row: Any) -> Held:
    return Held(
        row["queue_name"],
        row["partition_name"],
        row["partition_id"],
        row["group_name"],
        row["group_id"],
        row["acked_seq"],
        row["lease_to"],
        [],
    )
