"""Tells whether a process belongs to a given cluster.

Every server process of PostgreSQL has the data directory as its working directory, as the same inode whatever the path
it was given, and an executable called `postgres`. Both together prove that it is ours; either one missing proves that
it is not, as does another user than the cluster's owner. What cannot be looked at proves nothing.
"""

from __future__ import annotations

import enum
import os
import subprocess
from pathlib import Path

PROC = Path("/proc")
EXECUTABLE = "postgres"
DEAD_STATES = frozenset("ZX")
"""Dead, though nobody has waited for it: in a container without an init process such entries stay for good."""


class Verdict(enum.Enum):
    OURS = "a process of this cluster"
    NOT_OURS = "no process of this cluster"
    UNKNOWN = "cannot be told"


def judge(pid: int, cluster: Path) -> Verdict:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Verdict.NOT_OURS
    except PermissionError:
        pass
    if can_list():
        return _judge_by_proc(pid, cluster.stat())
    return _judge_by_tools(pid, cluster)


def can_list() -> bool:
    """Whether the system shows its processes in /proc; elsewhere only a known pid can be judged."""
    return (PROC / "self" / "status").exists()


def of_cluster(cluster: Path) -> list[int]:
    """Every process of the cluster, where they can be listed."""
    if not can_list():
        return []
    identity = cluster.stat()
    pids = [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]
    return [pid for pid in pids if _judge_by_proc(pid, identity) is Verdict.OURS]


def _judge_by_proc(pid: int, cluster: os.stat_result) -> Verdict:
    process = PROC / str(pid)
    try:
        uid, state = _uid_and_state((process / "status").read_text(encoding="utf-8", errors="replace"))
        if uid != cluster.st_uid or state in DEAD_STATES:
            return Verdict.NOT_OURS
        if not os.path.samestat((process / "cwd").stat(), cluster):
            return Verdict.NOT_OURS
        # The suffix appears when the file was replaced under the running program, as an upgrade does.
        program = os.path.basename(os.readlink(process / "exe")).removesuffix(" (deleted)")
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile, or it is a kernel thread, or its working directory is gone. A directory hidden from us
        # belongs to another user, and a process of the cluster would be ours.
        return Verdict.NOT_OURS
    except PermissionError:
        return Verdict.UNKNOWN
    return Verdict.OURS if program == EXECUTABLE else Verdict.NOT_OURS


def _uid_and_state(status: str) -> tuple[int, str]:
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["Uid"].split()[1]), fields["State"].split()[0]


def _judge_by_tools(pid: int, cluster: Path) -> Verdict:
    """The same questions, asked of ps and lsof, for systems without /proc."""
    described = _output(["ps", "-ww", "-o", "uid=,stat=,comm=", "-p", str(pid)]).split(maxsplit=2)
    if len(described) < 3:
        return Verdict.UNKNOWN
    uid, state, command = described
    if int(uid) != cluster.stat().st_uid or state[0] in DEAD_STATES or os.path.basename(command.strip()) != EXECUTABLE:
        return Verdict.NOT_OURS
    where = [
        line[1:] for line in _output(["lsof", "-a", "-p", str(pid), "-d", "cwd", "-Fn"]).splitlines() if line[0] == "n"
    ]
    if not where or not os.path.exists(where[0]):
        return Verdict.UNKNOWN
    return Verdict.OURS if os.path.samefile(where[0], cluster) else Verdict.NOT_OURS


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
