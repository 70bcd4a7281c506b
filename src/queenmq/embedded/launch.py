"""Starts PostgreSQL programs as the right user and tied to the life of this process (`_launch` is the child's side).

The parent-death signal belongs to the *thread* that forked: it fires when that thread ends. Callers therefore launch
from a thread that outlives the program (`Postmaster` keeps one for the purpose).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from . import private_fd
from .identity import Identity

Stream = int | IO[bytes]
TETHER: Literal["signal", "pipe"] = "signal" if sys.platform == "linux" else "pipe"


@dataclass(frozen=True, slots=True)
class Launched:
    process: subprocess.Popen[bytes]
    leash: int | None

    def forget(self) -> None:
        """The program has ended: drop our end of the leash."""
        if self.leash is not None:
            private_fd.close(self.leash)


def launch(
    argv: Sequence[str],
    identity: Identity,
    *,
    death_signal: signal.Signals,
    inherit: tuple[int, ...] = (),
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
) -> Launched:
    watched, leash = os.pipe() if TETHER == "pipe" else (None, None)
    plan = {
        "argv": list(argv),
        "parent": os.getpid(),
        "death_signal": int(death_signal),
        "leash": watched,
        "user": (identity.uid, identity.gid) if identity.drops_root else None,
    }
    launcher = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_launch.py")), json.dumps(plan)]
    try:
        process = subprocess.Popen(
            launcher,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env=minimal_environment(os.environ),
            pass_fds=inherit if watched is None else (*inherit, watched),
            # A Ctrl-C in the terminal is for the manager, which then stops the server in its own order.
            start_new_session=True,
        )
    finally:
        if watched is not None:
            os.close(watched)
    if leash is not None:
        private_fd.keep_private(leash)
    return Launched(process, leash)


def minimal_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Only what the programs need: our environment may hold secrets, and PG* variables would change their behaviour.

    The C locale makes their messages the ones that `diagnosis` knows.
    """
    kept = {name: ours[name] for name in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZDIR") if name in ours}
    return kept | {"LC_ALL": "C"}
