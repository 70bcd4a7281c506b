"""A real `queen serve`, started as its users start it, on a database of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from benchmarks.processes import tree
from tests.conftest import Server

QUEEN = Path(sys.executable).parent / "queen"
PATIENCE = 60.0
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")


@dataclass(slots=True)
class Serving:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def workers(self) -> list[int]:
        return tree(self.process.pid)[1:]


class Serve(Protocol):
    """Starts a server; keywords are environment variables."""

    def __call__(self, workers: int, **environment: str) -> Serving: ...


@pytest.fixture
async def database(embedded_server: Server) -> AsyncIterator[str]:
    name, schema = await embedded_server.lend()
    yield embedded_server.database(name)
    await embedded_server.take_back(name, schema)


@pytest.fixture
def serve(database: str, tmp_path: Path) -> Iterator[Serve]:
    started: list[Serving] = []

    def start(workers: int, **environment: str) -> Serving:
        log = tmp_path / f"serve-{len(started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [QUEEN, "serve", "--port", "0", "--workers", str(workers)],
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DATABASE_URL": database, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        started.append(Serving(process, 0, log))
        started[-1].port = _port(process, log)
        return started[-1]

    yield start
    for serving in started:
        _stop(serving)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + PATIENCE
    while not (found := _URL.search(log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    return int(found[1])


def _stop(serving: Serving) -> None:
    """It must still run, and end in good order when told to."""
    died = serving.process.poll()
    serving.process.send_signal(signal.SIGTERM)
    try:
        code = serving.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        serving.process.kill()
        code = serving.process.wait()
    assert (died, code) == (None, 0), serving.log.read_text()[-3000:]
