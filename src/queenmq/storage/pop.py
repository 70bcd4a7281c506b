"""Pop: win leases and read what they cover.

A request names the groups it takes from (one for a queue, several for a namespace) and gets whole segments back;
`Claim.messages` cuts them to what the lease covers. Many requests travel in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from .. import sql
from ..domain.ids import SUFFIXES, new_id
from ..domain.segments import SEPARATOR, array
from .directory import Directory, GroupPlace
from .pool import Executor, translated, undisturbed

_Kind = tuple[int, int | None, int | None]  # group id, its tag, the most seconds of a lease

QUEUE_MODE = "__QUEUE_MODE__"
_FEW_GROUPS = 4
BEGINNING = None
NOW = datetime.max
"""Where a group starts that has no subscription yet; any other time means after it."""


class Message(NamedTuple):
    seq: int
    id: str
    transaction_id: str
    payload: bytes
    trace_id: str | None
    producer_sub: str | None
    encrypted: bool
    created_at: datetime


class SegmentRow(NamedTuple):
    """A stored segment; its columns are as in `queen.segments`."""

    last_seq: int
    n: int
    base: str
    base_idx: int
    created_at: datetime
    tx: bytes | None
    data: bytes
    trace_ids: bytes | None
    subs: bytes | None
    enc: str | None


@dataclass(slots=True)
class PopRequest:
    """What one consumer asks for. `groups` are group ids, tried in order; `partition_id` narrows to one partition.
    `group_tags` and `tag` (see `group_tag`, `partition_tag`) say whose ids they are taken for. The lease lasts for
    `hold` seconds at most; None: as long as its queue says. With an `age`, the start NOW means so many seconds ago."""

    groups: Sequence[int]
    partition_id: int | None = None
    batch: int = 1
    max_partitions: int = 1
    auto_ack: bool = False
    start: datetime | None = BEGINNING
    lease_id: str = field(default_factory=new_id)
    tag: int | None = None
    group_tags: Sequence[int | None] | None = None
    hold: int | None = None
    age: float | None = None

    @property
    def kind(self) -> _Kind:
        """What requests must have in common to share the statement for any partition of one group."""
        return self.groups[0], None if self.group_tags is None else self.group_tags[0], self.hold

    @property
    def anywhere(self) -> bool:
        """It takes any one partition of one group, under a lease: the common case."""
        return self.partition_id is None and self.max_partitions == 1 and not self.auto_ack and len(self.groups) == 1


@dataclass(slots=True)
class Claim:
    """One partition won: the messages (from_seq, to_seq], held until lease_expires_at. With auto_ack there is no
    lease."""

    partition_id: int
    partition_uid: str
    partition: str
    queue_id: int
    group_id: int
    lease_id: str | None
    from_seq: int
    to_seq: int
    lease_expires_at: datetime | None
    attempt: int
    segments: list[SegmentRow]
    queue: str = ""  # set by whoever asked, who knows it

    def messages(self) -> Iterator[Message]:
        for row in self.segments:
            yield from _cut(row, self.from_seq, self.to_seq)


@dataclass(slots=True)
class PopResult:
    """The claims of one request; without any, the reason and when the first of its cursors is worth another look."""

    claims: list[Claim]
    reason: Literal["empty", "unknown_group", "unknown_partition"] | None = None
    ready_at: datetime | None = None
    ready_in: float | None = None  # the same in seconds from now, by the database's clock
    lease_id: str | None = None  # with autoAck: the lease that is acknowledged when the answer is delivered

    def messages(self) -> list[Message]:
        return [message for claim in self.claims for message in claim.messages()]


async def pop(db: Executor, requests: Sequence[PopRequest], most_bytes: int | None = None) -> list[PopResult]:
    """Answer many requests in one call and one commit; for a few groups, in one of each. A request gets payloads of at
    most so many bytes, unless its first segment has more."""
    results = [PopResult([]) for _ in requests]
    left = list(range(len(requests)))
    alike: dict[_Kind, list[int]] = {}
    for index, request in enumerate(requests):
        if request.anywhere:
            alike.setdefault(request.kind, []).append(index)
    async with translated():
        if len(alike) <= _FEW_GROUPS:
            for kind, indexes in alike.items():
                await _pop_any(db, kind, indexes, requests, results, most_bytes)
            left = [index for index in left if not results[index].claims and results[index].reason is None]
        if left:
            columns = _columns([requests[index] for index in left], most_bytes)
            rows = await undisturbed(partial(db.fetch, sql.query("pop"), *columns))
            _read(rows, left, requests, results)
    return results


async def _pop_any(
    db: Executor,
    kind: _Kind,
    indexes: list[int],
    requests: Sequence[PopRequest],
    results: list[PopResult],
    most_bytes: int | None,
) -> None:
    """Requests of one group that take whatever partition is next. Those for which there is nothing plain to say get
    neither claims nor a reason."""
    chosen = [requests[index] for index in indexes]
    group_id, tag, hold = kind
    rows = await db.fetch(
        sql.query("pop_any"),
        group_id,
        array([request.lease_id for request in chosen]),
        array([request.batch for request in chosen]),
        len(chosen),
        most_bytes,
        tag,
        hold,
    )
    over = rows.pop() if rows and rows[-1]["reason"] is not None else None
    _read(rows, indexes, requests, results)
    if over is not None and over["n"] and over["partition_id"] == over["from_seq"]:
        for index in indexes:
            if not results[index].claims:
                _nothing(results[index], "empty", over)


def _read(
    rows: Sequence[Any], indexes: Sequence[int], requests: Sequence[PopRequest], results: list[PopResult]
) -> None:
    """Rows of requests that were asked as number 1, 2, ... and are at these indexes."""
    for row in rows:
        index = indexes[row[0] - 1]
        result = results[index]
        if row[1] is None:
            _nothing(result, row["reason"], row)
            continue
        if not result.claims or result.claims[-1].partition_id != row[1]:
            result.claims.append(_claim(row, requests[index]))
        result.claims[-1].segments.append(
            SegmentRow(row[10], row[11], str(row[12]), row[13], row[14], row[15], row[16], row[17], row[18], row[19])
        )


def _nothing(result: PopResult, reason: Literal["empty", "unknown_group", "unknown_partition"], row: Any) -> None:
    result.reason = reason
    result.ready_at = row["ready_at"]
    if result.ready_at is not None:
        result.ready_in = (result.ready_at - row["created_at"]).total_seconds()


async def held_by_auto_acks(db: Executor, groups: Sequence[int], partition_id: int | None) -> bool:
    """Whether a pop of these groups may have found nothing only because others are just being acknowledged."""
    async with translated():
        return bool(await db.fetch(sql.query("held_by_auto_acks"), groups, partition_id))


async def clock(db: Executor) -> datetime:
    """The database's."""
    async with translated():
        now: datetime = await db.fetchval(sql.query("clock"))
    return now


class Awaited(NamedTuple):
    """A pop of a group that starts with what is new: what it names, and when it arrived by the database's clock, or how
    many seconds ago when that is not known."""

    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    group: str
    since: datetime | None
    age: float


async def await_subscriptions(db: Executor, pops: Sequence[Awaited]) -> None:
    """Note where these groups start on what is not there yet, for every server."""
    async with translated():
        columns = map(list, zip(*pops, strict=True))
        await undisturbed(partial(db.execute, sql.query("await_subscriptions"), *columns))


async def register(
    db: Executor, directory: Directory, queue: str, group: str, *, mode: str | None, start: datetime | None
) -> GroupPlace | None:
    """The group's place on a queue, registered when it is new; None when the queue does not exist.

    `mode` None (a pop from one partition) leaves the subscription undecided: each partition then starts as its first
    own pop says.
    """
    place = directory.group(queue, group)
    if place is None or (not place.decided and mode is not None):
        call = partial(_register, db, directory, queue, group, mode, start)
        place = await directory.registered(queue, group, mode is not None, call)
    return place


async def _register(
    db: Executor, directory: Directory, queue: str, group: str, mode: str | None, start: datetime | None
) -> GroupPlace | None:
    async with translated():
        row = await undisturbed(partial(db.fetchrow, sql.query("register_group"), queue, group, mode, start))
    if row is None:
        return None
    place = GroupPlace(row["queue_id"], row["group_id"], mode is not None)
    directory.remember_group(queue, group, place)
    return place


def subscription(
    group: str, mode: Literal["all", "new"], start: datetime | Literal["now"] | None
) -> tuple[Literal["all", "new", "timestamp"], datetime | None]:
    """The mode to store for a new group, and where its cursors start. Queue mode always starts at the beginning."""
    if group == QUEUE_MODE:
        return "all", None
    if isinstance(start, datetime):
        return "timestamp", start
    if start == "now" or mode == "new":
        return "new", NOW
    return "all", None


def _columns(requests: Sequence[PopRequest], most_bytes: int | None) -> tuple[Any, ...]:
    groups: list[int] = []
    group_tags: list[int | None] = []
    first: list[int] = []
    last: list[int] = []
    for request in requests:
        first.append(len(groups) + 1)
        groups.extend(request.groups)
        group_tags.extend(request.group_tags or [None] * len(request.groups))
        last.append(len(groups))
    starts = [request.start for request in requests]
    return (
        array(groups),
        _sparse(group_tags),
        array(first),
        array(last),
        array([request.partition_id for request in requests]),
        _sparse([request.tag for request in requests]),
        array([request.batch for request in requests]),
        array([request.max_partitions for request in requests]),
        array([request.lease_id for request in requests]),
        _sparse([request.hold for request in requests]),
        array([request.auto_ack for request in requests]),
        starts if any(starts) else None,
        _sparse([request.age for request in requests]),
        most_bytes,
    )


def _sparse(values: Sequence[Any]) -> str | None:
    """An array of which mostly every entry is None, and then None instead."""
    return array(values) if any(value is not None for value in values) else None


def _claim(row: Any, request: PopRequest) -> Claim:
    return Claim(
        row["partition_id"],
        str(row["partition_uid"]),
        row["partition_name"],
        row["queue_id"],
        row["group_id"],
        None if request.auto_ack else request.lease_id,
        row["from_seq"],
        row["to_seq"],
        None if request.auto_ack else row["lease_expires_at"],
        row["attempt"],
        [],
    )


def _cut(row: SegmentRow, from_seq: int, to_seq: int) -> Iterator[Message]:
    """The messages of one segment that lie in (from_seq, to_seq]."""
    last, count, index = row.last_seq, row.n, row.base_idx
    prefix = row.base[:32]
    created_at = row.created_at
    payloads = row.data.split(SEPARATOR)
    txs = _entries(row.tx, count)
    traces = _entries(row.trace_ids, count)
    subs = _entries(row.subs, count)
    marks = row.enc or ""
    first = last - count + 1
    for offset in range(max(0, from_seq - first + 1), count - max(0, last - to_seq)):
        message = prefix + SUFFIXES[index + offset]
        yield Message(
            first + offset,
            message,
            txs[offset] or message,
            payloads[offset],
            traces[offset],
            subs[offset],
            marks[offset : offset + 1] == "1",
            created_at,
        )


def _entries(joined: bytes | None, count: int) -> list[str | None]:
    if joined is None:
        return [None] * count
    return [entry.decode() or None for entry in joined.split(SEPARATOR)]
