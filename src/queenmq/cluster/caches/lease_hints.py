"""Which partitions another server holds, as it told us: a pop of such a partition need not ask the database.

A hint may be wrong, and must not starve a partition. It lives for a fifth of the lease, a dead server's hints count for
nothing, and one look in a hundred asks the database all the same, as does the first one after a few seconds: its answer
says how good hints are, and removes a wrong one. Whatever a hint says, the database decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from random import random as _random
from typing import Final

MOST: Final = 10_000
_PROBED: Final = 0.01
_CONFIRMED: Final = 5.0  # seconds for which a hint is believed without asking
_CROSSED: Final = 0.1  # seconds in which news of a lease and of its end may have crossed
_SLACK: Final = 64  # entries of the schedule that may be void before it is worth rebuilding


class _Hint:
    __slots__ = ("confirmed", "expires", "number", "probed", "queue", "server")

    def __init__(self, number: int, server: str, queue: str, now: float, expires: float) -> None:
        self.number = number
        self.server = server
        self.queue = queue
        self.confirmed = now
        self.expires = expires
        self.probed = False


class LeaseHints:
    """`alive` tells whether a server is; `clock` gives seconds that only rise."""

    def __init__(
        self,
        alive: Callable[[str], bool],
        max_entries: int = MOST,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random,
    ) -> None:
        self._alive = alive
        self._most = max_entries
        self._clock = clock
        self._random = random
        self._hints: dict[str, dict[str, _Hint]] = {}  # by partition, then by group
        self._size = 0
        self._ended: dict[tuple[str, str], float] = {}  # leases that have just ended, the last one last
        # A heap, soonest to expire first. What was replaced or released stays in it, void, until it comes up.
        self._schedule: list[tuple[float, int, str, str]] = []
        self._numbers = count()
        self._used = self._right = self._wrong = self._probes = self._ignored_dead = self._evictions = 0

    def __len__(self) -> int:
        return self._size

    # What others tell

    def acquired(self, partition_id: str, group: str, server: str, queue: str, seconds: float) -> None:
        """The server holds it; believe it for so long. What is told just after the end of a lease may be of that lease:
        then the first look asks the database."""
        now = self._clock()
        crossed = now - self._ended.get((partition_id, group), -_CROSSED) < _CROSSED
        self._remove(partition_id, group)
        self._sweep(now)
        if seconds <= 0 or self._most <= 0:
            return
        while self._size >= self._most:
            self._evictions += self._drop_soonest()
        hint = _Hint(next(self._numbers), server, queue, now - _CONFIRMED - 1 if crossed else now, now + seconds)
        self._hints.setdefault(partition_id, {})[group] = hint
        self._size += 1
        heappush(self._schedule, (hint.expires, hint.number, partition_id, group))

    def released(self, partition_id: str, group: str) -> None:
        self._remove(partition_id, group)
        now = self._clock()
        self._ended.pop((partition_id, group), None)
        self._ended[partition_id, group] = now
        while now - self._ended[first := next(iter(self._ended))] > _CROSSED:
            del self._ended[first]

    def forget(self, partition_id: str) -> None:
        """The partition is gone."""
        self._size -= len(self._hints.pop(partition_id, ()))

    def forget_queue(self, queue: str) -> None:
        self._forget_each(lambda hint: hint.queue == queue)

    def forget_server(self, server: str) -> None:
        self._forget_each(lambda hint: hint.server == server)

    # What a pop asks

    def likely_leased(self, partition_id: str, group: str) -> bool:
        """Whether to leave the database alone. After False, tell `answered` what it said."""
        if not self._hints:
            return False
        hint = self._find(partition_id, group)
        if hint is None:
            return False
        now = self._clock()
        if hint.expires <= now:
            self._remove(partition_id, group)
            return False
        if not self._alive(hint.server):
            self._remove(partition_id, group)
            self._ignored_dead += 1
            return False
        if now - hint.confirmed > _CONFIRMED or self._random() < _PROBED:
            hint.confirmed = now  # one asks for all who come meanwhile
            hint.probed = True
            self._probes += 1
            return False
        self._used += 1
        return True

    def answered(self, partition_id: str, group: str, leased: bool) -> None:
        """Whether somebody held the partition, as the database knows. It counts only for a hint that was probed: one
        that came after the question may well be right although the answer is no."""
        hint = self._find(partition_id, group) if self._hints else None
        if hint is None or not hint.probed:
            return
        hint.probed = False
        if leased:
            self._right += 1
        else:
            self._wrong += 1
            self._remove(partition_id, group)

    def stats(self) -> dict[str, int | float]:
        self._sweep(self._clock())
        known = self._right + self._wrong
        return {
            "size": self._size,
            "hints_used": self._used,
            "hints_right": self._right,
            "hints_wrong": self._wrong,
            "accuracy": round(self._right / known, 4) if known else 1.0,
            "probes": self._probes,
            "ignored_dead": self._ignored_dead,
            "evictions": self._evictions,
        }

    # Keeping house

    def _find(self, partition_id: str, group: str) -> _Hint | None:
        groups = self._hints.get(partition_id)
        return None if groups is None else groups.get(group)

    def _remove(self, partition_id: str, group: str) -> None:
        groups = self._hints.get(partition_id)
        if groups is not None and groups.pop(group, None) is not None:
            self._size -= 1
            if not groups:
                del self._hints[partition_id]

    def _forget_each(self, is_meant: Callable[[_Hint], bool]) -> None:
        for partition_id, group in [(where, group) for where, group, hint in self._each() if is_meant(hint)]:
            self._remove(partition_id, group)

    def _each(self) -> Iterator[tuple[str, str, _Hint]]:
        for partition_id, groups in self._hints.items():
            for group, hint in groups.items():
                yield partition_id, group, hint

    def _sweep(self, now: float) -> None:
        while self._schedule and self._schedule[0][0] <= now:
            self._drop_soonest()
        self._tidy()

    def _drop_soonest(self) -> bool:
        """Take the first of the schedule, and its hint, if it still stands."""
        _, number, partition_id, group = heappop(self._schedule)
        hint = self._find(partition_id, group)
        if hint is None or hint.number != number:
            return False
        self._remove(partition_id, group)
        return True

    def _tidy(self) -> None:
        """Void entries must not outnumber the hints: a lease that is renewed all the time leaves one each time."""
        if len(self._schedule) > 2 * self._size + _SLACK:
            self._schedule = [(hint.expires, hint.number, where, group) for where, group, hint in self._each()]
            heapify(self._schedule)
