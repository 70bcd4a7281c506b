"""Keeps the workers: starts them, replaces those that end, and stops them in good order.

The supervisor serves no request itself. It ends by `stop`, or by what makes serving impossible: workers that never get
ready, an embedded PostgreSQL that does not start again. A database that is away is not such a reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable

from queenmq.cluster.gateway import Gateway
from queenmq.cluster.siblings import Siblings
from queenmq.server.acceptor import Acceptor
from queenmq.server.control import Leaving, Load, Notice, Plan, Ready
from queenmq.server.handle import State, WorkerHandle
from queenmq.server.inboxes import Inboxes
from queenmq.server.listening import Listening
from queenmq.server.logs import fields
from queenmq.server.settings import Settings

_SHORT_LIFE = 1.0
_HOPELESS = 3
_LONGEST_PAUSE = 30.0
_AFTER_KILL = 5.0

_log = logging.getLogger(__name__)


class WorkersFailed(Exception):
    """The workers did not get ready, for a reason that only their log tells."""


class Supervisor:
    """Make it and use it inside the running event loop. `gateway` makes what speaks to other servers, if there are any;
    to them, this one is called `server_id`."""

    def __init__(
        self,
        settings: Settings,
        dsn: str,
        listening: Listening,
        *,
        server_id: str = "",
        gateway: Callable[[Siblings], Gateway] | None = None,
    ) -> None:
        self._settings = settings
        self._server_id = server_id
        self._dsn = dsn
        self._loop = asyncio.get_running_loop()
        self._workers: dict[int, WorkerHandle] = {}
        self._acceptor = Acceptor(listening, self._workers)
        self._gateway_number = settings.num_workers if gateway is not None else None
        self._inboxes = Inboxes(settings.num_workers + (gateway is not None))
        self._gateway: Gateway | None = None
        if gateway is not None:
            self._gateway = gateway(Siblings(settings.num_workers, *self._inboxes.opened(settings.num_workers)))
        self._short_lives = dict.fromkeys(range(settings.num_workers), 0)
        self._replacements: dict[int, asyncio.TimerHandle] = {}
        self._died: dict[int, float] = {}
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._all_ready = asyncio.Event()
        self._all_gone = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopping = False

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `stop`. `ready` is called when every worker can take connections."""
        self._loop.set_exception_handler(self._defect)
        try:
            if self._gateway is not None:
                self._gateway.open()
            for number in self._short_lives:
                self._start(number)
            if await self._get_ready():
                self._acceptor.open()
                ready()
                await self._end
        finally:
            await self._stop_workers()
            if self._gateway is not None:
                self._gateway.close()
            self._inboxes.close()

    def stop(self) -> None:
        """The first time: finish what is under way, then end. The second time: end now."""
        if not self._end.done():
            self._end.set_result(None)
        else:
            self._hurry.set()

    def fail(self, error: Exception) -> None:
        """End, because of this."""
        if not self._end.done():
            self._end.set_exception(error)

    async def _get_ready(self) -> bool:
        """False when told to stop before."""
        all_ready = asyncio.ensure_future(self._all_ready.wait())
        try:
            await asyncio.wait(
                (self._end, all_ready),
                timeout=self._settings.start_timeout / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._end.done():
                self._end.result()
                return False
            if not all_ready.done():
                within = f"within {self._settings.start_timeout / 1000:g} s (QUEEN_START_TIMEOUT_MS)"
                raise WorkersFailed(f"The workers did not get ready {within}; see the log above.")
            return True
        finally:
            all_ready.cancel()

    def _start(self, number: int) -> None:
        self._replacements.pop(number, None)
        try:
            worker = WorkerHandle(self._plan(number))
        except OSError as error:
            _log.error("worker %d cannot be started: %s", number, error.strerror or error)
            self._replace(number, lived=0)
            return
        self._workers[number] = worker
        self._loop.add_reader(worker.control, self._read, worker)

    def _plan(self, number: int) -> Plan:
        inbox, outboxes = self._inboxes.of(number)
        return Plan(
            number,
            os.getpid(),
            self._dsn,
            self._settings,
            inbox,
            outboxes,
            self._server_id,
            gateway=self._gateway_number,
        )

    def _read(self, worker: WorkerHandle) -> None:
        notices = worker.read()
        if notices is None:
            self._gone(worker)
            return
        for notice in notices:
            self._hear(worker, notice)

    def _hear(self, worker: WorkerHandle, notice: Notice) -> None:
        match notice:
            case Load():
                worker.note(notice)
                self._acceptor.resume()
            case Ready():
                self._serving(worker)
            case Leaving():
                worker.state = State.LEAVING
                self._acceptor.adopt(worker.take_back())
                if not self._stopping:  # otherwise its time runs already
                    self._loop.call_later(self._settings.drain_timeout / 1000, self._lose_patience, worker)

    def _serving(self, worker: WorkerHandle) -> None:
        worker.state = State.SERVING
        worker.ready_at = time.monotonic()
        if (died := self._died.pop(worker.number, None)) is not None:
            self._say(logging.INFO, worker, f"serves again after {worker.ready_at - died:.2f} s")
        serving = [each for each in self._workers.values() if each.state is State.SERVING]
        if len(serving) == self._settings.num_workers:
            self._all_ready.set()
        self._acceptor.resume()

    def _gone(self, worker: WorkerHandle) -> None:
        self._loop.remove_reader(worker.control)
        how = worker.bury()
        del self._workers[worker.number]
        self._acceptor.adopt(worker.take_back())
        if self._stopping:
            if not self._workers:
                self._all_gone.set()
            return
        self._died.setdefault(worker.number, time.monotonic())
        lived = 0.0 if worker.ready_at is None else time.monotonic() - worker.ready_at
        self._say(logging.INFO if worker.ended_well else logging.WARNING, worker, how)
        self._replace(worker.number, lived)

    def _replace(self, number: int, lived: float) -> None:
        """At once, but with growing pauses when one after another ends before it could do anything."""
        short = self._short_lives[number] = self._short_lives[number] + 1 if lived < _SHORT_LIFE else 0
        pause = 0.0 if short < 2 else min(0.5 * 2.0 ** min(short - 2, 10), _LONGEST_PAUSE)
        if short == _HOPELESS and not self._all_ready.is_set():
            self.fail(
                WorkersFailed(f"Worker {number} has ended {short} times without getting ready; see the log above.")
            )
        elif pause:
            _log.warning("worker %d has ended %d times in a row; next try in %g s", number, short, pause)
        self._replacements[number] = self._loop.call_later(pause, self._start, number)

    def _lose_patience(self, worker: WorkerHandle) -> None:
        if self._workers.get(worker.number) is worker:
            self._say(logging.WARNING, worker, "has not finished in time; killing it")
            worker.send_signal(signal.SIGKILL)

    async def _stop_workers(self) -> None:
        self._stopping = True
        self._acceptor.close()
        for replacement in self._replacements.values():
            replacement.cancel()
        if not self._workers:
            return
        for worker in self._workers.values():
            worker.send_signal(signal.SIGTERM)
        if not await self._gone_within(self._settings.drain_timeout / 1000):
            for worker in self._workers.values():
                self._say(logging.WARNING, worker, "has not finished in time; killing it")
                worker.send_signal(signal.SIGKILL)
            self._hurry.clear()
            await self._gone_within(_AFTER_KILL)

    async def _gone_within(self, seconds: float) -> bool:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._all_gone, self._hurry)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        return self._all_gone.is_set()

    def _say(self, level: int, worker: WorkerHandle, what: str) -> None:
        _log.log(level, "worker %d %s", worker.number, what, extra=fields(worker=worker.number, pid=worker.pid))

    def _defect(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Something here that should not: better to end in good order than to go on half alive."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        self.fail(error if isinstance(error, Exception) else RuntimeError(str(context.get("message"))))
