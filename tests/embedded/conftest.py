"""Fixtures: directories that other users can reach, managers that are stopped at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from queenmq.embedded import EmbeddedPostgres
from tests.embedded.manager_process import ManagerProcess

collect_ignore = [] if os.geteuid() == 0 else ["test_root.py"]


class MakeManager(Protocol):
    def __call__(
        self,
        data_dir: Path,
        *,
        bin_dir: Path | None = None,
        port: int | None = None,
        report: Callable[[str], None] = ...,
        settings: Mapping[str, str] = ...,
    ) -> EmbeddedPostgres: ...


def roomy_memory() -> str | None:
    """Clusters are many small files: in memory, where there is plenty of it, they come and go five times as fast."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30 else None


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """pytest's own directories are closed to other users, as a root's home is; this one is open."""
    directory = Path(tempfile.mkdtemp(prefix="queen-test-", dir=roomy_memory()))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def data_dir(public_dir: Path) -> Path:
    return public_dir / "data"


@pytest.fixture(scope="session")
def template_dir() -> Iterator[Path]:
    """A data directory with a new cluster, made once."""
    directory = Path(tempfile.mkdtemp(prefix="queen-test-template-", dir=roomy_memory()))
    with EmbeddedPostgres(directory):
        pass
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def made_dir(data_dir: Path, template_dir: Path) -> Path:
    """A data directory that already has a cluster."""
    data_dir.mkdir()
    subprocess.run(["cp", "-a", str(template_dir / "postgres"), str(data_dir)], check=True)
    return data_dir


@pytest.fixture
def manager() -> Iterator[MakeManager]:
    with ExitStack() as stack:

        def make(
            data_dir: Path,
            *,
            bin_dir: Path | None = None,
            port: int | None = None,
            report: Callable[[str], None] = print,
            settings: Mapping[str, str] | None = None,
        ) -> EmbeddedPostgres:
            made = EmbeddedPostgres(data_dir, bin_dir=bin_dir, port=port, report=report, settings=settings or {})
            stack.callback(made.stop)
            return made

        yield make


@pytest.fixture
def manager_process() -> Iterator[Callable[..., ManagerProcess]]:
    """Managers in processes of their own, for the tests that kill them."""
    with ExitStack() as stack:

        def start(data_dir: Path, **options: Any) -> ManagerProcess:
            started = ManagerProcess(data_dir, **options)
            stack.callback(started.close)
            return started

        yield start
