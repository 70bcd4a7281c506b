"""What the storage engine promises, as a few plain objects: the state machine test compares PostgreSQL with this.

A partition is a list of messages, numbered from 1. A cursor says how far one group has settled one partition, who holds
a lease on what follows, and how often each open message has failed. `Model` holds both and does to them what push, pop,
ack, seek and the others must do. Time is a counter: only the order of events matters here, and `expired` and `waiting`
say on which side of the clock a lease or a retry delay is.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple

BAD_LEASE: Final = "Invalid or expired lease"
HELD: Final = "Not acknowledged: an earlier message of this partition is to be delivered again"
PASSED: Final = "Not applied: this message or a later one of its partition is acknowledged already"
UNKNOWN_LEASE: Final = -1


class Message(NamedTuple):
    payload: int
    transaction_id: str | None


@dataclass(eq=False)
class Partition:
    name: str
    messages: list[Message] = field(default_factory=list)
    uid: str = ""

    @property
    def last(self) -> int:
        return len(self.messages)

    def holds(self, transaction_id: str | None) -> bool:
        return transaction_id is not None and any(m.transaction_id == transaction_id for m in self.messages)


class Moment:
    """A point in time: how long each partition was then. A partition made later was empty."""

    def __init__(self, at: datetime | None, partitions: Iterable[Partition]) -> None:
        self.at = at
        self._lengths = {partition: partition.last for partition in partitions}

    def seq(self, partition: Partition) -> int:
        return self._lengths.get(partition, 0)


Start = Moment | Literal["all", "new"]
"""Where a group begins: everything, nothing that is there already, or what came after a moment."""


@dataclass(eq=False)
class Cursor:
    """One group on one partition. `ready` is when it became worth a look: the counter then, or None when drained."""

    partition: Partition
    acked: int = 0
    ready: int | None = None
    lease: str | None = None
    lease_to: int = 0
    expired: bool = False
    last_lease: str | None = None
    last_lease_to: int = 0
    waiting: bool = False
    retries: dict[int, int] = field(default_factory=dict)  # of messages to come again; 0 when none has failed
    isolate: bool = False
    batch_limit: int | None = None  # of the next lease: a larger batch failed as a whole
    unresolved: Moment | Literal["undecided"] | None = None

    @property
    def due(self) -> bool:
        """A pop may look at it now."""
        return self.ready is not None and not self.waiting and (self.lease is None or self.expired)

    def resolve(self, start: Start) -> None:
        """Where to begin is decided when it is first needed."""
        if self.unresolved is None:
            return
        origin = start if self.unresolved == "undecided" else self.unresolved
        self.acked = (
            origin.seq(self.partition) if isinstance(origin, Moment) else self.partition.last * (origin == "new")
        )
        self.unresolved = None

    def move(self, acked: int) -> None:
        """Progress: what failed up to here is forgotten, and so is the suspicion against its first message."""
        if acked > self.acked:
            self.isolate = False
            self.unresolved = None
        self.acked = acked
        self.retries = {seq: count for seq, count in self.retries.items() if seq > acked}
        self.batch_limit = self.batch_limit if self.retries else None

    def end_lease(self) -> None:
        """What it has settled so far may be acknowledged again, and nothing else."""
        if self.lease is not None:
            self.last_lease, self.last_lease_to = self.lease, self.acked
        self.lease, self.lease_to, self.expired = None, 0, False

    def give_back(self) -> None:
        """The lease ends and has settled nothing more: the next one covers no more messages than this one did."""
        self.end_lease()
        self.halve_limit()

    def halve_limit(self) -> None:
        self.batch_limit = (self.batch_limit + 1) // 2 if self.batch_limit and self.retries else None


@dataclass(eq=False)
class Group:
    """A group on a queue. `start` is None while only pops from single partitions have been made."""

    name: str
    start: Start | None
    since: Moment | None = None
    registered: bool = True
    cursors: dict[Partition, Cursor] = field(default_factory=dict)


@dataclass(eq=False)
class Queue:
    name: str
    retry_limit: int
    retry_delay: int
    dead_letter_queue: bool
    dlq_after_max_retries: bool
    partitions: dict[str, Partition] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)


class Death(NamedTuple):
    """A message that a group gives up."""

    partition: Partition
    group: str
    seq: int
    retry_count: int
    error: str


class Verdict(NamedTuple):
    ok: bool
    error: str | None
    dead: bool


class Ack(NamedTuple):
    seq: int
    status: str
    error: str | None = None


class Model:
    def __init__(self, queues: Iterable[Queue]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.dead: dict[tuple[Partition, str, int], Death] = {}
        self.given_up: set[tuple[Partition, str, int]] = set()
        self.discarded: Counter[tuple[str, str, str]] = Counter()
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def moment(self, at: datetime | None = None) -> Moment:
        return Moment(at, [p for queue in self.queues.values() for p in queue.partitions.values()])

    # -- push

    def push(self, queue: Queue, items: Iterable[tuple[str, Message]]) -> list[str]:
        """A transactionId is stored once per partition. Every registered group has a cursor on a new partition."""
        verdicts = []
        for name, message in items:
            partition = self.ensure_partition(queue, name)
            if partition.holds(message.transaction_id):
                verdicts.append("duplicate")
                continue
            partition.messages.append(message)
            verdicts.append("queued")
        now = self.tick()
        for cursor in self._cursors(queue):
            if cursor.ready is None and cursor.lease is None and cursor.partition.last > cursor.acked:
                cursor.ready = now
        return verdicts

    def ensure_partition(self, queue: Queue, name: str) -> Partition:
        if name not in queue.partitions:
            partition = queue.partitions[name] = Partition(name)
            for group in queue.groups.values():
                if group.registered:
                    unresolved: Literal["undecided"] | None = "undecided" if group.start is None else None
                    group.cursors[partition] = Cursor(partition, unresolved=unresolved)
        return queue.partitions[name]

    def _cursors(self, queue: Queue) -> list[Cursor]:
        return [cursor for group in queue.groups.values() for cursor in group.cursors.values()]

    # -- groups

    def register(self, queue: Queue, name: str, start: Start | None) -> Group:
        """The first pop registers a group, on all partitions. `start` None: it comes from a pop of one partition."""
        group = queue.groups.get(name)
        if group is None:
            group = queue.groups[name] = Group(name, start, self.moment() if start == "new" else None)
            self._create_cursors(queue, group, at_end=start == "new")
        elif not group.registered:
            group.registered = True
            self._create_cursors(queue, group, at_end=False)
        if group.start is None and start is not None:
            self._decide(group, start)
        return group

    def _create_cursors(self, queue: Queue, group: Group, *, at_end: bool) -> None:
        """At the end for a group that subscribes as new; a group that starts over does so where it once subscribed."""
        now = self.tick()
        for partition in queue.partitions.values():
            cursor = group.cursors[partition] = Cursor(partition)
            if at_end:
                cursor.acked = partition.last
                continue
            cursor.ready = now if partition.last else None
            if group.start is None:
                cursor.unresolved = "undecided"
            elif group.start != "all":
                cursor.unresolved = group.since if group.start == "new" else group.start

    def _decide(self, group: Group, start: Start) -> None:
        """The first pop from any partition decides for the partitions that no pop has touched."""
        group.start = start
        group.since = self.moment() if start == "new" else None
        for cursor in group.cursors.values():
            if cursor.unresolved == "undecided":
                cursor.unresolved = start if isinstance(start, Moment) else None
                cursor.acked = cursor.partition.last if start == "new" else 0
                cursor.ready = None if start == "new" else cursor.ready

    def seek(self, queue: Queue, name: str, target: Moment | Literal["end", "beginning"], only: str | None) -> int:
        """Leases end and are forgotten, and so are the failures."""
        group = queue.groups.get(name)
        if group is None or not group.registered:
            return 0
        moved = [cursor for cursor in group.cursors.values() if only in (None, cursor.partition.name)]
        now = self.tick()
        for cursor in moved:
            last = cursor.partition.last
            acked = target.seq(cursor.partition) if isinstance(target, Moment) else last * (target == "end")
            group.cursors[cursor.partition] = Cursor(cursor.partition, acked, now if last > acked else None)
        return len(moved)

    def delete_group(self, queue: Queue, name: str, *, forget: bool) -> int:
        group = queue.groups.get(name)
        if group is None:
            return 0
        removed = len(group.cursors)
        group.cursors, group.registered = {}, False
        if forget:
            del queue.groups[name]
        return removed

    def delete_queue(self, queue: Queue) -> None:
        gone = set(queue.partitions.values())
        self.dead = {key: death for key, death in self.dead.items() if key[0] not in gone}
        self.given_up = {key for key in self.given_up if key[0] not in gone}
        queue.partitions, queue.groups = {}, {}

    # -- pop

    def visit(
        self, queue: Queue, group: Group, cursor: Cursor, want: int, lease: str | None, start: Start
    ) -> list[tuple[int, Message]]:
        """What a pop does with a cursor that is due. Without a lease (autoAck) what it delivers is settled."""
        if cursor.lease is not None:
            death = self._count_expiry(queue, group, cursor)
            if death is not None:
                self.bury(queue, death)
        cursor.resolve(start)
        if cursor.isolate or (lease is not None and self.comes_alone(queue, cursor)):
            want = 1
        elif cursor.batch_limit and lease is not None:
            want = min(want, cursor.batch_limit)
        first = cursor.acked + 1
        got = list(enumerate(cursor.partition.messages[cursor.acked : cursor.acked + want], first))
        cursor.waiting = False
        if not got:
            cursor.ready = None
        elif lease is None:
            cursor.move(got[-1][0])
            cursor.ready = self.tick()
        else:
            cursor.lease, cursor.lease_to = lease, got[-1][0]
            cursor.batch_limit = cursor.batch_limit and min(2 * cursor.batch_limit, 65536)
        return got

    def comes_alone(self, queue: Queue, cursor: Cursor) -> bool:
        """Its next message has no retry left and has only failed among others."""
        return queue.dlq_after_max_retries and cursor.retries.get(cursor.acked + 1, 0) > queue.retry_limit

    def would_deliver(self, queue: Queue, group: Group, cursor: Cursor, start: Start) -> bool:
        trial = copy.copy(cursor)
        if trial.lease is not None:
            self._count_expiry(queue, group, trial)
        trial.resolve(start)
        return trial.partition.last > trial.acked

    def _count_expiry(self, queue: Queue, group: Group, cursor: Cursor) -> Death | None:
        """A lease that ran out is a failed attempt at its first message. A message without retries left is
        dead-lettered when it was alone in the lease; otherwise it comes alone next time: no neighbour pays."""
        head, alone = cursor.acked + 1, cursor.lease_to == cursor.acked + 1
        failures = cursor.retries.get(head, 0) + 1
        cursor.give_back()
        if failures <= queue.retry_limit or not queue.dlq_after_max_retries:
            cursor.retries = cursor.retries | {head: failures}
        elif not alone:
            cursor.isolate = True
        else:
            cursor.move(head)
            return Death(cursor.partition, group.name, head, queue.retry_limit, "Lease expired")
        return None

    def bury(self, queue: Queue, death: Death) -> None:
        self.given_up.add((death.partition, death.group, death.seq))
        if queue.dead_letter_queue:
            self.dead[death.partition, death.group, death.seq] = death
        else:
            self.discarded[queue.name, death.partition.name, death.group] += 1

    # -- ack

    def settle(
        self, queue: Queue, group: Group, cursor: Cursor, lease: str | None, acks: Iterable[Ack], crowd: int
    ) -> tuple[list[Verdict], list[Death]]:
        """Answer for messages in ascending order, under a lease or (None) unfenced. `crowd`: how many messages of
        the lease the request fails, on all partitions.

        Nothing behind a message that is to come again is settled: not in the same call, and not in a later one
        without a lease, until that message has been delivered again. A message that fails among others is not
        dead-lettered for that: it comes again in a smaller batch, and alone once it is exhausted.
        """
        live = lease is None or (lease == cursor.lease and not cursor.expired)
        loose = lease is None and (cursor.lease is None or cursor.expired)
        top = self._top(cursor, lease, live)
        if live and isinstance(cursor.unresolved, Moment):
            cursor.resolve(cursor.unresolved)
        acks = list(acks)
        begin, held, wait = cursor.acked, False, False
        own = len({ack.seq for ack in acks if ack.status == "failed" and begin < ack.seq <= top})
        verdicts: list[Verdict] = []
        deaths: list[Death] = []
        for ack in acks:
            error, dead = None, False
            death = self._death(queue, group, cursor, ack)
            blocked = held or (loose and any(cursor.acked < seq < ack.seq for seq in cursor.retries))
            if ack.seq > top:
                error = BAD_LEASE
            elif ack.seq <= cursor.acked:
                gone = ack.status in ("failed", "dlq") and self._given_up(group, cursor, ack.seq, deaths)
                dead = gone and queue.dead_letter_queue
                error = None if gone or ack.status == "completed" else PASSED
            elif blocked and ack.status in ("completed", "dlq"):
                error = HELD
            elif ack.status == "completed":
                cursor.move(ack.seq)
            elif death is not None and not blocked and (ack.status == "dlq" or crowd == 1):
                deaths.append(death)
                cursor.move(ack.seq)
                dead = queue.dead_letter_queue
            else:
                failed = ack.status == "failed"
                if not held:
                    cursor.halve_limit()
                failures = cursor.retries.get(ack.seq, 0) + failed
                failures = failures if death is None else min(failures, queue.retry_limit + 1)
                cursor.retries = cursor.retries | {ack.seq: failures}
                wait = wait if held else failed and queue.retry_delay > 0
                held = True
            verdicts.append(Verdict(error is None, error, dead))
        if live:
            cursor.batch_limit = max(1, own // 2) if own and crowd > 1 else cursor.batch_limit
            self._write(cursor, begin, held, wait)
        return verdicts, deaths

    def _top(self, cursor: Cursor, lease: str | None, live: bool) -> int:
        """The highest message that may be answered for: what a lease that is over settled itself, and nothing
        under one that is not known."""
        if lease is None:
            return cursor.partition.last
        if live:
            return cursor.lease_to
        if lease == cursor.lease:
            return cursor.acked
        return min(cursor.last_lease_to, cursor.acked) if lease == cursor.last_lease else UNKNOWN_LEASE

    def _given_up(self, group: Group, cursor: Cursor, seq: int, deaths: Iterable[Death]) -> bool:
        return any(death.seq == seq for death in deaths) or (cursor.partition, group.name, seq) in self.given_up

    def _death(self, queue: Queue, group: Group, cursor: Cursor, ack: Ack) -> Death | None:
        earlier = cursor.retries.get(ack.seq, 0)
        if ack.status == "dlq":
            default = "Moved to the dead letter queue by the consumer"
        elif ack.status == "failed" and earlier >= queue.retry_limit and queue.dlq_after_max_retries:
            default = "Retries exhausted"
        else:
            return None
        return Death(cursor.partition, group.name, ack.seq, earlier, ack.error or default)

    def _write(self, cursor: Cursor, begin: int, held: bool, wait: bool) -> None:
        """The lease ends when the cursor reaches its end, or when a message is to come again."""
        ended = held or (cursor.lease is not None and cursor.acked >= cursor.lease_to)
        if ended:
            cursor.end_lease()
        if held:
            cursor.ready, cursor.waiting = self.now, wait
        elif cursor.lease is None and (ended or cursor.acked > begin):
            cursor.ready, cursor.waiting = self.now if cursor.partition.last > cursor.acked else None, False
