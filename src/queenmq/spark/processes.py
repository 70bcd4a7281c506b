"""Which process a run is, so that another run on the same machine can tell that it has died.

A number alone is given again, and means something else in a container. So it comes with the boot of the machine, the
namespace of process numbers, and when the process started. Without /proc nothing is known, and time has to tell.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19  # behind the name in parentheses; the man page counts from 1, with the number and the name
_ENDED = ("Z", "X")


def identity(pid: int | None = None) -> str | None:
    """A name that no other process has had or will have; None where it cannot be made."""
    number = os.getpid() if pid is None else pid
    started, here = _started(number), _here()
    return None if started is None or here is None else f"{here}/{number}/{started}"


def has_ended(identity: str | None) -> bool:
    """Whether that process ran here and does not any more. False when this cannot be known."""
    place, _, process = (identity or "").partition("/")
    number, _, started = process.partition("/")
    if place != _here() or not number.isdigit() or _is_hidden(int(number)):
        return False
    return _started(int(number)) != started


def _is_hidden(pid: int) -> bool:
    """Whether it is a process of another user: /proc may be mounted in a way that shows only one's own."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False


def _here() -> str | None:
    """The boot of this machine, and the namespace in which process numbers count."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """In ticks since the boot; None when there is no such process, or nothing of it but its exit code."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in _ENDED else fields[_STARTED]
