"""`queen serve`: run the server."""

from __future__ import annotations

import os

from queenmq import __version__
from queenmq.cli.console import line, out, report
from queenmq.server.database import Database
from queenmq.server.kinds import redact_url
from queenmq.server.serve import serve as run
from queenmq.server.settings import Settings
from queenmq.storage.migrate import MigrationReport


def serve() -> None:
    """Start the database if none is configured, migrate it, and run until Ctrl-C or SIGTERM."""
    run(Settings.from_env(os.environ), report=report, ready=_announce)


def _announce(database: Database, migrated: MigrationReport) -> None:
    out.print(f"[bold green]queenmq {__version__} is ready[/]")
    line("Database", f"{database.shown_dsn} (PostgreSQL {migrated.server_version})")
    if database.tcp_dsn is not None:
        line("TCP", f"{redact_url(database.tcp_dsn)} (`queen db url` shows the password)")
    if database.data_dir is not None:
        line("Data", str(database.data_dir))
    line("SQL", "queen db psql")
    out.print("HTTP serving is not in this version yet: use queen.messages with SQL. Stop with Ctrl-C.", soft_wrap=True)
