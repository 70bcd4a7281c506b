"""Makes way for a new server: waits out what an earlier one left, then removes its pid file.

The caller holds the directory's lock, so whoever managed the earlier server is dead. Its postmaster, if alive, has been
told to stop by its manager's death and gets time for it. If the postmaster itself was killed, its children may live on
for a moment with the old shared memory, in which a new server must not start. The pid file goes last, and only once its
process is proven to be none of this cluster's, because PostgreSQL relies on it to keep two servers apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from . import escalation, pidfile, processes
from .errors import DirectoryLockedError, DirectoryUnusableError, StopFailedError
from .escalation import Step
from .processes import Verdict

Report = Callable[[str], None]

ORPHAN_STEPS = (
    Step(None, 5.0, "waiting for the previous PostgreSQL to stop, as its manager has ended"),
    *escalation.fast_shutdown(patience=60.0),
)
LEFTOVER_STEPS = (
    Step(None, 5.0, "waiting for processes of the previous PostgreSQL to end"),
    Step(signal.SIGQUIT, 5.0, "ending processes of the previous PostgreSQL"),
    Step(signal.SIGKILL, 10.0, "killing processes of the previous PostgreSQL"),
)


def make_way(cluster: Path, report: Report) -> None:
    note = pidfile.read(cluster)
    if note is not None:
        _end_postmaster(note, cluster, report)
    _end_leftovers(cluster, report)
    if pidfile.exists(cluster):
        _remove_stale(cluster, report)


def _end_postmaster(note: pidfile.PidFile, cluster: Path, report: Report) -> None:
    if processes.judge(note.pid, cluster) is not Verdict.OURS:
        return
    if note.single_user:
        raise DirectoryLockedError(
            f"A single-user PostgreSQL (pid {note.pid}) is working on {cluster}. Start again when it has ended.",
            directory=str(cluster),
            pid=note.pid,
        )
    _end([note.pid], ORPHAN_STEPS, cluster, report)


def _end_leftovers(cluster: Path, report: Report) -> None:
    leftovers = processes.of_cluster(cluster)
    if leftovers:
        _end(leftovers, LEFTOVER_STEPS, cluster, report)


def _end(pids: list[int], steps: tuple[Step, ...], cluster: Path, report: Report) -> None:
    def alive() -> list[int]:
        return [pid for pid in pids if processes.judge(pid, cluster) is Verdict.OURS]

    def gone(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while alive():
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

    def send(number: signal.Signals) -> None:
        for pid in alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    if not escalation.end(steps, gone=gone, send=send, report=report):
        raise StopFailedError(
            f"Processes of an earlier PostgreSQL on {cluster} do not end: {alive()}. "
            "They may hang in the disk; a new server cannot start beside them.",
            directory=str(cluster),
            pids=", ".join(map(str, alive())),
        )


def _remove_stale(cluster: Path, report: Report) -> None:
    note = pidfile.read(cluster)
    path = cluster / pidfile.NAME
    if note is None:
        verdict = Verdict.NOT_OURS if processes.can_list() else Verdict.UNKNOWN
        about = "it names no process"
    else:
        verdict = processes.judge(note.pid, cluster)
        about = f"process {note.pid} cannot be examined"
    if verdict is not Verdict.NOT_OURS:
        raise DirectoryUnusableError(
            f"{path} says that a PostgreSQL runs on this cluster, and it cannot be proven that none does ({about}). "
            "Make sure that none is running, then remove that file.",
            directory=str(cluster),
            pid=note.pid if note else None,
        )
    report(f"removing the stale {pidfile.NAME} of an earlier PostgreSQL")
    pidfile.remove(cluster)
