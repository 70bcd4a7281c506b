"""What all connections of a worker share: who answers, what is allowed, what was counted, and one timer for all."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from starlette.types import ASGIApp

from .answer import Answer, Work
from .caller import Caller
from .guard import Guard
from .limits import Limits
from .room import Room

_LONGEST_INTERVAL = 1.0
_SHORTEST_INTERVAL = 0.01
_LONGEST_TURN = 0.005


class HotHandlers(Protocol):
    """The operations that are answered without Starlette."""

    def push(self, body: bytes, caller: Caller, /) -> Answer | Work: ...

    def ack(self, body: bytes, caller: Caller, /) -> Answer | Work: ...

    def ack_batch(self, body: bytes, caller: Caller, /) -> Answer | Work: ...

    def pop(self, path: str, query: bytes, caller: Caller, /) -> Answer | Work: ...


class Connection(Protocol):
    def sweep(self, now: float) -> None:
        """Give up on the client if it has been taking too long."""

    def shutdown(self) -> None:
        """Close after the requests under way, or at once when there is none; one of which a part is missing is not."""


class Service:
    """Without a guard everybody may do everything. `now` is the loop's clock as of the last sweep: exact enough for
    timeouts, and free to read."""

    def __init__(
        self,
        handlers: HotHandlers,
        app: ASGIApp,
        limits: Limits,
        guard: Guard | None = None,
    ) -> None:
        self.app = app
        self.limits = limits
        self.guard = guard
        self.pop = handlers.pop
        self.posts: dict[bytes, Callable[[bytes, Caller], Answer | Work]] = {
            b"/api/v1/push": handlers.push,
            b"/api/v1/ack": handlers.ack,
            b"/api/v1/ack/batch": handlers.ack_batch,
        }
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        self.requests = 0
        self.answers = [0] * 6
        self.parked = 0
        self.refused = 0
        self.room = Room(limits.max_buffered_bytes)
        self.timeouts = 0
        self._empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._turns: deque[Iterator[None]] = deque()
        shortest = min(limits.header_timeout, limits.body_timeout, limits.idle_timeout)
        self._interval = min(max(shortest / 4, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)

    def add(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._timer is None:
            self._start_timer()

    def remove(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def count(self, status: int) -> None:
        self.answers[status // 100] += 1

    def take_turns(self, work: Iterator[None]) -> None:
        """Do something that may take long, step by step. All connections together get a few milliseconds at a time for
        it, so that those that need none of it are answered in between."""
        self._turns.append(work)
        if len(self._turns) == 1:
            self.loop.call_soon(self._give_turns)

    def _give_turns(self) -> None:
        until = time.perf_counter() + _LONGEST_TURN
        try:
            while self._turns and time.perf_counter() < until:
                # The first stays in line until it is done, so that only one is half done and takes memory.
                done = True
                try:
                    done = next(self._turns[0], self) is self
                finally:
                    if done:
                        self._turns.popleft()
        finally:
            if self._turns:
                self.loop.call_soon(self._give_turns)

    def _start_timer(self) -> None:
        self.now = self.loop.time()
        self._timer = self.loop.call_later(self._interval, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        if self.connections:
            self._start_timer()
            for connection in list(self.connections):
                connection.sweep(self.now)

    async def drain(self) -> None:
        """Answer what is under way, take nothing further, and return when every connection is closed."""
        self.draining = True
        for connection in list(self.connections):
            connection.shutdown()
        while self.connections:
            self._empty.clear()
            await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and what is open now."""
        return {
            "connections": len(self.connections),
            "parked": self.parked,
            "requests": self.requests,
            "answers": {f"{hundreds}xx": count for hundreds, count in enumerate(self.answers) if hundreds >= 2},
            "refused": self.refused,
            "timeouts": self.timeouts,
        }
