"""The worker's end of the control socket: connections come in, notices go out.

When the supervisor ends, in whatever way, so does this process, at once: nothing of an old server may serve beside a
new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import NoReturn

from queenmq.http.endpoint import Endpoint
from queenmq.server.control import Leaving, Load, Notice, Ready, line

_AT_ONCE = 64
_LOAD_EVERY = 0.2
_RESEND_AFTER = 0.05
_REMIND_AFTER = 30.0

_log = logging.getLogger(__name__)


class Intake:
    """Make it inside the running event loop."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._endpoint: Endpoint | None = None
        self._leaving = False
        self._received = 0
        self._attaching: set[asyncio.Task[None]] = set()
        self._told = Load(0, 0)
        self._tell_again: asyncio.TimerHandle | None = None
        self._unsent = b""
        self._resend: asyncio.TimerHandle | None = None
        self._complained: float | None = None
        control.setblocking(False)
        self._loop.add_reader(control, self._on_control)

    def open(self, endpoint: Endpoint) -> None:
        """Ask for connections, and give them to this endpoint."""
        self._endpoint = endpoint
        self.say(Ready())

    async def close(self) -> None:
        """Ask for no more, and wait for those that are just being opened."""
        self._leaving = True
        self.say(Leaving())
        await asyncio.gather(*self._attaching, return_exceptions=True)

    def say(self, notice: Notice) -> None:
        """Tell the supervisor; later, when it does not listen now."""
        self._unsent += line(notice)
        self._send()

    def _send(self) -> None:
        if self._resend is not None:
            self._resend.cancel()
        try:
            sent = self._control.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._orphaned()
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._resend = self._loop.call_later(_RESEND_AFTER, self._send)

    def _on_control(self) -> None:
        before = self._received
        arrived: list[int] = []
        for _ in range(_AT_ONCE):
            try:
                data, fds, _, _ = socket.recv_fds(self._control, 1, 1)
            except BlockingIOError:
                break
            except OSError:
                self._orphaned()
            if not data:
                self._orphaned()
            if self._leaving:
                for fd in fds:
                    os.close(fd)
                continue
            self._received += 1
            arrived += fds
            if not fds:
                self._complain()
        if self._received > before:
            self._take(arrived)

    def _take(self, fds: list[int]) -> None:
        tasks = [self._loop.create_task(self._attach(fd)) for fd in fds]
        self._attaching.update(tasks)
        for task in tasks:
            task.add_done_callback(self._attaching.discard)
        # The tasks have not run yet, so nothing has been read from the connections: see `Load`.
        self._tell_load()

    async def _attach(self, fd: int) -> None:
        assert self._endpoint is not None, "connections come after Ready"
        connection = socket.socket(fileno=fd)
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._endpoint.protocol, connection)
        except OSError:
            connection.close()  # the client has left already

    def _tell_load(self) -> None:
        """Now, and again when it has changed, as long as there are connections."""
        if self._tell_again is not None:
            self._tell_again.cancel()
            self._tell_again = None
        connections = len(self._attaching) + (self._endpoint.connections if self._endpoint is not None else 0)
        load = Load(self._received, connections)
        if load != self._told:
            self._told = load
            self.say(load)
        if connections and not self._leaving:
            self._tell_again = self._loop.call_later(_LOAD_EVERY, self._tell_load)

    def _complain(self) -> None:
        now = self._loop.time()
        if self._complained is None or now - self._complained > _REMIND_AFTER:
            self._complained = now
            _log.warning("a connection was lost: this process may not open more files (see `ulimit -n`)")

    def _orphaned(self) -> NoReturn:
        os._exit(1)
