"""One running server, from its launch to its end.

A thread of its own launches the server and then waits for it. That thread lives as long as the server, as the
parent-death signal needs (see `launch`), and makes the server's end an event that others can wait for. A second one
keeps the log small.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import Future
from pathlib import Path

from . import logfile
from .cluster import Address
from .identity import Identity
from .launch import Launched, launch

LOG_CHECK_SECONDS = 60.0


class Postmaster:
    def __init__(self, argv: list[str], where: Address, identity: Identity, log: Path) -> None:
        """Returns when the process has been launched, which is before the server is ready."""
        self._dead = threading.Event()
        self._log = log
        launching: Future[Launched] = Future()
        keeper = threading.Thread(
            target=self._keep, args=(argv, where, identity, launching), name="embedded-postgres", daemon=True
        )
        keeper.start()
        self._process = launching.result().process
        self.pid = self._process.pid
        threading.Thread(target=self._tend_log, name="embedded-postgres-log", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def wait_dead(self, seconds: float | None) -> bool:
        return self._dead.wait(seconds)

    @property
    def dead(self) -> bool:
        return self._dead.is_set()

    def send(self, number: signal.Signals) -> None:
        if not self.dead:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _keep(self, argv: list[str], where: Address, identity: Identity, launching: Future[Launched]) -> None:
        try:
            with logfile.open_for_server(self._log) as log:
                if identity.drops_root:
                    os.fchown(log.fileno(), identity.uid, identity.gid)
                launched = launch(
                    argv, identity, death_signal=signal.SIGINT, inherit=where.inherit, stdout=log, stderr=log
                )
        except BaseException as error:
            launching.set_exception(error)
            return
        launching.set_result(launched)
        launched.process.wait()
        launched.forget()
        self._dead.set()

    def _tend_log(self) -> None:
        while not self._dead.wait(LOG_CHECK_SECONDS):
            with contextlib.suppress(OSError):
                logfile.rotate_if_large(self._log)
