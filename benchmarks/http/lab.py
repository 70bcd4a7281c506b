"""Where the rows are measured: a dedicated PostgreSQL, and for each row a new database and a new `queen serve`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg

from queenmq.embedded import ConnectionInfo, EmbeddedPostgres
from queenmq.storage.migrate import migrate

from ..processes import cpu_seconds

QUEEN = Path(sys.executable).parent / "queen"
START_SECONDS = 60.0
STOP_SECONDS = 15.0
_TEMPLATE = "queen_bench"


@dataclass(frozen=True, slots=True)
class Server:
    """A running `queen serve` and its database."""

    port: int
    pid: int
    dsn: str


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds since some moment."""

    server: float
    postgres: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.server - before.server, self.postgres - before.postgres)


class Lab:
    """A running PostgreSQL with durable settings, and a migrated template for databases."""

    def __init__(self, directory: Path, postgres: ConnectionInfo) -> None:
        self.directory = directory
        self._postgres = postgres
        self._numbers = itertools.count(1)

    def cpu(self, server: Server) -> Cpu:
        return Cpu(cpu_seconds(server.pid), cpu_seconds(self._postgres.postmaster_pid))

    @contextmanager
    def server(self, workers: int) -> Iterator[Server]:
        """`queen serve` with a database of its own; both are gone afterwards."""
        name = f"bench{next(self._numbers)}"
        self.admin(f"create database {name} template {_TEMPLATE}", "checkpoint")
        try:
            with self._serve(self.database(name), workers) as server:
                yield server
        finally:
            self.admin(f"drop database {name} with (force)")

    @contextmanager
    def _serve(self, dsn: str, workers: int) -> Iterator[Server]:
        log = self.directory / "serve.log"
        port = _free_port()
        with log.open("w") as output:
            process = subprocess.Popen(
                [QUEEN, "serve", "--port", str(port), "--workers", str(workers)],
                env={"PATH": os.environ["PATH"], "HOME": str(self.directory), "DATABASE_URL": dsn},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        try:
            _wait_for_health(process, port, log)
            yield Server(port, process.pid, dsn)
            if process.poll() is not None:
                raise SystemExit(f"queen serve has ended:\n{log.read_text()[-3000:]}")
        finally:
            _stop(process)

    def database(self, name: str) -> str:
        return replace(self._postgres, database=name).dsn

    def admin(self, *statements: str) -> None:
        async def work() -> None:
            connection = await asyncpg.connect(self._postgres.dsn)
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(work())


@contextmanager
def open_lab() -> Iterator[tuple[Lab, str]]:
    """The lab, and PostgreSQL's version."""
    with tempfile.TemporaryDirectory(prefix="queen-bench-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        directory.chmod(0o755)  # under root, PostgreSQL runs as another user
        with EmbeddedPostgres(directory / "data") as postgres:
            lab = Lab(directory, postgres)
            lab.admin(f"create database {_TEMPLATE}")
            yield lab, asyncio.run(migrate(lab.database(_TEMPLATE))).server_version


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_health(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as probe:
            probe.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            if b" 200 " in probe.recv(4096):
                return
        time.sleep(0.05)
    raise SystemExit(f"queen serve does not answer on port {port}:\n{log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return
