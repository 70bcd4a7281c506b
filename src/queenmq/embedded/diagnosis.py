"""Turns what PostgreSQL's programs printed into the errors of this package, and into progress for people.

The messages are those of the C locale, which the manager enforces.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from .errors import (
    DiskFullError,
    EmbeddedPostgresError,
    InitFailedError,
    PortTakenError,
    StartFailedError,
    VersionMismatchError,
)

# Kernel memory that runs out gives the same words, and is no matter of the disk.
_NO_ROOM = re.compile(
    r"(?m)^(?!.*(?:shared memory|semaphore)).*(?:No space left on device|Disk quota exceeded|File too large).*"
)
_PORT_TAKEN = re.compile(r"could not bind IPv4 address .*Address already in use")
_INCOMPATIBLE = re.compile(r".*database files are incompatible with server.*|.*is not compatible with this version.*")
_MEMORY_IN_USE = re.compile(r"pre-existing shared memory block .* is still in use")
_NO_SUCH_USER = re.compile(r"could not look up effective user ID (\d+)")
_NO_LOCALE = re.compile(r"initdb: error: .*locale")
_COMPLAINT = re.compile(r"(?:FATAL|PANIC|ERROR|initdb: error|could not launch): .*")
_UNCLEAN = re.compile(r"database system was interrupted|was not properly shut down")
_REDO = re.compile(r"redo (?:starts at|in progress, .*current LSN:) ([0-9A-F]+/[0-9A-F]+)")
_SYNCING = re.compile(r"(syncing data directory|resetting unlogged relations).*elapsed time")


def of_start(
    log: str, exit_code: int | None, *, cluster: Path, log_file: Path, port: int | None
) -> EmbeddedPostgresError:
    """Why the server ended while starting."""
    if room := _no_room(log, cluster):
        return room
    if port is not None and _PORT_TAKEN.search(log):
        return PortTakenError(
            f"The TCP port {port} on 127.0.0.1, asked for PostgreSQL, is in use by another program. "
            "Choose another port or stop that program.",
            port=port,
        )
    if incompatible := _INCOMPATIBLE.search(log):
        said = _message(incompatible.group())
        return VersionMismatchError(
            f"The cluster in {cluster} cannot be read by this PostgreSQL: {said}. Nothing was changed.",
            directory=str(cluster),
            said=said,
        )
    said = complaint(log) or _last_words(log) or f"it ended with status {exit_code} and gave no reason"
    return StartFailedError(
        f"PostgreSQL did not start: {said}. More may be in {log_file}.",
        directory=str(cluster),
        log=str(log_file),
        said=said,
        exit_code=exit_code,
    )


def of_init(output: str, *, directory: Path) -> EmbeddedPostgresError:
    """Why a cluster could not be made."""
    if room := _no_room(output, directory):
        return room
    said = complaint(output) or _last_words(output) or "it gave no reason"
    hint = ""
    if nameless := _NO_SUCH_USER.search(output):
        hint = f" PostgreSQL needs a user with a name: give uid {nameless.group(1)} an entry in /etc/passwd."
    return InitFailedError(
        f"A new PostgreSQL cluster could not be made in {directory}: {said}.{hint}", directory=str(directory), said=said
    )


def locale_unknown(output: str) -> bool:
    """Whether initdb failed because this system lacks the locale."""
    return _NO_LOCALE.search(output) is not None


def memory_in_use(log: str) -> bool:
    """Whether processes of a dead server still keep its shared memory."""
    return _MEMORY_IN_USE.search(log) is not None


def complaint(text: str) -> str | None:
    """The last serious message."""
    found = _COMPLAINT.findall(text)
    return _message(found[-1]) if found else None


class Progress:
    """Follows a starting server's log and says, now and then, what it is busy with."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._doing = "is starting"
        self._detail = ""

    def see(self, fresh: str) -> None:
        if _UNCLEAN.search(fresh) and self._doing != "is recovering":
            self._doing = "is recovering"
            self._report("PostgreSQL was not shut down cleanly; it is recovering")
        if positions := _REDO.findall(fresh):
            self._detail = f", redo at {positions[-1]}"
        elif phases := _SYNCING.findall(fresh):
            self._detail = f", {phases[-1]}"

    def tell(self, seconds: float) -> None:
        self._report(f"PostgreSQL {self._doing}: {seconds:.0f} s{self._detail}")


def _no_room(text: str, directory: Path) -> DiskFullError | None:
    found = _NO_ROOM.search(text)
    if found is None:
        return None
    said = _message(found.group())
    free = shutil.disk_usage(directory if directory.exists() else directory.parent).free
    return DiskFullError(
        f"There is no room for PostgreSQL in {directory} ({free // 1024} kB free): {said}. "
        "Free some space or set QUEEN_DATA_DIR to another disk; nothing was removed.",
        directory=str(directory),
        free_bytes=free,
        said=said,
    )


def _last_words(text: str) -> str:
    """The last few lines, for the few failures that are told without a level."""
    return " ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())


def _message(line: str) -> str:
    """A log line without time, process and level."""
    return re.sub(r"^.*?(?:FATAL|PANIC|ERROR|LOG|DETAIL|error):\s*", "", line).strip().rstrip(".")
