"""The program of a worker process: `python -m queenmq.server.worker_process NUMBER FD`, started by the supervisor.

NUMBER is there for those who read `ps`; FD is the control socket, over which everything else is told. The process ties
its life to the supervisor's first, with the kernel's parent-death signal where there is one, and only then loads the
rest: even a worker that hangs does not outlive the supervisor. The supervisor starts workers from its main thread,
which is what the kernel takes for the parent.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1


def _tie_to_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main(fd: int) -> int:
    _tie_to_parent()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Its end tells the supervisor of ours: only the kernel may close it, as the last thing.
    control = socket.socket(fileno=os.dup(fd))

    from queenmq.server import logs
    from queenmq.server.control import receive_plan
    from queenmq.server.worker import work

    try:
        plan = receive_plan(control)
    except (EOFError, OSError):
        return 1
    if os.getppid() != plan.supervisor:  # it ended before the tie was made
        return 1
    logs.configure(plan.settings.log_level, plan.settings.log_format, f"worker {plan.number}")
    try:
        return work(plan, control)
    except Exception:
        logging.getLogger(__name__).exception("the worker has failed")
        return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[2])))
