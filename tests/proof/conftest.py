"""A real `queen serve`, started as its users start it, on a database of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import asyncpg
import pytest

from benchmarks.processes import tree
from tests import children
from tests.children import QUEEN

PATIENCE = 60.0
_READY = re.compile(r"^  URL +http://127\.0\.0\.1:(\d+)$.*^  Database +(\S+)", re.MULTILINE | re.DOTALL)


@dataclass(slots=True)
class Serving:
    """A running server."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0
    database: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def workers(self) -> list[int]:
        return tree(self.process.pid)[1:]

    def wait_ready(self) -> None:
        """Until it has said where it is."""
        until = time.monotonic() + PATIENCE
        while not (found := _READY.search(self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)
        self.port, self.database = int(found[1]), found[2]

    def stop(self) -> None:
        """It must still run, and end in good order when told to."""
        died = self.process.poll()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert (died, code) == (None, 0), self.log.read_text()[-3000:]


class Serve(Protocol):
    """Starts a server; keywords are environment variables."""

    def __call__(self, workers: int, **environment: str) -> Serving: ...


@pytest.fixture
def serve(database: str, tmp_path: Path) -> Iterator[Serve]:
    started: list[Serving] = []

    def start(workers: int, **environment: str) -> Serving:
        log = tmp_path / f"serve-{len(started)}.log"
        started.append(launch(log, "--workers", str(workers), DATABASE_URL=database, **environment))
        started[-1].wait_ready()
        return started[-1]

    yield start
    for serving in started:
        serving.stop()


def launch(log: Path, *arguments: str, **environment: str) -> Serving:
    children.verify()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [QUEEN, "serve", "--port", "0", *arguments],
            env=children.environment(log.parent, **environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return Serving(process, log)


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()
