"""Reports how far consumer groups are behind, over time.

Lag is known for the present only, so each run takes a sample and adds it to a table, one Parquet file a day, from which
the report draws its lines: run it from a timer, or let it take samples at an interval. Where roll-ups of metrics hold
how long messages waited, they are shown as well.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from ...storage import analytics
from ..connecting import call
from ..datasets import read_dataset
from ..options import read_options
from ..reports import words
from ..reports.files import Report, directory, write_csv, write_parquet, write_text
from ..reports.page import Column, Page
from ..reports.plots import COLOURS, Series, lines
from .base import Arguments, Events, Outcome, Progress
from .reporting import look_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

KEPT: Final = timedelta(days=30)
SHOWN: Final = timedelta(days=7)
WORST: Final = 50
_POINTS: Final = 400
_LOOK_SECONDS: Final = 0.25
_GROUP: Final = ("consumer_group", "queue")


@dataclass(frozen=True, slots=True)
class _Sample:
    """The groups now, and their partitions that are furthest behind."""

    groups: pa.Table
    worst: list[Any]


def lag(
    spark: SparkSession,
    *,
    out: str | Path,
    database_url: str | None = None,
    queue: str | None = None,
    now: datetime | None = None,
) -> Report:
    """Take a sample, add it to `<out>/lag.parquet`, and write `lag.html` and `lag.csv` (the sample) beside it."""
    moment = now or datetime.now(UTC)
    folder = directory(out)
    sample = _sample(spark, database_url, queue, moment)
    table = folder / "lag.parquet"
    _append(table, sample.groups, moment)
    write_csv(folder / "lag.csv", sample.groups)
    history = _history(table, moment, None if queue is None else sample.groups)
    waits = _waits(database_url, moment, None if queue is None else sample.groups)
    write_text(folder / "lag.html", _page(sample, history, waits, queue).html(moment))
    return Report(folder / "lag.html", table, folder / "lag.csv", sample.groups.num_rows)


def run(spark: SparkSession, arguments: Arguments, events: Events) -> Outcome:
    """Once, or at the interval until it is stopped."""
    rows = 0
    look_for(arguments.queue, arguments.database_url)
    while True:
        assert arguments.out is not None
        report = lag(spark, out=arguments.out, database_url=arguments.database_url, queue=arguments.queue)
        rows += report.rows
        events.progress(Progress(rows))
        stopped = arguments.interval_seconds is not None and _stopped(events, arguments.interval_seconds)
        if stopped or arguments.interval_seconds is None:
            summary = (f"{report.rows} groups in {report.path_table}", f"report: {report.path_html}")
            return Outcome(rows, summary, "stopped" if stopped else "finished")


def _stopped(events: Events, seconds: float) -> bool:
    """Wait for the next sample; True when somebody wants no more."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if events.stop_requested():
            return True
        time.sleep(min(_LOOK_SECONDS, max(0.0, until - time.monotonic())))
    return events.stop_requested()


def _sample(spark: SparkSession, database_url: str | None, queue: str | None, now: datetime) -> _Sample:
    cursors = read_dataset(spark, "lag", database_url=database_url, queue=queue).cache()
    try:
        groups = cursors.groupBy(*_GROUP).agg(
            F.count("*").alias("partitions"),
            F.count_if(F.col("lag") > 0).alias("lagging_partitions"),
            F.sum("lag").alias("lag"),
            F.max("lag_seconds").alias("lag_seconds"),
            F.max("last_consumed_at").alias("last_consumed_at"),
            F.sum("consumed").alias("consumed"),
        )
        found = groups.select(F.lit(now).alias("sampled_at"), "*").orderBy(*_GROUP).toArrow()
        worst = (
            cursors.where("lag > 0").orderBy(F.desc("lag_seconds"), F.desc("lag"), *_GROUP, "partition").limit(WORST)
        )
        return _Sample(found, worst.toArrow().to_pylist())
    finally:
        cursors.unpersist()


def _append(table: Path, sample: pa.Table, now: datetime) -> None:
    """Into the file of the day. Files of days that are kept no longer go."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = table / f"{now.astimezone(UTC).date().isoformat()}.parquet"
    before = [pq.read_table(file, partitioning=None)] if file.exists() else []
    write_parquet(file, pa.concat_tables([*before, sample], promote_options="permissive"))
    for old in _days(table):
        if date.fromisoformat(old.stem) < (now - KEPT).astimezone(UTC).date():
            old.unlink(missing_ok=True)


def _days(table: Path) -> list[Path]:
    return sorted(table.glob("[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].parquet"))


def _history(table: Path, now: datetime, only: pa.Table | None) -> list[Mapping[str, Any]]:
    """The samples to be shown, the oldest first; of the queues in `only`, if there is one."""
    import pyarrow.parquet as pq

    first = (now - SHOWN).astimezone(UTC)
    queues = None if only is None else set(only.column("queue").to_pylist())
    rows: list[Mapping[str, Any]] = []
    for file in _days(table):
        if date.fromisoformat(file.stem) >= first.date():
            rows += pq.read_table(file, partitioning=None).to_pylist()
    chosen = [row for row in rows if row["sampled_at"] >= first and (queues is None or row["queue"] in queues)]
    return sorted(chosen, key=lambda row: row["sampled_at"])


def _waits(database_url: str | None, now: datetime, only: pa.Table | None) -> dict[str, Series]:
    """How long messages waited, by queue, where roll-ups know it."""
    url = read_options({"dataset": "lag"} | ({"databaseUrl": database_url} if database_url else {})).database_url
    queues = None if only is None else set(only.column("queue").to_pylist())
    found: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for at, queue, seconds in reversed(call(url, lambda connection: analytics.rolled_lag(connection, now - SHOWN))):
        if queues is None or queue in queues:
            found[queue].append((at, seconds))
    return _largest(found)


def _largest(series: Mapping[str, Series]) -> dict[str, Series]:
    """As many lines as there are colours: those that rise highest, each thinned to what a plot can show."""
    order = sorted(series, key=lambda name: (-max(value for _, value in series[name]), name))
    return {name: thinned(series[name], _POINTS) for name in order[: len(COLOURS)]}


def thinned(points: Series, most: int) -> Series:
    """At most so many points: of neighbours that share a place, the highest."""
    if len(points) <= most:
        return points
    step = -(-len(points) // most)
    return [max(points[at : at + step], key=lambda point: point[1]) for at in range(0, len(points), step)]


def _page(sample: _Sample, history: Iterable[Mapping[str, Any]], waits: dict[str, Series], queue: str | None) -> Page:
    groups = sorted(
        sample.groups.to_pylist(), key=lambda row: (-row["lag_seconds"], -row["lag"], row["consumer_group"])
    )
    page = Page("Consumer lag", "all queues" if queue is None else f"queue {queue}")
    page.facts(
        [
            ("groups", words.count(len(groups))),
            ("messages behind, all groups", words.count(sum(row["lag"] for row in groups))),
            ("longest behind", words.span(max((row["lag_seconds"] for row in groups), default=0.0))),
            ("partitions with lag", words.count(sum(row["lagging_partitions"] for row in groups))),
        ]
    )
    _draw(page, history, waits)
    page.heading("Groups now")
    page.table(_GROUP_COLUMNS, [[row[name] for name in _GROUP_NAMES] for row in groups[:WORST]])
    page.heading("Partitions furthest behind")
    if sample.worst:
        page.table(_WORST_COLUMNS, [[row[name] for name in _WORST_NAMES] for row in sample.worst])
    else:
        page.paragraph("No partition is behind.")
    return page


def _draw(page: Page, history: Iterable[Mapping[str, Any]], waits: dict[str, Series]) -> None:
    messages: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    seconds: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for row in history:
        name = f"{row['consumer_group']} · {row['queue']}"
        messages[name].append((row["sampled_at"], float(row["lag"])))
        seconds[name].append((row["sampled_at"], row["lag_seconds"]))
    page.heading("Lag over time")
    if not messages:
        page.paragraph("No group has registered yet.")
        return
    page.figure(lines("Messages behind", _largest(messages), "messages behind"), "Messages behind, by group and queue.")
    page.figure(lines("Seconds behind", _largest(seconds), "seconds behind"), "Age of the oldest message not consumed.")
    if waits:
        caption = "Longest wait of a message before it was taken, by the hour, as consumers measured it."
        page.figure(lines("Longest wait", waits, "seconds"), caption)


_GROUP_NAMES: Final = (*_GROUP, "partitions", "lagging_partitions", "lag", "lag_seconds", "last_consumed_at")
_GROUP_COLUMNS: Final = (
    Column("Group"),
    Column("Queue"),
    Column("Partitions", words.count, True),
    Column("With lag", words.count, True),
    Column("Messages behind", words.count, True),
    Column("Behind", words.span, True),
    Column("Last consumed", words.moment),
)
_WORST_NAMES: Final = (*_GROUP, "partition", "lag", "lag_seconds", "oldest_unconsumed_at", "last_consumed_at")
_WORST_COLUMNS: Final = (
    Column("Group"),
    Column("Queue"),
    Column("Partition"),
    Column("Messages behind", words.count, True),
    Column("Behind", words.span, True),
    Column("Oldest message", words.moment),
    Column("Last consumed", words.moment),
)
