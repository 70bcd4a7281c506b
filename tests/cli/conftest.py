"""Runs the installed `queen` as its users do: as a process of its own, with an environment of its own."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests import children
from tests.children import QUEEN

DEADLINE = 90


class Queen(Protocol):
    """Runs `queen` with arguments; keywords are environment variables."""

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]: ...


class StartQueen(Protocol):
    """Starts `queen` with arguments and does not wait for it."""

    def __call__(self, *arguments: str, **environment: str) -> subprocess.Popen[str]: ...


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty data directory. Its parents are open to the unprivileged user that PostgreSQL runs as under root."""
    with tempfile.TemporaryDirectory(prefix="queen-", ignore_cleanup_errors=True) as made:
        parent = Path(made)
        parent.chmod(0o755)
        yield parent / "data"


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A bare environment: nothing of the machine's or the developer's settings shines through."""
    return children.environment(tmp_path)


@pytest.fixture
def queen(environment: dict[str, str]) -> Queen:
    def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [QUEEN, *arguments],
            env={**environment, **settings},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    return run


@pytest.fixture
def start_queen(environment: dict[str, str]) -> Iterator[StartQueen]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **settings: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [QUEEN, *arguments],
            env={**environment, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=DEADLINE)
