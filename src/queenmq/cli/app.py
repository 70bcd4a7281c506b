"""The `queen` command: its subcommands, and the one place where failures become a sentence and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from queenmq import __version__
from queenmq.cli import db, pipeline
from queenmq.cli.config import config
from queenmq.cli.console import complain
from queenmq.cli.exits import Exit
from queenmq.cli.serve import serve
from queenmq.embedded import EmbeddedPostgresError
from queenmq.server.listening import ListenError
from queenmq.server.settings import SettingsError
from queenmq.server.supervisor import WorkersFailed
from queenmq.spark.errors import SparkError
from queenmq.storage.errors import AccessRefused, DatabaseUnavailable, SchemaChanged, SchemaNewer, StorageError

app = typer.Typer(
    name="queen",
    help="A partitioned FIFO message queue on PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(config)
app.add_typer(db.app, name="db")
app.add_typer(pipeline.app, name="pipeline")


_STORAGE_EXITS = {
    DatabaseUnavailable.code: Exit.UNREACHABLE,
    AccessRefused.code: Exit.UNREACHABLE,
    SchemaNewer.code: Exit.SCHEMA,
    SchemaChanged.code: Exit.SCHEMA,
}


def _version(wanted: bool) -> None:
    if wanted:
        print(f"queen {__version__}")
        raise typer.Exit


@app.callback()
def queen(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A partitioned FIFO message queue on PostgreSQL."""


def main() -> None:
    """Run `queen`. An expected failure is one sentence on stderr and an exit code; anything else is a defect."""
    try:
        app()
    except SettingsError as error:
        for problem in error.problems:
            complain(problem)
        sys.exit(Exit.USAGE)
    except ListenError as error:
        complain(str(error))
        sys.exit(Exit.LISTEN)
    except WorkersFailed as error:
        complain(str(error))
        sys.exit(Exit.UNEXPECTED)
    except EmbeddedPostgresError as error:
        complain(str(error))
        sys.exit(Exit.EMBEDDED)
    except StorageError as error:
        complain(error.message)
        sys.exit(_STORAGE_EXITS.get(error.code, Exit.DATABASE))
    except SparkError as error:
        complain(error.message)
        sys.exit(pipeline.exit_of(error))
