"""Reports dead letters, grouped by the shape of their error: how many, since when, of whom.

Payloads are not even read. Examples are named by their transaction ids, with which a message can be looked up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from ..datasets import read_dataset
from ..reports import words
from ..reports.files import Report, directory, write_csv, write_parquet, write_text
from ..reports.page import Column, Page
from ..reports.plots import COLOURS, bars, timeline
from ..reports.shapes import shape
from .base import Run
from .reporting import run_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MOST_ROWS: Final = 10_000
_SHOWN: Final = 100
_BARS: Final = 15
_BUCKETS: Final = 60
_SHAPES: Final = len(COLOURS) - 1
_COLUMNS: Final = (
    "queue STRING, consumer_group STRING, transaction_id STRING, error_message STRING, "
    "retry_count INT, failed_at TIMESTAMP"
)
# Widths of a histogram's bars that people can count by.
_WIDTHS: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
)


@dataclass(frozen=True, slots=True)
class _Timeline:
    """Dead letters over time: (start of the bar, shape, how many)."""

    width: timedelta
    bars: list[tuple[datetime, str, int]]


def dlq_report(
    spark: SparkSession,
    *,
    out: str | Path,
    database_url: str | None = None,
    queue: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Report:
    """Write `dlq-report.parquet` (a row for each shape, queue and group), `.csv` and `.html` into `out`."""
    folder = directory(out)
    raw = read_dataset(
        spark, "dead_letters", database_url=database_url, queue=queue, since=since, until=until, schema=_COLUMNS
    )
    shaped = F.udf(shape, "string", useArrow=True)("error_message")
    letters = raw.withColumn("shape", shaped).drop("error_message").cache()
    try:
        table = _grouped(letters).toArrow()
        when = _over_time(letters, table)
    finally:
        letters.unpersist()
    write_parquet(folder / "dlq-report.parquet" / "shapes.parquet", table)
    write_csv(folder / "dlq-report.csv", table)
    page = _page(table.to_pylist(), when, "all queues" if queue is None else f"queue {queue}")
    write_text(folder / "dlq-report.html", page.html())
    return Report(folder / "dlq-report.html", folder / "dlq-report.parquet", folder / "dlq-report.csv", table.num_rows)


run: Final[Run] = run_of(dlq_report, "kinds of errors")


def _grouped(letters: DataFrame) -> DataFrame:
    found = letters.groupBy("shape", "queue", "consumer_group").agg(
        F.count("*").alias("dead_letters"),
        F.min("failed_at").alias("first_seen"),
        F.max("failed_at").alias("last_seen"),
        F.max("retry_count").alias("most_retries"),
        F.min_by("transaction_id", "failed_at").alias("first_transaction_id"),
        F.max_by("transaction_id", "failed_at").alias("last_transaction_id"),
    )
    return found.orderBy(F.desc("dead_letters"), "shape", "queue", "consumer_group").limit(MOST_ROWS)


def _over_time(letters: DataFrame, table: pa.Table) -> _Timeline:
    rows = table.to_pylist()
    if not rows:
        return _Timeline(_WIDTHS[0], [])
    first, last = min(row["first_seen"] for row in rows), max(row["last_seen"] for row in rows)
    width = bar_width(last - first)
    top = [name for name, _ in _totals(rows, "shape")[:_SHAPES]]
    seconds = int(width.total_seconds())
    start = (F.floor(F.unix_seconds("failed_at") / seconds) * seconds).alias("start")
    name = F.when(F.col("shape").isin(top), F.col("shape")).otherwise("others").alias("name")
    counted = letters.groupBy(start, name).agg(F.count("*").alias("n")).orderBy("start").collect()
    return _Timeline(width, [(datetime.fromtimestamp(row["start"], UTC), row["name"], row["n"]) for row in counted])


def bar_width(span: timedelta) -> timedelta:
    """The narrowest bars of which not too many cover the span."""
    return next((width for width in _WIDTHS if span / width <= _BUCKETS), _WIDTHS[-1])


def _totals(rows: Iterable[Any], *names: str) -> list[tuple[str, int]]:
    """How many dead letters there are by these columns, the most first."""
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        found[" · ".join(row[name] for name in names)] += row["dead_letters"]
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def _page(rows: Sequence[Any], when: _Timeline, subtitle: str) -> Page:
    page = Page("Dead letters", subtitle)
    shapes = _totals(rows, "shape")
    page.facts(
        [
            ("dead letters", words.count(sum(row["dead_letters"] for row in rows))),
            ("kinds of errors", words.count(len(shapes))),
            ("queues", words.count(len({row["queue"] for row in rows}))),
            ("last failure, UTC", words.moment(max((row["last_seen"] for row in rows), default=None))),
        ]
    )
    if not rows:
        page.paragraph("There are no dead letters.")
        return page
    _draw(page, rows, when, [name for name, _ in shapes])
    page.heading("By error")
    page.table(_TABLE, [[row[name] for name in _NAMES] for row in rows[:_SHOWN]])
    if len(rows) > _SHOWN:
        page.paragraph(f"{words.count(len(rows) - _SHOWN)} more rows are in the table beside this page.")
    return page


def _draw(page: Page, rows: Sequence[Any], when: _Timeline, order: Sequence[str]) -> None:
    stacks: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for name in [*(name for name in order if any(name == each for _, each, _ in when.bars)), "others"]:
        stacks[name] = [(start, float(n)) for start, each, n in when.bars if each == name]
    page.heading("When they failed")
    caption = f"Dead letters by the time of their failure, {words.span(when.width.total_seconds())} a bar."
    drawn = {name: points for name, points in stacks.items() if points}
    page.figure(timeline("Dead letters over time", when.width, drawn, "dead letters"), caption)
    page.heading("By queue and group")
    totals = [(name, float(n)) for name, n in _totals(rows, "queue", "consumer_group")[:_BARS]]
    page.figure(bars("By queue and group", totals, "dead letters", words.count), "Queue · consumer group.")


_NAMES: Final = (
    *("shape", "queue", "consumer_group", "dead_letters", "first_seen", "last_seen"),
    *("most_retries", "first_transaction_id", "last_transaction_id"),
)
_TABLE: Final = (
    Column("Error"),
    Column("Queue"),
    Column("Group"),
    Column("Dead letters", words.count, True),
    Column("First", words.moment),
    Column("Last", words.moment),
    Column("Retries", words.count, True),
    Column("First transactionId"),
    Column("Last transactionId"),
)
