"""Parked pops: long polls that found nothing and wait for a reason to look again.

Waiters of one key stand in one line, the longest waiter first. A push or a freed partition wakes as many as there is
work for; otherwise one of them looks for all: when the earliest cursor becomes ready, and at growing intervals in case
nothing told us. Such looks of many lines happen at the same moments, in one flush. A waiter that finds nothing takes
its old place. News that comes while waiters are on their way is kept for them, so none is lost between a look and the
parking.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from .config import EngineConfig

_SOONEST: Final = 0.002  # a cursor may say "now" while the push that woke it is still being committed
_DOUBLINGS: Final = 10  # of that, while a cursor goes on saying "now" and nothing is found: somebody has it locked
_OTHERS: Final = 1000
_FRESH: Final = 0.02  # for so long, what one has not found another need not look for
_PATIENT: Final = 0.1  # seconds before the end of its wait by which the look that a waiter relies on must begin


class Key(NamedTuple):
    """What waiters wait for: a queue, one partition of it, or (without a queue) a namespace and task."""

    group: str
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None

    @property
    def topic(self) -> tuple[str | None, str | None]:
        """Where a push announces itself to these waiters."""
        return self.queue, self.partition


class Waiter(Protocol):
    """A pop that may wait. `ticket` is its place in line, given once; `gone` is set just before it is removed."""

    key: Key
    ticket: int
    gone: bool


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True)
class Line(Generic[W]):
    """The waiters of one key.

    `looking`: how many are on their way; `credit`: for how many more there is work; `probing`: the last look was on
    suspicion, so when it finds something there may be more; `empties`: how often in a row they came back with nothing;
    `empty_at`: when one last did, 0 after news; `overdue`: how often in a row although a cursor was ready; `due`: when
    one looks again for all, and `ready`: there is work then. Without a queue: `queues` are those it found for its
    namespace and task, `others` those that had news and were not among them.
    """

    waiting: list[tuple[int, W]] = field(default_factory=list)
    gone: int = 0
    looking: int = 0
    credit: int = 0
    probing: bool = False
    empties: int = 0
    interval: float = 0.0
    empty_at: float = 0.0
    overdue: int = 0
    due: float = 0.0
    ready: bool = False
    queues: frozenset[str] = frozenset()
    others: set[str] = field(default_factory=set)

    def may_mean(self, queue: str) -> bool:
        """May what happened in this queue be for them? About a queue it has not heard of it finds out once."""
        if queue in self.queues:
            return True
        if queue in self.others:
            return False
        if len(self.others) >= _OTHERS:
            self.others.clear()
        self.others.add(queue)
        return True


class Attendance(Protocol):
    """Whom it concerns that somebody waits for a queue; None: for any queue of a namespace."""

    def arrived(self, queue: str | None, partition: str | None) -> None: ...

    def left(self, queue: str | None, partition: str | None) -> None: ...


class Waiters(Generic[W]):
    """`wake` sends a waiter to look again. `attendance` is told of each line that forms and dissolves."""

    def __init__(self, config: EngineConfig, wake: Callable[[W], None], attendance: Attendance | None = None) -> None:
        self._config = config
        self._wake = wake
        self._attendance = attendance
        self._lines: dict[Key, Line[W]] = {}
        self._topics: dict[tuple[str | None, str | None], set[Key]] = {}
        self._due: list[tuple[float, int, Key]] = []
        self._rounds: list[float] = []  # the moments to come at which lines look together, in order
        self._tickets = count(1)
        self._order = count()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.parked = 0

    @property
    def lines(self) -> int:
        return len(self._lines)

    def ticket(self) -> int:
        return next(self._tickets)

    def enter(self, waiter: W, *, wait: float = math.inf) -> bool:
        """A pop that may wait, for so many seconds, begins. True: it looks now. False: it is parked behind others, and
        the first of them looks soon, or in a line that has backed off when its turn comes; or, alone, because another
        has just found nothing."""
        line = self._lines.get(waiter.key) or self._form(waiter.key)
        now = self._loop.time()
        since = now - line.empty_at
        if len(line.waiting) == line.gone and (since > _FRESH or line.credit or wait <= _PATIENT):
            line.looking += 1
            return True
        heapq.heappush(line.waiting, (waiter.ticket, waiter))
        self.parked += 1
        if not (self._backed_off(line) and line.due and line.due <= now + wait - _PATIENT):
            self._schedule(waiter.key, line, max(_FRESH - since, _SOONEST))
        return False

    def _form(self, key: Key) -> Line[W]:
        line = self._lines[key] = Line(interval=self._config.poll_first)
        self._topics.setdefault(key.topic, set()).add(key)
        if self._attendance is not None:
            self._attendance.arrived(*key.topic)
        return line

    def _backed_off(self, line: Line[W]) -> bool:
        return line.empties >= self._config.poll_threshold

    def found(self, waiter: W) -> None:
        """It is back with an answer, and leaves."""
        line = self._lines[waiter.key]
        line.looking -= 1
        self._reset(line)
        if line.probing:
            line.credit = max(line.credit, 1)
        self._look(waiter.key, line)

    def park(self, waiter: W, ready_in: float | None, queues: Iterable[str] = ()) -> None:
        """It is back with nothing. `ready_in`: seconds until a cursor of its key is ready; None: after a push.
        `queues`: where it looked, when its key names none."""
        line = self._lines[waiter.key]
        if waiter.key.queue is None:
            line.queues = frozenset(queues)
        line.looking -= 1
        line.probing = False
        line.empty_at = 0.0 if line.credit else self._loop.time()
        if not line.looking:  # of those who looked together, one counts
            line.empties += 1
            if self._backed_off(line):
                line.interval = min(line.interval * self._config.poll_multiplier, self._config.poll_max)
        heapq.heappush(line.waiting, (waiter.ticket, waiter))
        self.parked += 1
        if ready_in is not None:
            self._await_cursor(waiter.key, line, ready_in)
        self._look(waiter.key, line)

    def _await_cursor(self, key: Key, line: Line[W], ready_in: float) -> None:
        """Look when it is ready, unless one looks before that anyhow, and then knows better."""
        wait = max(ready_in, _SOONEST * 2.0**line.overdue)
        line.overdue = min(line.overdue + 1, _DOUBLINGS) if ready_in <= 0 else 0
        if wait < line.interval:
            self._schedule(key, line, wait, ready=True)

    def left(self, waiter: W) -> None:
        """It is back with nothing, perhaps without having looked, and leaves: the next one goes in its place."""
        line = self._lines[waiter.key]
        line.looking -= 1
        if line.waiting:
            line.credit = max(line.credit, 1)
        self._look(waiter.key, line)

    def failed(self, waiter: W) -> None:
        """It is back with an error, and leaves. The others are not sent after it one by one: they keep their turn."""
        line = self._lines[waiter.key]
        line.looking -= 1
        self._look(waiter.key, line)

    def remove(self, waiter: W) -> None:
        """A parked waiter's client left, or its time is up; `waiter.gone` has just been set."""
        self.parked -= 1
        line = self._lines[waiter.key]
        line.gone += 1
        if line.gone * 2 > len(line.waiting):
            line.waiting = [entry for entry in line.waiting if not entry[1].gone]
            heapq.heapify(line.waiting)
            line.gone = 0
        self._look(waiter.key, line)

    def pushed(self, queue: str, partition: str) -> None:
        """This partition has new messages."""
        for topic in ((queue, None), (queue, partition)):
            for key in tuple(self._topics.get(topic, ())):
                self.news(key)
        for key in self._elsewhere(queue):
            self.news(key)

    def announced(self, queue: str, partition: str | None) -> None:
        """Somebody says that a partition has new messages, or some partition of the queue: of each key one looks."""
        for key in [
            key for key in self._lines if key.queue == queue and partition in (None, key.partition or partition)
        ]:
            self.news(key)
        for key in self._elsewhere(queue):
            self.news(key)

    def freed(self, queue: str, partition: str, group: str) -> None:
        """Nobody holds this partition for the group any more, and it has messages."""
        self.news(Key(group, queue))
        self.news(Key(group, queue, partition))
        for key in self._elsewhere(queue):
            if key.group == group:
                self.news(key)

    def _elsewhere(self, queue: str) -> list[Key]:
        """The keys without a queue that this one may belong to."""
        return [key for key in self._topics.get((None, None), ()) if self._lines[key].may_mean(queue)]

    def news(self, key: Key) -> None:
        """There is work for one more waiter of this key."""
        line = self._lines.get(key)
        if line is not None:
            self._reset(line)
            line.credit = min(line.credit + 1, len(line.waiting) + line.looking)
            self._look(key, line)

    def all(self) -> list[W]:
        """Everybody who is parked."""
        return [waiter for line in self._lines.values() for _, waiter in line.waiting if not waiter.gone]

    def _look(self, key: Key, line: Line[W]) -> None:
        """Send waiters for the work that is known; keep the others' next look in the calendar. While one is on the way
        there is none to keep: it begins with what he comes back with."""
        while line.credit and line.waiting:
            waiter = heapq.heappop(line.waiting)[1]
            if waiter.gone:
                line.gone -= 1
                continue
            line.credit -= 1
            line.looking += 1
            self.parked -= 1
            self._wake(waiter)
        if line.looking:
            return
        if line.waiting:
            self._schedule(key, line, line.interval)
        else:
            del self._lines[key]
            keys = self._topics[key.topic]
            keys.discard(key)
            if not keys:
                del self._topics[key.topic]
            if self._attendance is not None:
                self._attendance.left(*key.topic)

    def stats(self) -> dict[str, int]:
        lines = self._lines.values()
        return {
            "waiters": self.parked,
            "groups_tracked": len(lines),
            "groups_in_flight": sum([line.looking > 0 for line in lines]),
            "groups_backed_off": sum([self._backed_off(line) for line in lines]),
            "queues": len({key.queue for key in self._lines if key.queue is not None}),
        }

    def _reset(self, line: Line[W]) -> None:
        line.empty_at = 0.0
        line.empties = 0
        line.overdue = 0
        line.interval = self._config.poll_first

    def _schedule(self, key: Key, line: Line[W], wait: float, *, ready: bool = False) -> None:
        """One looks for all after this time at the latest; when a cursor is `ready` then, at exactly that time."""
        now = self._loop.time()
        if line.due and line.due <= now + wait:
            return
        due = now + wait if ready else self._together(now, wait)
        line.due, line.ready = due, ready
        heapq.heappush(self._due, (due, next(self._order), key))
        if self._timer is None or due < self._timer_at:
            self._set_timer(due)

    def _together(self, now: float, wait: float) -> float:
        """When others look too, if that is after half of the time at least: so lines with the same interval end up
        looking at the same moments, whenever they formed."""
        rounds, latest = self._rounds, now + wait
        del rounds[: bisect_right(rounds, now)]
        place = bisect_right(rounds, latest)
        if place and rounds[place - 1] >= now + wait / 2:
            return rounds[place - 1]
        rounds.insert(place, latest)
        return latest

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = max(self._loop.time(), self._timer_at)
        turns = []
        while self._due and self._due[0][0] <= now:
            turns.append(heapq.heappop(self._due))
        for due, _, key in turns:
            line = self._lines.get(key)
            if line is not None and line.due == due:
                self._turn(key, line)
        if self._due and self._timer is None:
            self._set_timer(self._due[0][0])

    def _turn(self, key: Key, line: Line[W]) -> None:
        """It is time that one looks. One who is on the way already looks for all, unless he may have been too early."""
        if line.ready or not line.looking:
            line.credit = max(line.credit, 1)
        line.probing = True
        line.due, line.ready = 0.0, False
        self._look(key, line)
