"""Natural micro-batching: requests that arrive while a flush is running wait and then go together.

With nothing under way a request goes at once, together with whatever else arrives in the same turn of the event loop.
While a flush runs, later requests wait for its end, but never longer than `patience`: then a further flush starts
beside it, with requests of other lanes only, so that two flushes never wait for each other's rows. So a fast database
sees few, large flushes on one connection, and one that is far away sees several at a time. A database that is merely
busy would only become slower by that: when flushes take much longer than they can, the next one waits for its turn,
unless the one before it is stuck.

Clients that have just been answered often ask again soon, and together. After a flush of several requests the first one
to come therefore waits until as many are there as the last flush had served or left waiting, for a few times as long as
that flush took and at most `gather`: one flush for all of them instead of several for a few each. Who is alone never
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

from .budget import Budget
from .stats import OperationStats

LANES: Final = 61  # a prime, and as bits of an int still one machine word
MAX_WEIGHT: Final = 8 * 1024 * 1024  # of the requests in a flush; a heavier one goes alone

_CROWDED: Final = 2.0  # flushes that take so many times as long as they can are in each other's way
_STUCK: Final = 0.1  # seconds, and
_STUCK_TIMES: Final = 4.0  # so many times the usual, after which a flush is waited for no longer,
_LONGEST_STUCK: Final = 1.0  # seconds, and in any case after these
_LEAST_PAUSE: Final = 0.001  # seconds after a look that found nothing to begin
_GAP: Final = 6.0  # times the last flush: for so long the first one waits for the others
_TOGETHER: Final = 10.0  # times the last flush: for so long its clients count as still there
_FORGETTING: Final = 1.005  # per flush: what was once the shortest time is not for ever


class Request(Protocol):
    """What is gathered. `size` is its share of a flush, `weight` its share of the budget until that flush has ended;
    `lanes` a bit mask of what it touches, 0 for nothing shared."""

    future: asyncio.Future[Any]

    @property
    def size(self) -> int: ...

    @property
    def weight(self) -> int: ...

    def lanes(self) -> int: ...


R = TypeVar("R", bound=Request)


class _Flight(Generic[R]):
    """A flush on its way."""

    __slots__ = ("batch", "begun", "task")

    def __init__(self, begun: float, batch: list[R]) -> None:
        self.begun = begun
        self.batch = batch
        self.task: asyncio.Task[None] | None = None


class Batcher(Generic[R]):
    """`flush` settles the futures of the requests it is given; what it forgets or raises is settled here."""

    def __init__(
        self,
        flush: Callable[[list[R]], Awaitable[None]],
        *,
        patience: float,
        max_items: int,
        max_flushes: int,
        gather: float = 0.0,
        budget: Budget | None = None,
    ) -> None:
        self._flush = flush
        self._patience = patience
        self._max_items = max_items
        self._max_flushes = max_flushes
        self._gather = gather
        self._budget = budget
        self._waiting: list[R] = []
        self._running: set[_Flight[R]] = set()
        self._usual = 0.0
        self._least = float("inf")
        self._kicked = False
        self._expected = 0
        self._expected_until = 0.0
        self._gap = 0.0
        self._gathering: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self.stats = OperationStats()

    def __len__(self) -> int:
        """Requests that wait for a flush."""
        return len(self._waiting)

    def add(self, request: R) -> None:
        """Raises Overloaded when there is no room for it."""
        if self._budget is not None:
            self._budget.take(request.weight)
        self._waiting.append(request)
        if self._gathering is not None:
            if len(self._waiting) >= self._expected:
                self._gathered()
        elif self._kicked:
            return
        elif self._running:
            self._set_timer()
        elif self._expected > 1 and self._loop.time() < self._expected_until:
            self._begin_gathering()
        else:
            self._kicked = True
            self._depart(self._kick, [])

    async def idle(self) -> None:
        """Return when nothing waits and nothing runs."""
        while self._waiting or self._running:
            self._idle.clear()
            await self._idle.wait()

    def _depart(self, run: Callable[[_Flight[R]], Coroutine[Any, Any, None]], batch: list[R]) -> None:
        flight = _Flight(self._loop.time(), batch)
        self._running.add(flight)
        flight.task = self._loop.create_task(run(flight))
        self.stats.in_flight = len(self._running)
        self.stats.most_in_flight = max(self.stats.most_in_flight, self.stats.in_flight)

    async def _kick(self, flight: _Flight[R]) -> None:
        """A flush that was begun for the first request to come; by now all those of the same turn are there."""
        self._kicked = False
        if len(self._waiting) == 1:
            flight.batch, self._waiting = self._waiting, []
        else:
            flight.batch = self._take()
            if self._waiting:
                self._set_timer()
        await self._run(flight)

    def _start(self) -> None:
        """Begin a flush, if there is one to begin."""
        pause = 0.0
        if self._waiting and len(self._running) < self._max_flushes:
            batch = self._take()
            pause = 0.0 if batch else _LEAST_PAUSE
            if batch:
                self._depart(self._run, batch)
        if self._waiting:
            self._set_timer(pause)
        elif not self._running:
            self._idle.set()

    def _set_timer(self, least: float = 0.0) -> None:
        """Who waits now is not to wait for ever behind the flushes that run."""
        if self._timer is None and len(self._running) < self._max_flushes:
            self._timer = self._loop.call_later(max(self._patience, least), self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self._kicked:
            return  # all who wait go in this turn
        if self._may_start():
            self._start()
        elif self._waiting:
            self._set_timer(_LEAST_PAUSE)

    def _may_start(self) -> bool:
        """Is a further flush any use beside those that run?"""
        if not self._running:
            return self._gathering is None
        if self._usual <= self._least * _CROWDED:
            return True
        limit = min(max(_STUCK, self._usual * _STUCK_TIMES), _LONGEST_STUCK)
        now = self._loop.time()
        return all(now - flight.begun > limit for flight in self._running)

    def _begin_gathering(self) -> None:
        self._gathering = self._loop.call_later(self._gap, self._gathered)

    def _gathered(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._start()

    def _take(self) -> list[R]:
        """The requests of the next flush: in order, none in a lane that is busy or that an earlier one waits for."""
        busy = self._busy()
        taken: list[R] = []
        left: list[R] = []
        items = weight = 0
        for index, request in enumerate(self._waiting):
            if busy:
                lanes = request.lanes()
                if lanes & busy:
                    busy |= lanes
                    left.append(request)
                    continue
            if taken and (items + request.size > self._max_items or weight + request.weight > MAX_WEIGHT):
                left += self._waiting[index:]
                break
            taken.append(request)
            items += request.size
            weight += request.weight
        self._waiting = left
        return taken

    def _busy(self) -> int:
        busy = 0
        for flight in self._running:
            for request in flight.batch:
                busy |= request.lanes()
        return busy

    async def _run(self, flight: _Flight[R]) -> None:
        started = perf_counter()
        try:
            await self._flush(flight.batch)
        except Exception as error:
            fail(flight.batch, error)
        finally:
            self._ended(flight, perf_counter() - started)

    def _ended(self, flight: _Flight[R], took: float) -> None:
        stats, batch = self.stats, flight.batch
        stats.flushes += 1
        stats.requests += len(batch)
        stats.items += sum([request.size for request in batch])
        stats.seconds += took
        stats.longest_seconds = max(stats.longest_seconds, took)
        if self._budget is not None:
            self._budget.give(sum([request.weight for request in batch]))
        self._least = min(took, self._least * _FORGETTING)
        usual = min(took, _LONGEST_STUCK)  # one that waited for a lock says nothing about the next
        self._usual += (usual - self._usual) * 0.2 if self._usual else usual
        self._running.discard(flight)
        stats.in_flight = len(self._running)
        if not self._gather or self._running:
            self._start()
            return
        self._expected = len(batch) + len(self._waiting)
        self._expected_until = self._loop.time() + took * _TOGETHER
        self._gap = min(self._gather, took * _GAP)
        if not self._waiting:
            self._idle.set()
        elif self._gathering is None:
            self._begin_gathering()


def fail(requests: list[R], error: Exception) -> None:
    """Tell everybody who has no answer yet."""
    for request in requests:
        if not request.future.done():
            request.future.set_exception(error)
