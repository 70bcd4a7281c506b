"""Natural micro-batching: requests that arrive while a flush is running wait and then go together.

With nothing under way a request goes at once, together with whatever else arrives in the same turn of the event loop.
While a flush runs, later requests wait for its end, but never longer than `patience`: then a further flush starts
beside it, with requests of other lanes only, so that two flushes never wait for each other's rows. So a fast database
sees few, large flushes on one connection, and a slow one sees several at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

from .stats import OperationStats

LANES: Final = 61  # a prime, and as bits of an int still one machine word


class Request(Protocol):
    """What is gathered. `size` is its share of a flush; `lanes` a bit mask of what it touches, 0 for nothing shared."""

    future: asyncio.Future[Any]

    @property
    def size(self) -> int: ...

    def lanes(self) -> int: ...


R = TypeVar("R", bound=Request)


class Batcher(Generic[R]):
    """`flush` settles the futures of the requests it is given; what it forgets or raises is settled here."""

    def __init__(
        self,
        flush: Callable[[list[R]], Awaitable[None]],
        *,
        patience: float,
        max_items: int,
        max_flushes: int,
    ) -> None:
        self._flush = flush
        self._patience = patience
        self._max_items = max_items
        self._max_flushes = max_flushes
        self._waiting: list[R] = []
        self._running: dict[int, list[R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kicked = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._number = 0
        self.stats = OperationStats()

    def __len__(self) -> int:
        """Requests that wait for a flush."""
        return len(self._waiting)

    def add(self, request: R) -> None:
        self._waiting.append(request)
        if not self._running:
            if not self._kicked:
                self._kicked = True
                self._idle.clear()
                self._loop.call_soon(self._start)
        else:
            self._set_timer()

    async def idle(self) -> None:
        """Return when nothing waits and nothing runs."""
        await self._idle.wait()

    def _overdue(self) -> None:
        self._timer = None
        self._start()

    def _set_timer(self) -> None:
        """Who waits now is not to wait for ever behind the flushes that run."""
        if self._timer is None and len(self._running) < self._max_flushes:
            self._timer = self._loop.call_later(self._patience, self._overdue)

    def _start(self) -> None:
        self._kicked = False
        if self._waiting and len(self._running) < self._max_flushes:
            batch = self._take()
            if batch:
                self._number += 1
                self._running[self._number] = batch
                task = self._loop.create_task(self._run(self._number, batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if self._waiting:
            self._set_timer()
        self._note_idle()

    def _note_idle(self) -> None:
        if not (self._waiting or self._running or self._kicked):
            self._idle.set()

    def _take(self) -> list[R]:
        """The requests of the next flush: in order, none in a lane that is busy or that an earlier one waits for."""
        busy = self._busy()
        taken: list[R] = []
        left: list[R] = []
        items = 0
        for index, request in enumerate(self._waiting):
            if busy:
                lanes = request.lanes()
                if lanes & busy:
                    busy |= lanes
                    left.append(request)
                    continue
            if taken and items + request.size > self._max_items:
                left += self._waiting[index:]
                break
            taken.append(request)
            items += request.size
        self._waiting = left
        return taken

    def _busy(self) -> int:
        busy = 0
        for batch in self._running.values():
            for request in batch:
                busy |= request.lanes()
        return busy

    async def _run(self, number: int, batch: list[R]) -> None:
        """Flush this batch, and after it whatever has come meanwhile."""
        stats = self.stats
        try:
            while batch:
                stats.in_flight = len(self._running)
                stats.most_in_flight = max(stats.most_in_flight, stats.in_flight)
                await self._once(batch)
                del self._running[number]
                batch = self._take() if self._waiting else []
                self._running[number] = batch
        finally:
            self._running.pop(number, None)
            stats.in_flight = len(self._running)
            if self._waiting and not self._running:
                self._start()
            self._note_idle()

    async def _once(self, batch: list[R]) -> None:
        stats = self.stats
        started = perf_counter()
        try:
            await self._flush(batch)
        except Exception as error:
            fail(batch, error)
        finally:
            took = perf_counter() - started
            stats.flushes += 1
            stats.requests += len(batch)
            stats.items += sum([request.size for request in batch])
            stats.seconds += took
            stats.longest_seconds = max(stats.longest_seconds, took)


def fail(requests: list[R], error: Exception) -> None:
    """Tell everybody who has no answer yet."""
    for request in requests:
        if not request.future.done():
            request.future.set_exception(error)
