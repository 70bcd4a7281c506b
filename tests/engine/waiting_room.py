"""A room for waiters whose looks are written down, and a clock that goes on when it is told to."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from queenmq.engine.config import EngineConfig
from queenmq.engine.waiters import Key, Waiters

KEY = Key("g", "orders")
NEVER = EngineConfig(dsn="", poll_first=3600, poll_max=3600)
QUICK = EngineConfig(dsn="", poll_first=0.005, poll_threshold=2, poll_multiplier=2, poll_max=0.02)
USUAL = EngineConfig(dsn="")


class Clock:
    """The part of an event loop that waiters use; time passes when it is told to."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()
        self._made = 0

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> Handle:
        self._made += 1
        heapq.heappush(self._calls, (when, self._made, call))
        return Handle(self._cancelled, self._made)

    def advance(self, seconds: float) -> None:
        until = self._now + seconds
        while self._calls and self._calls[0][0] <= until:
            self.step()
        self._now = until

    def step(self) -> None:
        """To the next thing that happens."""
        when, number, call = heapq.heappop(self._calls)
        self._now = max(self._now, when)
        if number not in self._cancelled:
            call()


class Handle:
    def __init__(self, cancelled: set[int], number: int) -> None:
        self._cancelled = cancelled
        self._number = number

    def cancel(self) -> None:
        self._cancelled.add(self._number)


class Poll:
    def __init__(self, room: Room, key: Key = KEY) -> None:
        self.key = key
        self.gone = False
        self.ticket = room.waiters.ticket()


class Room:
    """Waiters whose looks are written down."""

    def __init__(self, config: EngineConfig = NEVER, clock: Clock | None = None) -> None:
        self.woken: list[Poll] = []
        self.attendance = Counter[str | None]()
        self.waiters: Waiters[Poll] = Waiters(config, self.woken.append, self)
        if clock is not None:
            self.waiters._loop = clock  # type: ignore[assignment]

    def arrived(self, queue: str | None, partition: str | None) -> None:
        self.attendance[queue] += 1

    def left(self, queue: str | None, partition: str | None) -> None:
        self.attendance[queue] -= 1

    def arrives(self, key: Key = KEY) -> Poll:
        """A pop that looks at once."""
        poll = Poll(self, key)
        assert self.waiters.enter(poll)
        return poll

    def parks(self, key: Key = KEY, ready_in: float | None = None) -> Poll:
        poll = Poll(self, key)
        if self.waiters.enter(poll):
            self.waiters.park(poll, ready_in)
        return poll
