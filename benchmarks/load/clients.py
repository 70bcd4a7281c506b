"""Pushers and consumers, each on its own connection, driven by the answers they get.

They share a `Run`, which counts, keeps latencies while it is measured, and lets pushers rest while consumers are
behind.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from time import perf_counter, time

from . import render
from .connection import BadAnswer, Connection


class Run:
    """What happened so far. `latencies` are seconds per request, or from push to delivery when `end_to_end`."""

    def __init__(self, *, backlog: int | None = None, remember: bool = True, end_to_end: bool = False) -> None:
        self.pushed = 0
        self.pops = 0
        """Pops that got messages; `popped` are the messages."""
        self.popped = 0
        self.acked = 0
        self.latencies = array("d")
        self.running = True
        self.pushing = True
        self.measuring = False
        self.end_to_end = end_to_end
        self.delivered: list[list[bytes]] | None = [] if remember else None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.step: Callable[[], None] | None = None
        self.backlog = backlog
        self._resting: deque[Pusher] = deque()

    def fail(self, error: Exception) -> None:
        self.running = False
        if not self.failure.done():
            self.failure.set_exception(error)

    def acknowledged(self, count: int) -> None:
        self.acked += count
        if self.step is not None:
            self.step()
        while self._resting and not self.behind(self._resting[0].fan_out):
            self._resting.popleft().turn()

    def behind(self, fan_out: int) -> bool:
        return self.backlog is not None and self.pushed * fan_out - self.acked > self.backlog * fan_out

    def rest(self, pusher: Pusher) -> None:
        self._resting.append(pusher)

    def check(self, groups: int = 1) -> None:
        """Every message came once to every group, by count and by id."""
        if self.acked != self.pushed * groups or self.popped != self.acked:
            raise BadAnswer(f"{self.pushed} pushed for {groups} groups, {self.popped} popped, {self.acked} acked")
        if self.delivered is not None:
            different = len(set().union(*self.delivered))
            if different != self.pushed:
                raise BadAnswer(f"{self.pushed} pushed, but {different} different messages popped")


class Client(Connection):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.idle = True
        self.closing = False

    def turn(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closing = True
        super().close()

    def failed(self, error: Exception) -> None:
        self.run.fail(error)

    def lost(self, error: Exception | None) -> None:
        if not self.closing:
            self.run.fail(BadAnswer(f"the server has closed the connection: {error}"))


class Pusher(Client):
    """Pushes again as soon as it was answered."""

    def __init__(self, run: Run, request: Callable[[], bytes], batch: int, fan_out: int = 1) -> None:
        super().__init__(run)
        self._request = request
        self._batch = batch
        self.fan_out = fan_out
        self.limit: int | None = None
        """Pushes left to do; None for no end."""

    def turn(self) -> None:
        run = self.run
        if not run.running or not run.pushing or self.limit == 0:
            self.idle = True
            return
        if run.behind(self.fan_out):
            self.idle = True
            run.rest(self)
            return
        if self.limit is not None:
            self.limit -= 1
        self.idle = False
        self.send(self._request())

    def answered(self, status: int, body: bytes) -> None:
        run = self.run
        queued = body.count(b'"queued"')
        if status != 201 or queued != self._batch:
            raise BadAnswer(f"push: status {status}, {queued} of {self._batch} queued: {body[:300]!r}")
        if run.measuring and not run.end_to_end:
            run.latencies.append(perf_counter() - self.sent)
        run.pushed += queued
        self.turn()


class Consumer(Client):
    """Pops and acks in turn until the run is over."""

    def __init__(
        self, run: Run, host: str, queue: str, *, batch: int, group: str | None = None, wait_ms: int = 0
    ) -> None:
        super().__init__(run)
        self._host = host
        self._group = group
        self._pop = render.pop(host, queue, batch=batch, group=group, wait_ms=wait_ms)
        self._batch = batch
        self._taken = 0
        self._popping = True

    def turn(self) -> None:
        if not self.run.running:
            self.idle = True
            return
        self.idle = False
        self._popping = True
        self.send(self._pop)

    def answered(self, status: int, body: bytes) -> None:
        if not self._popping:
            self._settled(status, body)
        elif status == 200:
            self._got(body)
        elif status == 204:
            self.turn()
        else:
            raise BadAnswer(f"pop: status {status}: {body[:300]!r}")

    def _got(self, body: bytes) -> None:
        run = self.run
        ids, partition, lease = render.claim(body)
        if not 0 < len(ids) <= self._batch:
            raise BadAnswer(f"pop: {len(ids)} messages: {body[:300]!r}")
        if run.measuring:
            seconds = time() - _made(ids[0]) if run.end_to_end else perf_counter() - self.sent
            run.latencies.append(seconds)
        run.pops += 1
        run.popped += len(ids)
        if run.delivered is not None:
            run.delivered.append(ids)
        self._taken = len(ids)
        self._popping = False
        self.send(render.ack(self._host, ids, partition, lease, self._group))

    def _settled(self, status: int, body: bytes) -> None:
        succeeded = body.count(b'"success":true')
        if status != 200 or succeeded != self._taken:
            raise BadAnswer(f"ack: status {status}, {succeeded} of {self._taken} acked: {body[:300]!r}")
        self.run.acknowledged(self._taken)
        self.turn()


def _made(transaction_id: bytes) -> float:
    """When a UUIDv7 was made, in seconds."""
    return int(transaction_id[:8] + transaction_id[9:13], 16) / 1000
