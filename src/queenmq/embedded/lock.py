"""The lock that says who manages a data directory: an flock on a file beside the cluster.

The kernel frees it the moment the manager dies, however it dies, so the lock never lies. It would lie if another
process shared the open file, the server above all; `private_fd` sees to that.
The file's text is the holder's pid, for messages only. The file is never deleted, because a lock on a deleted file
would exclude nobody.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from . import private_fd


class DirectoryLock:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> bool:
        """Take the lock now, or say that somebody else has it."""
        if self._fd is not None:
            return True
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        private_fd.keep_private(fd)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return True

    def give_to(self, uid: int, gid: int) -> None:
        """Let the cluster's owner use the file too, should he start without root next time."""
        if self._fd is not None:
            os.fchown(self._fd, uid, gid)

    def holder(self) -> int | None:
        """The pid the last holder wrote."""
        try:
            return int(self.path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        if self._fd is not None:
            private_fd.close(self._fd)
            self._fd = None
