"""`queen pipeline`: run bulk data flows on Spark, see how they do, and stop them from anywhere.

Spark is imported only by `run`, and only after everything that can be checked without it has been: the other commands,
and every wrong command line, answer at once and also where Spark is not installed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, TypeVar

import asyncpg
import typer
from rich.table import Table
from rich.text import Text

from queenmq.cli.console import complain, out, report
from queenmq.cli.environment import settings as read_settings
from queenmq.cli.exits import Exit
from queenmq.cli.pipeline_progress import Shown
from queenmq.server.database import open_database
from queenmq.spark.errors import (
    JavaMissing,
    NotReady,
    OptionError,
    PipelineBusy,
    PipelineError,
    SparkError,
    Unreachable,
)
from queenmq.spark.pipelines import registry, window_spec
from queenmq.spark.pipelines.base import Arguments, Outcome
from queenmq.spark.places import URI
from queenmq.spark.recovery import SparkSessions
from queenmq.spark.runner import Job, Runner
from queenmq.storage import pipeline_states
from queenmq.storage.errors import SchemaMissing
from queenmq.storage.pipeline_states import Seen
from queenmq.storage.pool import connect
from queenmq.storage.url import without_password

_T = TypeVar("_T")
_POLL_SECONDS: Final = 0.5
_EXITS: Final = {
    SparkError.code: Exit.SPARK,
    JavaMissing.code: Exit.SPARK,
    OptionError.code: Exit.USAGE,
    PipelineError.code: Exit.USAGE,
    PipelineBusy.code: Exit.BUSY,
    NotReady.code: Exit.SCHEMA,
    Unreachable.code: Exit.UNREACHABLE,
}

app = typer.Typer(no_args_is_help=True, help="Run bulk data flows on Spark.")


def exit_of(error: SparkError) -> Exit:
    return _EXITS.get(error.code, Exit.PIPELINE)


@app.command("list")
def list_() -> None:
    """List the pipelines there are, and the options each takes."""
    shown = _table("Pipeline", "What it does", "Needs", "Takes")
    for each in registry.PIPELINES:
        options = [" ".join(map(registry.option, names)) for names in (each.needs, each.takes)]
        shown.add_row(each.name, each.summary, *options)
    out.print(shown)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="Which pipeline; `queen pipeline list` shows them.")],
    queue: Annotated[str | None, typer.Option(help="Queues: a name, a comma-separated list or a pattern.")] = None,
    lake: Annotated[str | None, typer.Option(help="Directory or URL of the lake.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Directory in which a stream remembers its place.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when everything there is now is done.")] = False,
    to: Annotated[str | None, typer.Option(help="Queue to write to, if not the one the messages came from.")] = None,
    from_time: Annotated[str | None, typer.Option(help="Only messages from then on: 2025-01-31T12:00:00Z.")] = None,
    to_time: Annotated[str | None, typer.Option(help="Only messages before then.")] = None,
    partition: Annotated[list[str] | None, typer.Option(help="Only this partition; may be repeated.")] = None,
    where: Annotated[str | None, typer.Option(help="Only messages for which this SQL expression is true.")] = None,
    config: Annotated[str | None, typer.Option(help="YAML file that describes the windows.")] = None,
    out_dir: Annotated[str | None, typer.Option("--out", help="Directory for reports.")] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="At most so many messages in a batch.")] = None,
    trigger: Annotated[float, typer.Option(min=0, help="Seconds from one batch to the next.")] = 5.0,
    interval: Annotated[float | None, typer.Option(min=1, help="Repeat after so many seconds.")] = None,
    label: Annotated[str | None, typer.Option(help="Tells this run from others of the same pipeline.")] = None,
    master: Annotated[str | None, typer.Option(help="Spark's master, such as local[4] or spark://host:7077.")] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="Give up after so many failures without progress.")] = 10,
    ui: Annotated[bool, typer.Option("--ui", help="Serve Spark's own web page meanwhile.")] = False,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Go on without messages that are gone, and say which.")
    ] = False,
) -> None:
    """Run a pipeline until it is done or stopped. Ctrl-C ends it after the batch under way; a second one at once."""
    pipeline = registry.find(name)
    arguments = Arguments(
        queue=queue,
        lake=_place(lake),
        checkpoint=_place(checkpoint),
        to=to,
        since=_time("--from-time", from_time),
        until=_time("--to-time", to_time),
        once=once,
        out=out_dir,
        config=config,
        where=where,
        partitions=tuple(partition or ()),
        url=os.environ.get("QUEEN_URL"),
        max_messages=max_messages,
        trigger_seconds=trigger,
        interval_seconds=interval,
        accept_data_loss=accept_data_loss,
    )
    pipeline.check(arguments)
    _need_spark()
    if config is not None:
        window_spec.load(config)
    with _database() as (dsn, shown):
        os.environ["DATABASE_URL"] = dsn  # Spark's processes read the password from there, and only from there
        label = label or queue or (Path(config).stem if config else None)
        arguments = replace(arguments, database_url=shown)
        job = Job(pipeline, arguments, shown, label=label, master=master or "", max_restarts=max_restarts)
        outcome = _run(job, SparkSessions(f"queen pipeline {job.id}", master, ui))
    _conclude(job, outcome)


def _run(job: Job, sessions: SparkSessions) -> Outcome:
    _quieten()
    try:
        with Shown(job.id) as display:
            runner = Runner(job, sessions, display)
            with _signals(runner):
                return runner.run()
    finally:
        sessions.close()


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A pipeline, or one run of it as `status` shows it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what the pipelines of this database last said of themselves."""
    with _database() as (dsn, _):
        seen = [each for each in _asked(dsn, pipeline_states.listed) if name is None or _is(each, name)]
    if as_json:
        print(json.dumps([{**each.state.to_json(), "alive": each.alive} for each in seen], indent=2))
    elif not seen:
        out.print(f"no run of {name} is known" if name else "no pipeline has run yet")
    else:
        out.print(_states(seen))


@app.command()
def stop(
    name: Annotated[str, typer.Argument(help="A pipeline, or one run of it as `status` shows it.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it has stopped.")] = 120.0,
) -> None:
    """End a pipeline, on whatever machine it runs, after the batch under way."""
    with _database() as (dsn, _):
        meant = [each for each in _asked(dsn, pipeline_states.listed) if _is(each, name)]
        if not meant:
            registry.find(name.partition(":")[0])  # of a name that was misspelt nothing runs either
        alive = [each.state.id for each in meant if each.alive]
        for id in alive:
            _asked(dsn, lambda db, id=id: pipeline_states.ask_to_stop(db, id))  # type: ignore[misc]
            report(f"asked {id} to stop")
        left = _waited(dsn, alive, timeout)
    if not alive:
        out.print(f"{name} is not running")
    for id in left:
        complain(f"{id} has not stopped within {timeout:g} s; it was asked to, and will after the batch under way")
    for id in alive:
        if id not in left:
            out.print(f"{id} has stopped")
    if left:
        raise typer.Exit(Exit.PIPELINE)


@app.command()
def release(
    queue: Annotated[str, typer.Option(help="Queues: a name, a comma-separated list or a pattern.")],
    lake: Annotated[str, typer.Option(help="Directory or URL of the lake.")],
) -> None:
    """Give up an archive for good: retention may delete what the lake does not hold."""
    _need_spark()
    from queenmq.spark.pipelines import archive

    with _database() as (dsn, shown), _migrated():
        os.environ["DATABASE_URL"] = dsn
        released = archive.release(lake=lake, queue=queue, database_url=shown)
    for each in released:
        out.print(Text(f"{each} is released"), soft_wrap=True)
    if not released:
        out.print(Text(f"no archive into {_place(lake)} holds {queue}"), soft_wrap=True)


def _waited(dsn: str, ids: list[str], timeout: float) -> list[str]:
    """Those that still run when the time is over."""
    deadline = time.monotonic() + timeout
    left = ids
    while left:
        alive = {each.state.id for each in _asked(dsn, pipeline_states.listed) if each.alive}
        left = [id for id in left if id in alive]
        if time.monotonic() >= deadline:
            break
        if left:
            time.sleep(_POLL_SECONDS)
    return left


@contextmanager
def _database() -> Iterator[tuple[str, str]]:
    """The URL of the configured or embedded database, and the same without its password."""
    with open_database(read_settings(), report) as database:
        yield database.dsn, without_password(database.dsn)[0]


def _asked(dsn: str, work: Callable[[asyncpg.Connection], Awaitable[_T]]) -> _T:
    async def asked() -> _T:
        connection = await connect(dsn)
        try:
            return await work(connection)
        finally:
            await connection.close()

    with _migrated():
        return asyncio.run(asked())


@contextmanager
def _migrated() -> Iterator[None]:
    try:
        yield
    except SchemaMissing as error:
        raise NotReady(f"the database is not ready ({error.message}); run: queen db migrate") from error


def _need_spark() -> None:
    if find_spec("pyspark") is None:
        SparkSessions("").open()  # says what is missing


def _quieten() -> None:
    """Of what is logged, only our own is for the user: PySpark shows tracebacks when its Java has gone, and Java's
    stack for an expression that is wrong."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    handler = logging.StreamHandler()
    handler.addFilter(logging.Filter("queenmq"))
    logging.basicConfig(format="%(message)s", handlers=[handler])


@contextmanager
def _signals(runner: Runner) -> Iterator[None]:
    """The first signal asks the run to stop, the second one ends this process, and with it Spark's."""

    def stopping(number: int, frame: FrameType | None) -> None:
        if runner.stop_requested():
            os._exit(Exit.INTERRUPTED)
        runner.request_stop()
        # Not through the console: the signal may have come in the middle of what that is writing.
        os.write(2, b"\nstopping after the batch under way; once more to stop at once\n")

    before: dict[signal.Signals, Any] = {}
    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, stopping)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _conclude(job: Job, outcome: Outcome) -> None:
    for line in outcome.summary:
        out.print(Text(line), soft_wrap=True)
    how = "has been stopped" if outcome.status == "stopped" else "is done"
    report(f"{job.id} {how}: {outcome.rows:,} rows")
    if outcome.status == "differences":
        raise typer.Exit(Exit.DIFFERENCES)


def _states(seen: list[Seen]) -> Table:
    shown = _table("Run", "State", "Rows", "Rows/s", "Lag", "Batch", "Started", "Where", "Last error")
    for each in seen:
        state = each.state
        gone = state.state in pipeline_states.ALIVE and not each.alive
        shown.add_row(
            Text(state.id),
            "gone" if gone else state.state,
            f"{state.rows:,}",
            "-" if state.rows_per_second is None else f"{state.rows_per_second:,.0f}",
            "-" if state.lag is None else f"{state.lag:,}",
            "-" if state.batch is None else str(state.batch),
            state.started_at,
            Text(f"{state.host} ({state.pid})"),
            Text(state.last_error or "-"),
        )
    return shown


def _table(*columns: str) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    return shown


def _is(seen: Seen, name: str) -> bool:
    return name in (seen.state.id, seen.state.pipeline)


def _place(path: str | None) -> str | None:
    """A directory by a name that means the same from everywhere; others see it in the state of the run."""
    return path if path is None or URI.match(path) else os.path.abspath(path)


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        allowed = "a time such as 2025-01-31T12:00:00Z (UTC where no zone is given)"
        raise PipelineError(f"{option} is {text!r}; it must be {allowed}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
