"""Whom to kill of a Spark program."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from benchmarks.processes import tree


def command(pid: int) -> str:
    """The command line of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def executor(driver: int, number: int) -> list[int]:
    """An executor of a program, or every other time the Python workers of one; none where tasks run in the driver."""
    executors = [pid for pid in tree(driver) if "CoarseGrainedExecutorBackend" in command(pid)]
    if not executors:
        return []
    chosen = executors[number % len(executors)]
    workers = [pid for pid in tree(chosen) if "pyspark.daemon" in command(pid)]
    return workers if number % 2 and workers else [chosen]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
