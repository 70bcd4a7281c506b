"""CPU time and memory of a process and everything it started, read from /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Places in /proc/<pid>/stat, counted behind the name, which may hold spaces and brackets.
_PARENT, _CPU = 1, slice(11, 15)


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def tree(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) is not None:
            children[int(stat[_PARENT])].append(int(entry))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def cpu_seconds(root: int) -> float:
    """CPU time of the whole tree. A child that has ended still counts: its parent has inherited its time."""
    return sum(sum(map(int, stat[_CPU])) for pid in tree(root) if (stat := _stat(pid)) is not None) / _TICK


def resident_bytes(root: int) -> int:
    """Memory that the whole tree holds; what two processes share counts twice."""
    return sum(_resident(pid) for pid in tree(root)) * _PAGE


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
