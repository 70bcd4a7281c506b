"""How a push is packed: the messages of one flush, grouped into one segment per partition.

The columns of a segment are the messages' values joined by the byte 0x1E, so a payload travels from client to client
without being re-encoded. 0x1E cannot stand raw in valid JSON, and names and ids with control characters are refused
before. Ids are given here, once: encoding a plan again, after a lost answer or without its duplicates, yields the
same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..wire.names import InvalidValue, check_name, check_transaction_id, check_uuid
from ..wire.payload import check_payload
from .ids import MESSAGES_PER_SEGMENT, dedup_key, message_id, new_segment_base

SEPARATOR: Final = b"\x1e"
MAX_SEGMENTS: Final = 32767  # a dedup position packs the segment's index into the upper half of an int4


@dataclass(slots=True)
class PushItem:
    """One message as it comes in: names checked, payload valid JSON text."""

    queue: str
    payload: bytes
    partition: str = "Default"
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


@dataclass(slots=True)
class Segment:
    """The messages of a flush for one partition. `indexes` are their places in the flush; `keys` their dedup keys or
    None."""

    place: Place
    base: str = field(default_factory=new_segment_base)
    indexes: list[int] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def keep(self, wanted: Sequence[bool]) -> None:
        self.indexes = [index for index, keep in zip(self.indexes, wanted, strict=True) if keep]
        self.keys = [key for key, keep in zip(self.keys, wanted, strict=True) if keep]

    def ids(self) -> list[str]:
        return [message_id(self.base, position) for position in range(len(self.indexes))]


class Encoded(NamedTuple):
    """The arguments of `queen.push_v1`, in its order."""

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


def check(items: Sequence[PushItem]) -> None:
    """Raise InvalidValue for the first item that may not be stored, naming it as `items[i].field`."""
    for index, item in enumerate(items):
        where = f"items[{index}]."
        check_name(where + "queue", item.queue)
        check_name(where + "partition", item.partition)
        check_payload(where + "payload", item.payload)
        if item.transaction_id is not None:
            check_transaction_id(where + "transactionId", item.transaction_id)
        if item.trace_id is not None:
            check_uuid(where + "traceId", item.trace_id)
        if item.producer_sub is not None:
            check_name(where + "producerSub", item.producer_sub, empty=True)


def group(items: Sequence[PushItem], places: Sequence[Place]) -> tuple[list[Segment], dict[int, int]]:
    """Segments in the order of their partitions, and the duplicates inside the flush as {index: index of the first}."""
    segments: dict[int, Segment] = {}
    firsts: dict[tuple[int, str], int] = {}
    twins: dict[int, int] = {}
    for index, (item, place) in enumerate(zip(items, places, strict=True)):
        key = None
        if item.transaction_id:
            key = dedup_key(item.transaction_id)
            first = firsts.setdefault((place.partition_id, key), index)
            if first != index:
                twins[index] = first
                continue
        segment = segments.get(place.partition_id)
        if segment is None:
            segment = segments[place.partition_id] = Segment(place)
        segment.indexes.append(index)
        segment.keys.append(key)
    if len(segments) > MAX_SEGMENTS:
        raise InvalidValue("items", len(segments), f"in at most {MAX_SEGMENTS} partitions per push")
    for segment in segments.values():
        if len(segment.indexes) > MESSAGES_PER_SEGMENT:
            raise InvalidValue("items", len(segment.indexes), f"at most {MESSAGES_PER_SEGMENT} per partition and push")
    return [segments[pid] for pid in sorted(segments)], twins


def encode(segments: Iterable[Segment], items: Sequence[PushItem]) -> Encoded:
    """The procedure's arguments for these segments; empty ones are left out."""
    out = Encoded([], [], [], [], [], [], [], [], [], [], [], [])
    for segment in segments:
        if not segment.indexes:
            continue
        chosen = [items[index] for index in segment.indexes]
        count = len(chosen)
        position = len(out.pids) << 16
        out.pids.append(segment.place.partition_id)
        out.ns.append(count)
        out.bases.append(segment.base)
        out.last_ids.append(message_id(segment.base, count - 1))
        out.txs.append(_joined([item.transaction_id for item in chosen]))
        out.datas.append(_intact("payload", SEPARATOR.join([item.payload for item in chosen]), count))
        out.traces.append(_joined([item.trace_id for item in chosen]))
        out.subs.append(_joined([item.producer_sub for item in chosen]))
        out.encs.append(_marks([item.encrypted for item in chosen]))
        if None in segment.keys:
            out.keys.append(segment.base)
            out.key_pos.append(position)
        for offset, key in enumerate(segment.keys):
            if key is not None:
                out.keys.append(key)
                out.key_pos.append(position + offset)
        if segment.place.bounded and segment.place.queue_id not in out.bounded:
            out.bounded.append(segment.place.queue_id)
    return out


def _joined(values: Sequence[str | None]) -> bytes | None:
    if not any(values):
        return None
    return _intact("text", SEPARATOR.join([value.encode() if value else b"" for value in values]), len(values))


def _intact(field: str, joined: bytes, count: int) -> bytes:
    """The last line of defence for a segment's layout, whatever the callers have checked before."""
    if joined.count(SEPARATOR) != count - 1:
        raise InvalidValue(field, "a value with the byte 0x1E", "free of the byte 0x1E")
    return joined


def _marks(encrypted: Sequence[bool]) -> str | None:
    return "".join("1" if mark else "0" for mark in encrypted) if any(encrypted) else None
