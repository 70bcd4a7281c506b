"""Where the rows are measured: a dedicated PostgreSQL, and for each row a new database and new `queen serve`s."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

import asyncpg

import queenmq
from queenmq.embedded import ConnectionInfo, EmbeddedPostgres
from queenmq.storage.migrate import migrate

from .processes import cpu_seconds

QUEEN = Path(sys.executable).parent / "queen"
_SOURCE = Path(queenmq.__file__).parents[1]
"""Servers run the code that this process has imported, whatever is installed."""
START_SECONDS = 60.0
STOP_SECONDS = 15.0
_TEMPLATE = "queen_bench"
_SECRET = "5e" * 32


@dataclass(frozen=True, slots=True)
class Server:
    """A running `queen serve` and its database."""

    port: int
    pid: int
    dsn: str
    database: str


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

    @property
    def statistics(self) -> str:
        """The database from which statements are counted: no server uses it."""
        return self._postgres.dsn

    @contextmanager
    def server(self, workers: int, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
        """`queen serve` with a database of its own; both are gone afterwards."""
        with self.servers(workers, [environment]) as (server,):
            yield server

    @contextmanager
    def servers(self, workers: int, environments: Sequence[Mapping[str, str]]) -> Iterator[list[Server]]:
        """As many on one database, each with its own environment. Those who have peers know of each other."""
        name = f"bench{next(self._numbers)}"
        self.admin(f"create database {name} template {_TEMPLATE}", "checkpoint")
        try:
            with ExitStack() as stack:
                started = [
                    stack.enter_context(self._serve(name, number, workers, environment))
                    for number, environment in enumerate(environments)
                ]
                for server, environment in zip(started, environments, strict=True):
                    if "QUEEN_UDP_PEERS" in environment:
                        _wait_for_peers(server.port, len(started) - 1)
                yield started
        finally:
            self.admin(f"drop database {name} with (force)")

    @contextmanager
    def _serve(self, database: str, number: int, workers: int, environment: Mapping[str, str]) -> Iterator[Server]:
        log = self.directory / f"serve{number}.log"
        port = free_port()
        dsn = self.database(database)
        basics = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "PYTHONPATH": str(_SOURCE),
            "DATABASE_URL": dsn,
        }
        with log.open("w") as output:
            process = subprocess.Popen(
                [QUEEN, "serve", "--port", str(port), "--workers", str(workers)],
                env={**basics, **environment},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        try:
            _wait_for_health(process, port, log)
            yield Server(port, process.pid, dsn, database)
            if process.poll() is not None:
                raise SystemExit(f"queen serve has ended:\n{log.read_text()[-3000:]}")
        finally:
            _stop(process)

    def database(self, name: str) -> str:
        return replace(self._postgres, database=name).dsn

    def make_database(self, name: str) -> str:
        """The URL of a new database without messages; it is there until the lab closes."""
        self.admin(f"create database {name} template {_TEMPLATE}")
        return self.database(name)

    def for_jdbc(self, dsn: str) -> dict[str, str]:
        """The same database for Java, which knows no Unix sockets, in a lab with TCP."""
        found = urlsplit(self._postgres.tcp_dsn or "")
        url = f"jdbc:postgresql://{found.hostname}:{found.port}{urlsplit(dsn).path}"
        return {"url": url, "user": found.username or "", "password": unquote(found.password or "")}

    def admin(self, *statements: str) -> None:
        self.run(self._postgres.dsn, *statements)

    def run(self, dsn: str, *statements: str) -> None:
        """As the database's owner, one after the other."""

        async def work() -> None:
            connection = await asyncpg.connect(dsn)
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(work())


@contextmanager
def open_lab(*, count_statements: bool = False, tcp: bool = False) -> Iterator[tuple[Lab, str]]:
    """The lab, and PostgreSQL's version. Counting statements costs PostgreSQL a little CPU."""
    settings = {"shared_preload_libraries": "pg_stat_statements"} if count_statements else {}
    with tempfile.TemporaryDirectory(prefix="queen-bench-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        directory.chmod(0o755)  # under root, PostgreSQL runs as another user
        with EmbeddedPostgres(directory / "data", port=free_port() if tcp else None, settings=settings) as postgres:
            lab = Lab(directory, postgres)
            lab.admin(f"create database {_TEMPLATE}")
            if count_statements:
                lab.admin("create extension pg_stat_statements")
            yield lab, asyncio.run(migrate(lab.database(_TEMPLATE))).server_version


def peers(count: int) -> list[dict[str, str]]:
    """The environments of servers that tell each other what happens, over the loopback."""
    ports = [free_port(socket.SOCK_DGRAM) for _ in range(count)]
    shared = {"QUEEN_UDP_PEERS": ",".join(f"127.0.0.1:{port}" for port in ports), "QUEEN_SYNC_SECRET": _SECRET}
    return [
        shared | {"QUEEN_UDP_NOTIFY_PORT": str(port), "QUEEN_SERVER_ID": f"bench-{number}"}
        for number, port in enumerate(ports)
    ]


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
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


def _wait_for_peers(port: int, others: int) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/internal/api/shared-state/stats")
        stats = json.load(connection.getresponse())
        connection.close()
        if stats.get("server_health", {}).get("servers_alive") == others:
            return
        time.sleep(0.05)
    raise SystemExit(f"the server on port {port} does not hear the others")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return
