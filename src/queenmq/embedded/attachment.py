"""Joins a server that another manager runs on the same directory.

Where it listens is read from its `postmaster.pid`. It is joined only when it answers and its process is proven to be of
this cluster, so that a stale file never leads to somebody else's server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from . import cluster as clusters
from . import pidfile, probe, processes
from .connection import ConnectionInfo
from .errors import DirectoryLockedError
from .lock import DirectoryLock
from .processes import Verdict

Report = Callable[[str], None]

PATIENCE = 30.0
"""How long the lock's holder may go without a server process: enough to make a cluster on a slow disk."""
REPORT_EVERY = 2.0
POLL_SECONDS = 0.1


def lock_or_attach(lock: DirectoryLock, cluster: Path, report: Report) -> ConnectionInfo | None:
    """None when the lock is now ours; else the connection to the holder's server, which may take its time to start."""
    begun = told = hopeful = time.monotonic()
    while not lock.acquire():
        note = running(cluster)
        if note is not None and (connection := _connect(note, cluster)) is not None:
            return connection
        now = time.monotonic()
        if note is not None and note.status in ("starting", "stopping"):
            hopeful = now
        if now - hopeful > PATIENCE:
            raise _unreachable(lock.holder(), cluster, now - begun)
        if now - told >= REPORT_EVERY:
            told = now
            report(
                f"waiting for the PostgreSQL of process {lock.holder()}, which holds {lock.path}: {now - begun:.0f} s"
            )
        time.sleep(POLL_SECONDS)
    return None


def running(cluster: Path) -> pidfile.PidFile | None:
    """The note of a postmaster that runs on the cluster now."""
    note = pidfile.read(cluster)
    if note is None or note.single_user or processes.judge(note.pid, cluster) is not Verdict.OURS:
        return None
    return note


def _connect(note: pidfile.PidFile, cluster: Path) -> ConnectionInfo | None:
    if note.port is None or note.socket_dir is None or note.status != "ready":
        return None
    if not probe.ask(note.socket_dir, note.port).ready:
        return None
    return ConnectionInfo(
        host=note.socket_dir,
        port=note.port,
        postmaster_pid=note.pid,
        attached=True,
        tcp_port=note.port if note.listens_on_tcp else None,
        password=clusters.password(cluster) if note.listens_on_tcp else None,
    )


def _unreachable(holder: int | None, cluster: Path, waited: float) -> DirectoryLockedError:
    return DirectoryLockedError(
        f"The data directory {cluster.parent} is in use by process {holder}, and no PostgreSQL could be reached there "
        f"within {waited:.0f} s. Stop that process, or set QUEEN_DATA_DIR to another directory.",
        directory=str(cluster.parent),
        pid=holder,
    )
