"""Killing PostgreSQL so that it forgets as much as it can: at once, and with a log writer that has written nothing.

What PostgreSQL has not yet handed to the system dies with its processes. That is only what was committed lazily since
the last commit that had to be on disk: normally the log writer brings it there five times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import asyncpg

from queenmq.embedded import processes
from tests.proof.books import Crash

PATIENCE = 60.0
# What a connection may end with when its server is killed, and an attempt to connect before the next one is ready.
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
)


class Cluster:
    """The processes of an embedded PostgreSQL."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "postgres"

    def freeze_log_writer(self) -> None:
        """From now on, only a commit that waits for the disk brings the log there."""
        (pid,) = [pid for pid in processes.of_cluster(self._directory) if "walwriter" in _title(pid)]
        os.kill(pid, signal.SIGSTOP)

    def kill(self) -> Crash:
        """End all processes with SIGKILL, the postmaster first: it would end the others in its own way."""
        running = processes.of_cluster(self._directory)
        postmaster = int((self._directory / "postmaster.pid").read_text().split()[0])
        assert postmaster in running
        began = time.monotonic()
        os.kill(postmaster, signal.SIGKILL)
        while running:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            running = processes.of_cluster(self._directory)
        return began, time.monotonic()


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Reader:
    """Looks into a database that is away now and then."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    if self._connection is None:
                        self._connection = await asyncpg.connect(self._dsn)
                    return list(await self._connection.fetch(query, *arguments))
                except _AWAY:
                    self.close()
                    await asyncio.sleep(0.05)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
