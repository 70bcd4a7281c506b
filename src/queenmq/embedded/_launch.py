"""Becomes a PostgreSQL program: gives up root, ties itself to the manager's life, then execs.

Run by file path with the manager's interpreter, so that nothing happens between fork and exec of a process that has
threads. It imports only the standard library, and all of it before dropping privileges: afterwards the interpreter's
own files may be out of reach.

The tie is the kernel's parent-death signal where there is one. It is set after the change of user, which clears it, and
then the parent is checked, which may have died before. Elsewhere a detached watcher waits for the end of a pipe that
only the manager holds open.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
from typing import TypedDict

PR_SET_PDEATHSIG = 1


class Plan(TypedDict):
    argv: list[str]
    parent: int
    death_signal: int
    leash: int | None
    """Read end of the pipe to watch; None to use the parent-death signal."""
    user: tuple[int, int] | None
    """uid and gid to become; None to stay."""


def become(uid: int, gid: int) -> None:
    os.setgroups([gid])
    os.setgid(gid)
    os.setuid(uid)


def ask_for_death_signal(signal_number: int, parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit("the manager ended before its server started")


def start_watcher(leash: int, signal_number: int) -> None:
    """Fork twice, so that the watcher is no child of the program this process is about to become."""
    target = os.getpid()
    life, life_of_target = os.pipe()
    os.set_inheritable(life_of_target, True)
    middle = os.fork()
    if middle == 0:
        os.close(life_of_target)
        if os.fork() == 0:
            watch(target, leash, life, signal_number)
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(life)
    os.close(leash)


def watch(target: int, leash: int, life: int, signal_number: int) -> None:
    """Signal the target when the manager's end of the leash closes; leave when the target itself is gone."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    ended, _, _ = select.select([leash, life], [], [])
    if life not in ended:
        os.kill(target, signal_number)
    os._exit(0)


def main(plan: Plan) -> None:
    os.umask(0o077)
    if plan["user"] is not None:
        become(*plan["user"])
    if plan["leash"] is None:
        ask_for_death_signal(plan["death_signal"], plan["parent"])
    else:
        start_watcher(plan["leash"], plan["death_signal"])
    os.execv(plan["argv"][0], plan["argv"])


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as failure:
        raise SystemExit(f"could not launch: {failure}") from failure
