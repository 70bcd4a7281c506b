"""Whom to kill of a Spark program, and a server that is killed while such a program writes to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import tree
from tests.proof.conftest import Serving, launch

ROOT = Path(__file__).parents[3]


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


@contextmanager
def killable(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program with everything it starts in a process group of its own. Killed when it is left."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class KilledServer:
    """A `queen serve` with two workers, which comes back at the same port."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._database = database
        self._lives = 0
        self._port = 0
        self._serving: Serving | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._lives += 1
        log = self._folder / f"serve-{self._lives}.log"
        self._serving = launch(log, "--workers", "2", "--port", str(self._port), DATABASE_URL=self._database)
        self._serving.wait_ready()
        self._port = self._serving.port

    def kill(self) -> None:
        """All of its processes, the first one first: it would start others in place of those that die."""
        if self._serving is not None:
            for pid in tree(self._serving.process.pid):
                kill(pid)
            self._serving.process.wait()
