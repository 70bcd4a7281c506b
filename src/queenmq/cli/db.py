"""`queen db`: look after the schema, and reach the database with psql.

Without a configured database these commands work on the embedded one: they attach to it when a server is running, and
otherwise start it for as long as the command takes.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from queenmq.cli.console import complain, out, report
from queenmq.cli.environment import settings as read_settings
from queenmq.cli.exits import Exit
from queenmq.cli.psql import run_psql
from queenmq.server.database import open_database
from queenmq.server.sweep import sweep as sweep_once
from queenmq.sql import VERSION
from queenmq.storage.migrate import check as check_schema
from queenmq.storage.migrate import migrate as migrate_schema
from queenmq.storage.migrate import status as schema_status
from queenmq.storage.schema_state import MigrationState

_PSQL_EXITS = {0: Exit.OK, 2: Exit.UNREACHABLE}

app = typer.Typer(no_args_is_help=True, help="Look after the database.")


@app.command()
def migrate(
    replace_procedures: Annotated[
        bool, typer.Option("--replace-procedures", help="Also replace those of another build of this version.")
    ] = False,
) -> None:
    """Apply the migrations that the database does not have yet, also the long ones that run beside traffic."""
    settings = read_settings()
    with open_database(settings, report) as database:
        done = asyncio.run(
            migrate_schema(
                database.dsn,
                lock_timeout_ms=settings.migration_lock_timeout,
                connect_timeout=settings.connect_timeout,
                pgbouncer=settings.pgbouncer,
                report=report,
                replace_procedures=replace_procedures or None,
            ),
        )
    changes = [*done.applied, *(["procedures"] if done.procedures_replaced else [])]
    out.print(f"applied {', '.join(changes)}" if changes else "nothing to apply")


@app.command()
def status() -> None:
    """List the migrations and whether the database has them, with the version of the code that applied each."""
    settings = read_settings()
    with open_database(settings, report) as database:
        states = asyncio.run(
            schema_status(database.dsn, connect_timeout=settings.connect_timeout, pgbouncer=settings.pgbouncer)
        )
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Number", "Name", "State", "Version", "Requires", "Steps", "Applied at"):
        shown.add_column(column, overflow="fold")
    for each in states:
        shown.add_row(*_cells(each))
    out.print(shown)
    out.print(f"this code has version {VERSION}")


def _cells(each: MigrationState) -> tuple[str | Text, ...]:
    applied = "-" if each.applied_at is None else each.applied_at.isoformat(sep=" ", timespec="seconds")
    version = "-" if each.applied_at is None else str(each.version)
    requires = "-" if each.requires is None else str(each.requires)
    steps = "-" if each.steps is None else f"{each.steps[0]}/{each.steps[1]}"
    number = "-" if each.number < 0 else str(each.number)
    return number, Text(each.name), each.state, version, requires, steps, applied


@app.command()
def check() -> None:
    """Look for inconsistencies in the schema and the data. Prints nothing but "ok" when there are none."""
    settings = read_settings()
    with open_database(settings, report) as database:
        problems = asyncio.run(
            check_schema(database.dsn, connect_timeout=settings.connect_timeout, pgbouncer=settings.pgbouncer)
        )
    for problem in problems:
        complain(f"{problem.check}: {problem.subject}: {problem.detail}")
    if problems:
        raise typer.Exit(Exit.PROBLEMS)
    out.print("ok")


@app.command()
def sweep() -> None:
    """Remove what is no longer kept, once: expired messages, overdue ones, idle partitions, leftovers, old metrics."""
    settings = read_settings()
    with open_database(settings, report) as database:
        removed = asyncio.run(sweep_once(settings, database.dsn, report))
    shown = Table(box=None, pad_edge=False, show_header=False)
    for each in removed:
        shown.add_row(f"{each.count:,}", each.what)
    out.print(shown)


@app.command()
def url() -> None:
    """Print the database's URL, with its password, for other programs: over TCP where QUEEN_PG_PORT is set."""
    with open_database(read_settings(), report) as database:
        print(database.tcp_dsn or database.dsn)


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def psql(
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed on to psql, for example -c 'SELECT 1'.")] = None,
) -> None:
    """Open psql on the database."""
    settings = read_settings()
    with open_database(settings, report) as database:
        code = run_psql(database.dsn, arguments or [], bin_dir=settings.embedded_bin)
    raise typer.Exit(_PSQL_EXITS.get(code, Exit.DATABASE))
