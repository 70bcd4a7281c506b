"""Accepts connections and hands each to the worker that has the fewest.

It accepts only what a worker has room for; the rest waits in the kernel's backlog. So a worker that is stuck holds up
no other, and a moment without workers refuses nobody.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import time
from collections import deque
from collections.abc import Iterable

from queenmq.server.handle import State, WorkerHandle
from queenmq.server.listening import Listening

_AT_ONCE = 64
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FULL_PAUSE = 0.1
_RETRY_AFTER = 0.1
_REMIND_AFTER = 30.0

_log = logging.getLogger(__name__)


class Acceptor:
    def __init__(self, listening: Listening, workers: dict[int, WorkerHandle]) -> None:
        """`workers` is the supervisor's own table, which changes as workers come and go."""
        self._listening = listening
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._orphans: deque[socket.socket] = deque()
        self._reading = False
        self._open = False
        self._turns = itertools.count(1)
        self._complained: float | None = None
        self._retry: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._listening.listen()
        self._open = True
        self.resume()

    def close(self) -> None:
        """Refuse new connections from now on."""
        self._open = False
        self._pause(0)
        self._listening.close()
        self._abandon_orphans()

    def adopt(self, connections: Iterable[socket.socket]) -> None:
        """Take over connections whose worker has gone before it touched them."""
        self._orphans.extend(connections)
        if self._open:
            self.resume()
        else:
            self._abandon_orphans()

    def _abandon_orphans(self) -> None:
        while self._orphans:
            self._orphans.popleft().close()

    def resume(self) -> None:
        """Something has changed: a worker may have room again."""
        if not self._open:
            return
        while self._orphans and self._give(self._orphans[0]):
            self._orphans.popleft()
        if self._orphans or self._choose() is None:
            self._pause(_RETRY_AFTER)
        elif not self._reading:
            self._reading = True
            for listener in self._listening.sockets:
                self._loop.add_reader(listener, self._accept, listener)

    def _pause(self, seconds: float) -> None:
        """Leave connections in the backlog for a while, unless `resume` is called before."""
        if self._reading:
            self._reading = False
            for listener in self._listening.sockets:
                self._loop.remove_reader(listener)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._loop.call_later(seconds, self.resume)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if self._orphans or self._choose() is None:
                self._pause(_RETRY_AFTER)
                return
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _FULL:
                    self._complain(error)
                    self._pause(_FULL_PAUSE)
                    return
                continue  # the client has left already
            if not self._give(connection):
                self._orphans.append(connection)

    def _complain(self, error: OSError) -> None:
        now = time.monotonic()
        if self._complained is None or now - self._complained > _REMIND_AFTER:
            self._complained = now
            _log.warning("connections have to wait: %s", error.strerror)

    def _give(self, connection: socket.socket) -> bool:
        """False when no worker could take it now."""
        tried: set[int] = set()
        while (worker := self._choose(tried)) is not None:
            if worker.hand(connection):
                worker.last_given = next(self._turns)
                return True
            tried.add(worker.number)
        return False

    def _choose(self, besides: Iterable[int] = ()) -> WorkerHandle | None:
        """The one with the fewest connections, in turn among equals; a stuck one only when all are.

        None when there is no worker, or when that one must first take what is on its way to it: going on to another
        would let a burst of connections pile up on the worker that happens to be faster.
        """
        serving = [
            each for each in self._workers.values() if each.state is State.SERVING and each.number not in besides
        ]
        if not serving:
            return None
        now = time.monotonic()
        best = min(serving, key=lambda each: (each.silence(now), each.load, each.last_given))
        return best if best.has_room else None
