"""File descriptors whose being open says that this very process lives: no other process may keep them open.

Python closes them on exec by default; a child forked without exec (multiprocessing's fork method, for one) would still
share them and so outlive the manager in its name. Descriptors registered here are closed in such children.
"""

from __future__ import annotations

import os

_registered: set[int] = set()


def keep_private(fd: int) -> None:
    _registered.add(fd)


def close(fd: int) -> None:
    _registered.discard(fd)
    os.close(fd)


def _close_in_child() -> None:
    while _registered:
        os.close(_registered.pop())


os.register_at_fork(after_in_child=_close_in_child)
