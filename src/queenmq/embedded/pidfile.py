"""Reads `postmaster.pid`, PostgreSQL's own note of who runs a cluster and where it listens.

Lines: pid (negative for a single-user backend), data directory, start time, port, socket directory, listen address,
shared-memory key, status. A server writes them bit by bit while it starts, so all but the pid may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NAME = "postmaster.pid"


@dataclass(frozen=True, slots=True)
class PidFile:
    pid: int
    single_user: bool
    port: int | None
    socket_dir: str | None
    listens_on_tcp: bool
    status: str


def read(cluster: Path) -> PidFile | None:
    """The note, or None when there is none or it holds no pid."""
    try:
        text = (cluster / NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    lines = [line.strip() for line in text.splitlines()] + [""] * 8
    try:
        pid = int(lines[0])
    except ValueError:
        return None
    if pid == 0:
        return None
    return PidFile(
        pid=abs(pid),
        single_user=pid < 0,
        port=int(lines[3]) if lines[3].isdigit() else None,
        socket_dir=lines[4] or None,
        listens_on_tcp=bool(lines[5]),
        status=lines[7],
    )


def exists(cluster: Path) -> bool:
    return (cluster / NAME).exists()


def remove(cluster: Path) -> None:
    (cluster / NAME).unlink(missing_ok=True)
