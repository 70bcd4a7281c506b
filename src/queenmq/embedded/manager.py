"""Runs PostgreSQL for this product, as a direct child of the process that asks for it.

    data_dir/
     ├─ postgres/        the cluster (0700, owned by the user the server runs as)
     ├─ postgres.lock    held by the manager that runs the server
     └─ postgres.log     the server's log, and postgres.log.1

The manager that gets the lock owns the server: it makes the cluster if there is none, clears away what an earlier
server left, starts the server and stops it. A manager that finds the lock taken attaches to the owner's server and
never stops it. When the owner dies in whatever way, the kernel stops the server and frees the lock, and the next
`start` of anybody becomes the owner.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from . import attachment, binaries, cluster, config, escalation, identity, logfile, predecessor, socketdir, startup
from .connection import ConnectionInfo
from .errors import EmbeddedPostgresError, StopFailedError, from_os_error
from .lock import DirectoryLock
from .postmaster import Postmaster

STOP_PATIENCE = 60.0
ATTACHED_POLL_SECONDS = 0.1

_log = logging.getLogger(__name__)


class EmbeddedPostgres:
    """Safe to use from several threads. In a process forked from the owner's it is a manager like any other's."""

    def __init__(
        self,
        data_dir: Path,
        *,
        bin_dir: Path | None = None,
        port: int | None = None,
        report: Callable[[str], None] = _log.info,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        config.check(settings, port)
        self.data_dir = data_dir.absolute()
        self.log_path = self.data_dir / "postgres.log"
        self._bin_dir = bin_dir
        self._port = port
        self._report = report
        self._settings = dict(settings)
        self._cluster = self.data_dir / "postgres"
        self._lock = DirectoryLock(self.data_dir / "postgres.lock")
        self._mutex = threading.RLock()
        self._process = os.getpid()
        self._connection: ConnectionInfo | None = None
        self._server: Postmaster | None = None
        self._socket_dir: Path | None = None

    def start(self) -> ConnectionInfo:
        """Run the server, or attach to the one that runs; returns when it takes connections.

        After the server has died, `start` again brings it back, at the same place.
        """
        with self._mutex:
            self._forget_the_parents()
            if self._connection is not None and self.alive():
                return self._connection
            self._connection = None
            try:
                self._make_data_dir()
                self._connection = attachment.lock_or_attach(self._lock, self._cluster, self._report)
                if self._connection is None:
                    self._connection = self._run_server()
                elif self._port is not None and self._connection.tcp_port != self._port:
                    self._report(f"attached to a running PostgreSQL that does not listen on TCP port {self._port}")
                return self._connection
            except OSError as error:
                self._abandon()
                raise from_os_error(error, self.data_dir) from error
            except BaseException:
                self._abandon()
                raise

    def stop(self) -> None:
        """Stop the server and wait for it; when attached, only forget it. Does nothing the second time."""
        if self._server is not None and self._process == os.getpid():
            # Another thread may be in `start`, and hold the mutex for as long as this server replays its log.
            self._server.send(signal.SIGINT)
        with self._mutex:
            self._forget_the_parents()
            self._connection = None
            if self._server is not None and not self._end_server(self._server):
                raise StopFailedError(
                    f"PostgreSQL (pid {self._server.pid}) does not end, not even when killed; it may hang in the disk.",
                    pid=self._server.pid,
                )
            self._server = None
            if self._lock.held and self._socket_dir is not None:
                socketdir.remove(self._socket_dir)
            self._lock.release()

    def alive(self) -> bool:
        """Whether the server of the last `start` still runs and is not shutting down."""
        connection = self._connection
        if connection is None:
            return False
        if not connection.attached and self._process == os.getpid():
            return self._server is not None and not self._server.dead
        note = attachment.running(self._cluster)
        return note is not None and note.pid == connection.postmaster_pid and note.status != "stopping"

    def wait_dead(self, timeout: float | None = None) -> bool:
        """Wait until the server is no longer alive; False when `timeout` seconds went by first."""
        server, connection = self._server, self._connection
        if server is not None and connection is not None and self._process == os.getpid():
            return server.wait_dead(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while self.alive():
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(ATTACHED_POLL_SECONDS)
        return True

    def __enter__(self) -> ConnectionInfo:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _forget_the_parents(self) -> None:
        """In a forked process, what was started belongs to the parent, lock and server: begin anew."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = DirectoryLock(self._lock.path)
            self._connection = self._server = self._socket_dir = None

    def _make_data_dir(self) -> None:
        if not self.data_dir.exists():
            self.data_dir.parent.mkdir(parents=True, exist_ok=True)
            # As root, let the server's user pass through the directory we make; what is in it stays closed.
            self.data_dir.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)

    def _run_server(self) -> ConnectionInfo:
        """With the lock held."""
        programs = binaries.find(self._bin_dir)
        user = identity.choose(self._cluster)
        if user.drops_root:
            self._lock.give_to(user.uid, user.gid)
        programs = binaries.for_identity(programs, user)
        self._settle_cluster(programs, user)
        real_cluster = self._cluster.resolve()
        socket_port = self._port or config.SOCKET_PORT
        self._socket_dir = socketdir.prepare(real_cluster, user, socket_port)
        logfile.rotate_if_large(self.log_path)
        plan = startup.Plan(
            program=programs.program("postgres"),
            arguments=config.arguments(
                self._settings, socket_dir=self._socket_dir, port=self._port, major=programs.major
            ),
            cluster=real_cluster,
            identity=user,
            socket_dir=self._socket_dir,
            socket_port=socket_port,
            tcp_port=self._port,
            log=self.log_path,
        )
        server = startup.start(plan, self._report, launched=self._remember)
        return ConnectionInfo(
            host=str(self._socket_dir),
            port=socket_port,
            postmaster_pid=server.pid,
            attached=False,
            tcp_port=self._port,
            password=cluster.password(self._cluster) if self._port is not None else None,
        )

    def _settle_cluster(self, programs: binaries.Binaries, user: identity.Identity) -> None:
        cluster.remove_unfinished(self.data_dir)
        if cluster.is_made(self._cluster, programs):
            cluster.take_possession(self._cluster, user, self._report)
            predecessor.make_way(self._cluster, self._report)
        else:
            self._report(f"making a new PostgreSQL {programs.version} cluster in {self._cluster}")
            cluster.make(self._cluster, programs, user)

    def _remember(self, server: Postmaster) -> None:
        self._server = server

    def _end_server(self, server: Postmaster) -> bool:
        return escalation.end(
            escalation.fast_shutdown(STOP_PATIENCE), gone=server.wait_dead, send=server.send, report=self._report
        )

    def _abandon(self) -> None:
        """After a failed start: leave nothing running and nothing locked, and let the first error be the one seen."""
        try:
            self.stop()
        except EmbeddedPostgresError as error:
            self._report(str(error))
