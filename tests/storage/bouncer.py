"""A real PgBouncer in transaction mode in front of a test's database, where the program is installed."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
POOL_SIZE = 3


def version() -> tuple[int, int]:
    """(0, 0) where there is none."""
    if PROGRAM is None:
        return (0, 0)
    text = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


TRACKS = version() >= (1, 21)
"""Can it keep track of prepared statements?"""


@contextmanager
def bouncing(dsn: str, **settings: object) -> Iterator[str]:
    """The URL of the same database through a PgBouncer of its own, with fewer sessions than a pool has connections."""
    assert PROGRAM is not None
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    host = parts.hostname or query["host"][0]
    port = parts.port or query.get("port", ["5432"])[0]
    folder = Path(tempfile.mkdtemp(prefix="bouncer-", dir="/tmp"))
    (folder / "users").write_text(f'"{parts.username}" "{parts.password or ""}"\n')
    options = {
        "unix_socket_dir": folder,
        "listen_port": 6432,
        "auth_type": "trust",
        "auth_file": folder / "users",
        "pool_mode": "transaction",
        "default_pool_size": POOL_SIZE,
        **({"max_prepared_statements": 200} if TRACKS else {}),
        **settings,
    }
    lines = ["[databases]", f"* = host={host} port={port}", "[pgbouncer]", *(f"{k} = {v}" for k, v in options.items())]
    (folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    command = [PROGRAM, str(folder / "pgbouncer.ini")]
    if os.getuid() == 0:  # it refuses root, and the embedded server's socket is for its owner alone
        owner = pwd.getpwuid(os.stat(host).st_uid).pw_name if host.startswith("/") else "nobody"
        command[1:1] = ["-u", owner]
        shutil.chown(folder, owner)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        _await_socket(folder / ".s.PGSQL.6432", process, folder / "log")
        yield f"postgresql://{parts.username}@{parts.path}?host={quote(str(folder), safe='')}&port=6432"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _await_socket(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    with socket.socket(socket.AF_UNIX) as probe:
        while probe.connect_ex(str(path)) != 0:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)


async def run(dsn: str, *statements: str) -> None:
    """On a plain connection, one after another."""
    connection = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
