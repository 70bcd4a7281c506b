"""Programs that tests start. They run the code of the tree under test, in an environment and a signal state of their
own: nothing of the machine, of a developer's shell or of an installed `queenmq` reaches them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import queenmq

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
QUEEN = Path(sys.executable).parent / "queen"


def environment(home: Path, **more: str) -> dict[str, str]:
    """A bare environment. A Python that is started in it imports `queenmq` from the tree under test."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(SOURCE), **more}


@cache
def verify() -> None:
    """See that a child really runs the tree's code."""
    probe = [sys.executable, "-P", "-c", "import queenmq; print(queenmq.__file__)"]
    done = subprocess.run(probe, env=environment(ROOT), capture_output=True, text=True, timeout=60, check=True)
    found = Path(done.stdout.strip())
    assert found.is_relative_to(SOURCE), f"servers would run the code of {found}; the tree under test is {SOURCE}"


def isolate() -> None:
    """Prepare this process, so that every child starts with the tree's code and with default signals.

    A script's background job ignores SIGINT and SIGQUIT, and under nohup a program ignores SIGHUP; children inherit
    that. A handler that does nothing ignores a signal just as well, but execve() resets it to the default.
    """
    imported = Path(queenmq.__file__).parents[1]
    assert imported == SOURCE, f"queenmq was imported from {imported}; the tree under test is {SOURCE}"
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", str(SOURCE))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), *others])
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
