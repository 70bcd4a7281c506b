"""Says things again, in case they were lost: packets get no receipt.

Of a thing that is said anew, only the last is repeated; so where much happens little is repeated. Whoever hears a thing
twice knows it by its time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Final

PAUSES: Final = (0.03, 0.05, 0.07, 0.09)
"""Seconds between one time and the next. With three packets in ten lost, one thing in 400 is never heard."""
MOST: Final = 2_000


class Echoes:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._latest: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._due: list[tuple[float, int, int, Hashable]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self.said = self.skipped = 0

    def add(self, name: Hashable, say: Callable[[], None]) -> None:
        """`say` was called just now, and is to be called a few times more."""
        if len(self._latest) >= MOST and name not in self._latest:
            self.skipped += 1
            return
        number = next(self._numbers)
        self._latest[name] = (number, say)
        self._later(0, number, name)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, step: int, number: int, name: Hashable) -> None:
        heapq.heappush(self._due, (self._loop.time() + PAUSES[step], number, step, name))
        if self._timer is None:
            self._timer = self._loop.call_at(self._due[0][0], self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.001
        while self._due and self._due[0][0] <= now:
            _, number, step, name = heapq.heappop(self._due)
            latest = self._latest.get(name)
            if latest is None or latest[0] != number:
                continue  # it was said anew since
            self.said += 1
            latest[1]()
            if step + 1 < len(PAUSES):
                self._later(step + 1, number, name)
            else:
                del self._latest[name]
        if self._due and self._timer is None:
            self._timer = self._loop.call_at(self._due[0][0], self._tick)
