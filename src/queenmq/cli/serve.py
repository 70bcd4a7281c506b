"""`queen serve`: run the server."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from queenmq import __version__
from queenmq.cli.console import line, out, unread, warn
from queenmq.server.database import Database
from queenmq.server.kinds import redact_url
from queenmq.server.serve import Started
from queenmq.server.serve import serve as run
from queenmq.server.settings import Settings, SettingsError, default_data_dir, warnings

# What names a database, or belongs to the embedded one: `--database-url` stands in their place.
_INSTEAD_OF_URL = ("PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DB", "QUEEN_PG_BIN", "QUEEN_PG_PORT")


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[str | None, typer.Option(help="Port to listen on; 0: any free one.", show_default="6632")] = None,
    workers: Annotated[str | None, typer.Option(help="Number of worker processes.", show_default="2")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Directory for what the server keeps on disk.")] = None,
    database_url: Annotated[
        str | None,
        typer.Option(help="PostgreSQL to use. With a password in it, better set DATABASE_URL: `ps` shows options."),
    ] = None,
) -> None:
    """Start the database if none is configured, migrate it, and serve until Ctrl-C or SIGTERM.

    Options win over the settings in the environment, which `queen config` shows.
    """
    given = {
        "--host": ("QUEEN_HOST", host),
        "--port": ("PORT", port),
        "--workers": ("NUM_WORKERS", workers),
        "--data-dir": ("QUEEN_DATA_DIR", data_dir),
        "--database-url": ("DATABASE_URL", database_url),
    }
    options = {option: (name, text) for option, (name, text) in given.items() if text is not None}
    environ = _environ(options)
    run(_settings(environ, options), ready=_ready, warnings=warnings(environ))


def _environ(options: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    environ = dict(os.environ)
    if "--database-url" in options:
        for name in _INSTEAD_OF_URL:
            environ.pop(name, None)
    return environ | dict(options.values())


def _settings(environ: Mapping[str, str], options: Mapping[str, tuple[str, str]]) -> Settings:
    try:
        return Settings.from_env(environ)
    except SettingsError as error:
        for sentence in warnings(environ):  # a name that was misspelt may be what is missing
            warn(sentence)
        # Speak of what the user wrote.
        written = {name: option for option, (name, _) in options.items()}
        said = [problem.partition(" ") for problem in error.problems]
        raise SettingsError([f"{written.get(name, name)} {rest}" for name, _, rest in said]) from None


def _ready(started: Started) -> None:
    """`queen serve | head -1` has a reader that leaves; the server stays."""
    with unread():
        _announce(started)


def _announce(started: Started) -> None:
    out.print(f"[bold green]queenmq {__version__} is ready[/]")
    database = started.database
    command = _reaching(database)
    line("URL", started.url)
    line("Workers", str(started.workers))
    line("Database", f"{database.shown_dsn} (PostgreSQL {started.postgres_version})")
    if database.tcp_dsn is not None:
        line("TCP", f"{redact_url(database.tcp_dsn)} (`{command} db url` shows the password)")
    if database.data_dir is not None:
        line("Data", str(database.data_dir))
    line("SQL", f"{command} db psql")
    line("Try", _first_push_and_pop(started.url))


def _reaching(database: Database) -> str:
    """How another terminal calls `queen` for this database; its shell knows neither our options nor our settings."""
    found = shutil.which("queen")
    here = found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve()
    command = "queen" if here else shlex.quote(sys.argv[0])
    if database.data_dir is None:
        return f"DATABASE_URL={shlex.quote(database.shown_dsn)} {command}"
    if database.data_dir == default_data_dir(os.environ):
        return command
    return f"QUEEN_DATA_DIR={shlex.quote(str(database.data_dir))} {command}"


def _first_push_and_pop(url: str) -> str:
    """One line to copy into a shell."""
    item = '{"items":[{"queue":"orders","partition":"customer-42","payload":{"total":12}}]}'
    push = f"curl -s '{url}/api/v1/push' -H 'content-type: application/json' -d '{item}'"
    return f"{push} && curl -s '{url}/api/v1/pop/queue/orders?autoAck=true'"
