"""What reports over a range of time have in common, as the runner sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..connecting import arrow_reads
from ..options import read_options
from ..planning import warn_of_unknown
from .base import Arguments, Events, Outcome, Progress, Run

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

    from ..reports.files import Report


class Make(Protocol):
    """A function that writes a report into a directory."""

    def __call__(
        self,
        spark: SparkSession,
        *,
        out: str,
        database_url: str | None,
        queue: str | None,
        since: datetime | None,
        until: datetime | None,
    ) -> Report: ...


def look_for(queue: str | None, database_url: str | None) -> None:
    """A report of a queue that is not there is empty; that may be a mistake."""
    if queue is None:
        return
    given = {"queue": queue} | ({"databaseUrl": database_url} if database_url else {})
    options = read_options(given)
    with arrow_reads(options.database_url) as cursor:
        warn_of_unknown(cursor, options.queues, "the report has nothing of it")


def run_of(make: Make, counted: str) -> Run:
    """How the runner makes it; `counted` says what its rows are."""

    def run(spark: SparkSession, arguments: Arguments, events: Events) -> Outcome:
        assert arguments.out is not None
        look_for(arguments.queue, arguments.database_url)
        report = make(
            spark,
            out=arguments.out,
            database_url=arguments.database_url,
            queue=arguments.queue,
            since=arguments.since,
            until=arguments.until,
        )
        events.progress(Progress(report.rows))
        return Outcome(report.rows, (f"{report.rows} {counted} in {report.path_table}", f"report: {report.path_html}"))

    return run
