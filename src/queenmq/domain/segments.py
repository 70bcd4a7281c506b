"""How a push is packed: the messages of one flush, grouped into one segment per partition.

The columns of a segment are the messages' values joined by the byte 0x1E, so a payload travels from client to client
without being re-encoded. 0x1E cannot stand raw in valid JSON, and names and ids with control characters are refused
before. Ids are given here, once: encoding a plan again, after a lost answer or without its duplicates, yields the
same ids. The common case, where nothing is left out, costs a few operations per segment and almost none per message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple, TypeVar

from ..wire.names import InvalidValue, check_name, check_transaction_id, check_uuid
from ..wire.payload import check_payload
from ..wire.requests import PushEntry
from .ids import (
    MARK,
    MESSAGES_PER_SEGMENT,
    base_key,
    dedup_keys,
    looks_given,
    message_id,
    new_segment_base,
    partition_tag,
)

SEPARATOR: Final = b"\x1e"
PIECE_BYTES: Final = 256 * 1024
"""A segment with more payload is stored in pieces: who pops one message of it should not have to read them all."""
MAX_SEGMENTS: Final = 32767  # a dedup position packs the segment's index into the upper half of an int4
DEFAULT_PARTITION: Final = "Default"

_T = TypeVar("_T")


class PushItem(PushEntry, gc=False):
    """One message with what the server adds to it."""

    payload: bytes = b"null"  # type: ignore[assignment]  # whoever makes an item has the text, not a decoder's view
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None
    producer_sub: str | None = None
    encrypted: bool = False


class Place(NamedTuple):
    """Where a (queue, partition) lives in the database, and what a push must know of its queue."""

    partition_id: int
    uid: str
    queue_id: int
    bounded: bool
    encryption_enabled: bool


NOWHERE: Final = Place(0, "", 0, False, False)
"""The place of a segment before it is looked up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one message. A duplicate carries the id of the message that was there first."""

    status: Literal["queued", "duplicate", "queue_full", "failed"]
    transaction_id: str
    message_id: str | None
    partition_id: str
    seq: int | None
    error: str | None = None


@dataclass(slots=True)
class Parcel:
    """The messages of one request. `subs` and `marks` (encrypted) have one entry per message, or are None."""

    items: Sequence[PushEntry]
    subs: list[str | None] | None = None
    marks: list[bool] | None = None

    @classmethod
    def of(cls, items: Sequence[PushItem]) -> Parcel:
        return cls(items, [item.producer_sub for item in items], [item.encrypted for item in items])


@dataclass(slots=True, eq=False)
class Segment:
    """The messages of a flush for one partition.

    Positions count from 0 in `items`. `kept` are the positions that are still to be stored, None while that is all of
    them; `verdicts` tells what became of the others, `twins` which repeat the transactionId of an earlier one.
    `canonical`: every transactionId is a UUID in its usual form.
    """

    queue: str
    partition: str
    items: list[PushEntry] = field(default_factory=list)
    subs: list[str | None] | None = None
    marks: list[bool] | None = None
    payloads: list[bytes] | None = None
    base: str = field(default_factory=new_segment_base)
    keys: list[str | None] | None = None
    kept: list[int] | None = None
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    twins: dict[int, int] = field(default_factory=dict)
    canonical: bool = False
    last_seq: int = 0
    place: Place = NOWHERE

    def add(self, items: Sequence[PushEntry], parcel: Parcel, start: int) -> Run:
        """Append a stretch of a parcel, which begins there at `start`."""
        count = len(items)
        run = Run(self, len(self.items), count)
        if self.subs is not None or parcel.subs is not None:
            self.subs = _extended(self.subs, len(self.items), parcel.subs, start, count)
        if self.marks is not None or parcel.marks is not None:
            self.marks = [mark or False for mark in _extended(self.marks, len(self.items), parcel.marks, start, count)]
        self.items += items
        return run

    def stamp(self) -> None:
        """Compute the dedup keys and find twins, once."""
        names = [item.transaction_id for item in self.items]
        keys = self.keys = dedup_keys(names)
        self.canonical = keys is names
        if len(set(keys)) == len(keys):
            return
        first: dict[str, int] = {}
        for position, key in enumerate(keys):
            if key is not None and first.setdefault(key, position) != position:
                self.twins[position] = first[key]
        if self.twins:
            self.kept = [position for position in range(len(keys)) if position not in self.twins]

    def open(self) -> Sequence[int]:
        """The positions that are still to be stored."""
        return range(len(self.items)) if self.kept is None else self.kept

    def settle(self, verdicts: dict[int, Verdict]) -> None:
        """Leave these positions out: what became of them is known."""
        self.verdicts |= verdicts
        self.kept = [position for position in self.open() if position not in verdicts]

    def ids(self) -> Iterator[tuple[int, str]]:
        """The open positions and the message ids they get."""
        return ((position, message_id(self.base, index)) for index, position in enumerate(self.open()))

    def outcome(self) -> list[Verdict]:
        """One verdict per position, when everything is stored or settled."""
        verdicts = dict(self.verdicts)
        first = self.last_seq - len(self.open()) + 1
        for index, (position, message) in enumerate(self.ids()):
            verdicts[position] = self.queued(position, message, first + index)
        for position, earlier in self.twins.items():
            winner = verdicts[earlier]
            status = "duplicate" if winner.status == "queued" else winner.status
            verdicts[position] = Verdict(
                status, winner.transaction_id, winner.message_id, winner.partition_id, winner.seq, winner.error
            )
        return [verdicts[position] for position in range(len(self.items))]

    def queued(self, position: int, message: str, seq: int) -> Verdict:
        transaction_id = self.items[position].transaction_id or message
        return Verdict("queued", transaction_id, message, self.place.uid, seq)


class Run(NamedTuple):
    """A stretch of a segment that belongs to one request."""

    segment: Segment
    start: int
    length: int


@dataclass(slots=True)
class Receipt:
    """Where the messages of one request went, in their order."""

    runs: list[Run]

    @property
    def complete(self) -> bool:
        """Every message was stored, as far as it takes no closer look to say so."""
        return all(run.segment.kept is None for run in self.runs)

    def verdicts(self) -> list[Verdict]:
        outcomes: dict[int, list[Verdict]] = {}
        verdicts: list[Verdict] = []
        for segment, start, length in self.runs:
            outcome = outcomes.get(id(segment))
            if outcome is None:
                outcome = outcomes[id(segment)] = segment.outcome()
            verdicts += outcome[start : start + length]
        return verdicts


class Encoded(NamedTuple):
    """The arguments of `queen.push_v2`, in its order. `givens` has entries only for the keys that need one."""

    pids: list[int]
    ns: list[int]
    bases: list[str]
    last_ids: list[str]
    txs: list[bytes | None]
    datas: list[bytes]
    traces: list[bytes | None]
    subs: list[bytes | None]
    encs: list[str | None]
    keys: list[str]
    key_pos: list[int]
    bounded: list[int]
    befores: list[int]
    afters: list[int]
    tags: list[int]
    givens: dict[int, str]
    lookalikes: list[int]

    def arguments(self) -> tuple[str | list[bytes | None] | list[bytes] | list[str | None] | None, ...]:
        """As the statement takes them: numbers and UUIDs as the text of an array, which costs the driver nothing per
        element, and columns that nobody uses left out."""
        return (
            array(self.pids),
            array(self.ns),
            array(self.bases),
            array(self.last_ids),
            self.txs,
            self.datas,
            self.traces if any(self.traces) else None,
            self.subs if any(self.subs) else None,
            self.encs if any(self.encs) else None,
            array(self.keys),
            array(self.key_pos),
            array(self.bounded),
            array(self.befores) if any(self.afters) else None,
            array(self.afters) if any(self.afters) else None,
            array(self.tags),
            self._givens() if self.givens else None,
            array(self.lookalikes) if self.lookalikes else None,
        )

    def only(self) -> tuple[int | str | bytes | None, ...]:
        """As `queen.push_segment_v2` takes them: there is one segment."""
        return (
            self.pids[0],
            self.ns[0],
            self.bases[0],
            self.last_ids[0],
            self.txs[0],
            self.datas[0],
            self.traces[0],
            self.subs[0],
            self.encs[0],
            array(self.keys),
            None if self.key_pos == list(range(len(self.keys))) else array(self.key_pos),
            self.bounded[0] if self.bounded else None,
            self.tags[0],
            self._givens() if self.givens else None,
            array(self.lookalikes) if self.lookalikes else None,
        )

    def _givens(self) -> str:
        return array([self.givens.get(index) for index in range(len(self.keys))])


def array(values: Iterable[object]) -> str:
    """The text of a PostgreSQL array of numbers, booleans or UUIDs; None stands for NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def check(items: Sequence[PushItem]) -> None:
    """Raise InvalidValue for the first item that may not be stored, naming it as `items[i].field`."""
    for index, item in enumerate(items):
        where = f"items[{index}]."
        check_name(where + "queue", item.queue)
        if item.partition is not None:
            check_name(where + "partition", item.partition)
        check_payload(where + "payload", bytes(item.payload))
        if item.transaction_id is not None:
            check_transaction_id(where + "transactionId", item.transaction_id)
        if item.trace_id is not None:
            check_uuid(where + "traceId", item.trace_id)
        if item.producer_sub is not None:
            check_name(where + "producerSub", item.producer_sub, empty=True)


def group(parcels: Iterable[Parcel]) -> tuple[list[Segment], list[Receipt]]:
    """The segments of a flush, and for each parcel where its messages stand in them."""
    segments: dict[tuple[str, str], Segment] = {}
    receipts = []
    for parcel in parcels:
        items = parcel.items
        count = len(items)
        runs = []
        start = 0
        while start < count:
            first = items[start]
            queue, partition = first.queue, first.partition
            end = start + 1
            while end < count and items[end].partition == partition and items[end].queue == queue:
                end += 1
            name = (queue, partition or DEFAULT_PARTITION)
            segment = segments.get(name)
            if segment is None:
                segment = segments[name] = Segment(*name)
            runs.append(segment.add(items if end - start == count else items[start:end], parcel, start))
            start = end
        receipts.append(Receipt(runs))
    if len(segments) > MAX_SEGMENTS:
        raise InvalidValue("items", len(segments), f"in at most {MAX_SEGMENTS} partitions per push")
    for segment in segments.values():
        if len(segment.items) > MESSAGES_PER_SEGMENT:
            raise InvalidValue("items", len(segment.items), f"at most {MESSAGES_PER_SEGMENT} per partition and push")
        segment.stamp()
    return list(segments.values()), receipts


def encode(segments: Iterable[Segment]) -> Encoded:
    """The procedure's arguments for these segments, which have their places; what is settled is left out."""
    out = Encoded([], [], [], [], [], [], [], [], [], [], [], [], [], [], [], {}, [])
    last = NOWHERE.partition_id
    for segment in sorted(segments, key=lambda segment: segment.place.partition_id):
        pid = segment.place.partition_id
        if pid and pid == last:
            # Two names cannot have one id. With one that nobody has, the database refuses the call as for any wrong id.
            segment.place = segment.place._replace(partition_id=-len(out.pids))
        last = pid
        _encode(segment, out)
    return out


def _encode(segment: Segment, out: Encoded) -> None:
    keys = segment.keys or []
    items: list[PushEntry] = segment.items
    payloads: list[Any] = segment.payloads or [item.payload for item in items]
    subs, marks = segment.subs, segment.marks
    if segment.kept is not None:
        kept = segment.kept
        keys, items, payloads = [keys[at] for at in kept], [items[at] for at in kept], [payloads[at] for at in kept]
        subs = None if subs is None else [subs[at] for at in kept]
        marks = None if marks is None else [marks[at] for at in kept]
    if not items:
        return
    if segment.place.bounded and segment.place.queue_id not in out.bounded:
        out.bounded.append(segment.place.queue_id)
    unnamed = keys.count(None)
    if unnamed:
        out.givens[len(out.keys)] = f'"{{[0,{unnamed})}}"' if unnamed == len(keys) else _given(keys)
        out.keys.append(base_key(segment.base))
        out.key_pos.append(len(out.pids) << 16)
    data = _intact("payload", SEPARATOR.join(payloads), len(items))
    if len(data) <= PIECE_BYTES:
        _encode_piece(segment, out, 0, 0, data, keys, items, subs, marks)
        return
    for start, end in _pieces(payloads):
        _encode_piece(
            segment,
            out,
            start,
            len(items) - end,
            SEPARATOR.join(payloads[start:end]),
            keys[start:end],
            items[start:end],
            None if subs is None else subs[start:end],
            None if marks is None else marks[start:end],
        )


def _pieces(payloads: list[Any]) -> Iterator[tuple[int, int]]:
    """Where to cut: from, and up to. A payload that is larger than a piece stands alone."""
    start = size = 0
    for index, payload in enumerate(payloads):
        if size and size + len(payload) > PIECE_BYTES:
            yield start, index
            start, size = index, 0
        size += len(payload) + 1
    yield start, len(payloads)


def _encode_piece(
    segment: Segment,
    out: Encoded,
    before: int,
    after: int,
    data: bytes,
    keys: list[str | None],
    items: list[PushEntry],
    subs: list[str | None] | None,
    marks: list[bool] | None,
) -> None:
    """`before` and `after`: how many messages of the segment stand in pieces before and after this one."""
    position, count, first = len(out.pids) << 16, len(items), len(out.keys)
    tx = _joined(keys if segment.canonical else [item.transaction_id for item in items])
    out.pids.append(segment.place.partition_id)
    out.ns.append(count)
    out.bases.append(segment.base)
    out.last_ids.append(message_id(segment.base, before + count - 1))
    out.txs.append(tx)
    out.datas.append(data)
    out.traces.append(_joined([item.trace_id for item in items]))
    out.subs.append(None if subs is None else _joined(subs))
    out.encs.append("".join(["1" if mark else "0" for mark in marks]) if marks and any(marks) else None)
    if None not in keys:
        out.keys.extend(keys)  # type: ignore[arg-type]
        out.key_pos.extend(range(position, position + count))
    elif any(keys):
        out.keys.extend([key for key in keys if key is not None])
        out.key_pos.extend([position + offset for offset, key in enumerate(keys) if key is not None])
    if tx is not None and MARK in tx:
        out.lookalikes.extend([at + 1 for at in range(first, len(out.keys)) if looks_given(out.keys[at])])
    out.befores.append(before)
    out.afters.append(after)
    out.tags.append(partition_tag(segment.queue, segment.partition))


def _given(keys: list[str | None]) -> str:
    """The indexes without a transactionId, as an element of an array of multiranges: the server gives their ids."""
    ranges, end = [], 0
    for named, run in groupby(keys, key=bool):
        start, end = end, end + len([*run])
        if not named:
            ranges.append(f"[{start},{end})")
    return f'"{{{",".join(ranges)}}}"'


def _extended(mine: list[_T] | None, have: int, theirs: list[_T] | None, start: int, count: int) -> list[_T | None]:
    """A column of a segment and the next stretch of a parcel's; where one of them has none, None stands."""
    before: list[_T | None] = [None] * have if mine is None else [*mine]
    return before + ([None] * count if theirs is None else [*theirs[start : start + count]])


def _joined(values: list[str | None]) -> bytes | None:
    if not any(values):
        return None
    if None in values:
        values = [value or "" for value in values]
    return _intact("text", "\x1e".join(values).encode(), len(values))  # type: ignore[arg-type]


def _intact(field: str, joined: bytes, count: int) -> bytes:
    """The last line of defence for a segment's layout, whatever the callers have checked before."""
    if joined.count(SEPARATOR) != count - 1:
        raise InvalidValue(field, "a value with the byte 0x1E", "free of the byte 0x1E")
    return joined
