"""The server's log: one file beside the cluster, which the server inherits as its standard error.

The server appends, so the manager can keep the file small by copying it away and cutting it, without the server's help.
`LogReader` reads what was written since a moment, which is how the manager learns of recovery and of failures.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

LIMIT = 16 * 1024 * 1024


def open_for_server(path: Path) -> IO[bytes]:
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab")


def rotate_if_large(path: Path, limit: int = LIMIT) -> None:
    """Keep one older file. Lines written between the copy and the cut are lost, which a log can bear."""
    if not path.exists() or path.stat().st_size <= limit:
        return
    older = path.with_name(path.name + ".1")
    with _open(path, os.O_RDWR, "r+b") as log, _open(older, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "wb") as copy:
        shutil.copyfileobj(log, copy)
        os.ftruncate(log.fileno(), 0)


def _open(path: Path, flags: int, mode: str) -> IO[bytes]:
    """No symbolic links: the manager may be root in a directory that belongs to somebody else."""
    opened: IO[bytes] = os.fdopen(os.open(path, flags | os.O_NOFOLLOW, 0o600), mode, buffering=0)
    return opened


class LogReader:
    """Reads the log from where it ended when the reader was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self.text = ""

    def read_more(self) -> str:
        """What was added since the last call, in whole lines; `text` gathers it all."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as log:
            if os.fstat(log.fileno()).st_size < self._offset:
                self._offset = 0
            log.seek(self._offset)
            added = log.read().rpartition(b"\n")[0]
        if not added:
            return ""
        self._offset += len(added) + 1
        fresh = added.decode("utf-8", errors="replace") + "\n"
        self.text += fresh
        return fresh
