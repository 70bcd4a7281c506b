"""Runs psql: the one beside the embedded PostgreSQL, which is always there, so that nothing has to be installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from queenmq.embedded import binaries
from queenmq.storage.url import without_password


def run_psql(dsn: str, arguments: list[str], *, bin_dir: Path | None) -> int:
    """Run psql on the database until it ends, and return its exit code."""
    # Everyone on the machine can read a command line, so the password must not stand in it.
    shown, password = without_password(dsn)
    environment = os.environ if password is None else {**os.environ, "PGPASSWORD": password}
    # Ctrl-C is for psql, where it cancels a query. A handler, unlike SIG_IGN, is not inherited by psql.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        command = [_find_psql(bin_dir), "--no-psqlrc", shown, *arguments]
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def _find_psql(bin_dir: Path | None) -> str:
    beside = binaries.find(bin_dir).bin_dir
    return shutil.which("psql", path=str(beside)) or "psql"
