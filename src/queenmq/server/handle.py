"""A worker as the supervisor sees it: a process, the socket to it, and the connections it was given.

A connection handed over stays open here too until the worker says that it has it. A worker that ends before saying so
has not touched it, so it can be given to another one, and the client never notices.
"""

from __future__ import annotations

import contextlib
import enum
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator

from queenmq.server.control import CONNECTION, Load, Notice, NoticeReader, Plan, send_plan

WINDOW = 64
"""Most connections on their way to one worker."""
SILENCE = 0.5
"""Seconds after which a worker that has not taken a connection counts as stuck."""

_LAST_STEPS = 0.2


class State(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


class WorkerHandle:
    def __init__(self, plan: Plan) -> None:
        """Start the process. Raises OSError when the system has no room for one."""
        self.number = plan.number
        self.state = State.STARTING
        self.ready_at: float | None = None
        self.last_given = 0
        self._open = 0
        self._received = 0
        self._underway: deque[tuple[float, socket.socket]] = deque()
        self._notices = NoticeReader()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                self._process = _spawn(plan, theirs)
            send_plan(self.control, plan)
        except BrokenPipeError:
            pass  # it has ended already, which the end of its stream will tell
        except BaseException:
            self.control.close()
            raise
        self.control.setblocking(False)
        self.pid = self._process.pid

    @property
    def load(self) -> int:
        """Connections it has, and those on their way to it."""
        return self._open + len(self._underway)

    @property
    def has_room(self) -> bool:
        return len(self._underway) < WINDOW

    def silence(self, now: float) -> float:
        """Seconds for which it has left a connection lying: it is stopped, or busy with one thing for too long."""
        age = now - self._underway[0][0] if self._underway else 0.0
        return age if age > SILENCE else 0.0

    def hand(self, connection: socket.socket) -> bool:
        """Give it a connection; False when it cannot be reached, and the connection is still the caller's."""
        try:
            socket.send_fds(self.control, [CONNECTION], [connection.fileno()])
        except OSError:
            return False
        self._underway.append((time.monotonic(), connection))
        return True

    def read(self) -> Iterator[Notice] | None:
        """What it has said since the last time; None when it has ended."""
        try:
            data = self.control.recv(65_536)
        except BlockingIOError:
            return iter(())
        except OSError:
            return None
        return self._notices.feed(data) if data else None

    def note(self, load: Load) -> None:
        """It has what it counts: our copies of those connections can go."""
        for _ in range(load.received - self._received):
            self._underway.popleft()[1].close()
        self._received, self._open = load.received, load.open

    def take_back(self) -> list[socket.socket]:
        """The connections it never touched."""
        connections = [connection for _, connection in self._underway]
        self._underway.clear()
        return connections

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def bury(self) -> str:
        """Once its stream has ended: see the process off, and say how it ended."""
        self.control.close()
        try:
            code = self._process.wait(_LAST_STEPS)
        except subprocess.TimeoutExpired:  # it has closed the socket, and lives on
            self._process.kill()
            code = self._process.wait()
        if code >= 0:
            return f"ended with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    @property
    def ended_well(self) -> bool:
        return self._process.returncode == 0


def _spawn(plan: Plan, control: socket.socket) -> subprocess.Popen[bytes]:
    inboxes = (plan.inbox, *plan.outboxes.values()) if plan.outboxes else ()
    return subprocess.Popen(
        # -P: no module in the working directory may take the place of one of ours.
        [sys.executable, "-P", "-m", "queenmq.server.worker_process", str(plan.number), str(control.fileno())],
        pass_fds=(control.fileno(), *inboxes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for the supervisor, which then stops the workers in its own order.
        start_new_session=True,
    )
