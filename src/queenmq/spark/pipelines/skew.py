"""Reports the hottest partitions, and the queues whose messages are spread most unevenly over theirs.

Only messages of a range of time count, by default the last hour. Unevenness is told by the Gini coefficient (0: all
partitions alike, 1: one has everything), the coefficient of variation, and the share of the busiest partitions. Idle
partitions belong to the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from ..datasets import read_dataset
from ..errors import OptionError
from ..reports import words
from ..reports.files import Report, directory, write_csv, write_parquet, write_text
from ..reports.page import Column, Page
from ..reports.plots import bars
from .base import Run
from .reporting import run_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE: Final = timedelta(hours=1)
TOP: Final = 10
_SHOWN: Final = 25
_BARS: Final = 15


def skew(
    spark: SparkSession,
    *,
    out: str | Path,
    database_url: str | None = None,
    queue: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Report:
    """Write `skew.parquet` (a row for each partition), `skew_queues.parquet`, `skew.csv` and `skew.html` into `out`."""
    end = until or datetime.now(UTC)
    begin = since or end - RANGE
    if begin >= end:
        raise OptionError("from-time", begin.isoformat(), f"before {end.isoformat()}")
    folder = directory(out)
    raw = read_dataset(spark, "partitions", database_url=database_url, queue=queue, since=begin, until=end)
    partitions = _partitions(raw, (end - begin).total_seconds()).cache()
    try:
        table = partitions.orderBy(F.desc("messages"), "queue", "partition").toArrow()
        queues = queue_skew(partitions).orderBy(F.desc("gini"), F.desc("messages"), "queue").toArrow()
    finally:
        partitions.unpersist()
    write_parquet(folder / "skew.parquet" / "partitions.parquet", table)
    write_parquet(folder / "skew_queues.parquet" / "queues.parquet", queues)
    write_csv(folder / "skew.csv", table)
    page = _page(table.slice(0, _SHOWN).to_pylist(), queues.to_pylist(), (begin, end))
    write_text(folder / "skew.html", page.html())
    return Report(folder / "skew.html", folder / "skew.parquet", folder / "skew.csv", table.num_rows)


run: Final[Run] = run_of(skew, "partitions")


def _partitions(raw: DataFrame, seconds: float) -> DataFrame:
    """With what each has of its queue; `rank` 1 is the busiest of its queue."""
    whole = Window.partitionBy("queue")
    order = whole.orderBy(F.desc("messages"), F.desc("bytes"), "partition")
    return raw.select(
        "queue",
        "partition",
        "partition_id",
        "stored",
        "messages",
        "bytes",
        (F.col("messages") / seconds).alias("messages_per_second"),
        F.coalesce(F.try_divide("messages", F.sum("messages").over(whole)), F.lit(0.0)).alias("share"),
        F.row_number().over(order).alias("rank"),
        "last_message_created_at",
    )


def queue_skew(partitions: DataFrame) -> DataFrame:
    """How evenly each queue is spread. Gini by ranks: with x falling, (n + 1 - 2 * sum(rank * x) / sum(x)) / n."""
    total, count = F.sum("messages"), F.count("*")
    gini = (count + 1 - F.try_divide(F.sum(F.col("rank") * F.col("messages")) * 2, total)) / count
    top = [F.sum(F.when(F.col("rank") <= most, F.col("share")).otherwise(0.0)) for most in (1, TOP)]
    return partitions.groupBy("queue").agg(
        count.alias("partitions"),
        F.count_if(F.col("messages") > 0).alias("active_partitions"),
        total.alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.sum("messages_per_second").alias("messages_per_second"),
        F.coalesce(gini, F.lit(0.0)).alias("gini"),
        F.coalesce(F.try_divide(F.stddev_pop("messages"), F.avg("messages")), F.lit(0.0)).alias("variation"),
        top[0].alias("top_1_share"),
        top[1].alias(f"top_{TOP}_share"),
        F.max_by("partition", -F.col("rank")).alias("hottest_partition"),
    )


def _page(hot: Sequence[Any], queues: Sequence[Any], span: tuple[datetime, datetime]) -> Page:
    begin, end = span
    page = Page("Partition skew", f"messages from {words.moment(begin)} to {words.moment(end)} UTC")
    busy = [row for row in hot if row["messages"]]
    uneven = [row for row in queues if row["messages"] and row["partitions"] > 1]
    page.facts(
        [
            ("queues", words.count(len(queues))),
            ("partitions", words.count(sum(row["partitions"] for row in queues))),
            ("messages in the range", words.count(sum(row["messages"] for row in queues))),
            ("hottest partition, messages/s", words.rate(busy[0]["messages_per_second"] if busy else 0.0)),
            ("most unbalanced queue, Gini", f"{uneven[0]['gini']:.2f}" if uneven else words.NOTHING),
        ]
    )
    if not busy:
        page.paragraph("No message was pushed in this range.")
        return page
    _hottest(page, busy)
    if uneven:
        _unbalanced(page, uneven)
    return page


def _hottest(page: Page, busy: Sequence[Any]) -> None:
    page.heading("Hottest partitions")
    rates = [(f"{row['queue']} / {row['partition']}", row["messages_per_second"]) for row in busy[:_BARS]]
    page.figure(bars("Hottest partitions", rates, "messages/s", words.rate), "Messages per second over the range.")
    page.table(_HOT_COLUMNS, [[row[name] for name in _HOT_NAMES] for row in busy])


def _unbalanced(page: Page, uneven: Sequence[Any]) -> None:
    page.heading("Most unbalanced queues")
    ginis = [(row["queue"], row["gini"]) for row in uneven[:_BARS]]
    caption = "Gini coefficient: 0 when all partitions have the same, near 1 when one has everything."
    page.figure(bars("Most unbalanced queues", ginis, "Gini", lambda value: f"{value:.2f}"), caption)
    page.table(_QUEUE_COLUMNS, [[row[name] for name in _QUEUE_NAMES] for row in uneven[:_SHOWN]])


_HOT_NAMES: Final = ("queue", "partition", "messages", "messages_per_second", "share", "bytes", "stored")
_HOT_COLUMNS: Final = (
    Column("Queue"),
    Column("Partition"),
    Column("Messages", words.count, True),
    Column("Per second", words.rate, True),
    Column("Of the queue", words.share, True),
    Column("Payload", words.size, True),
    Column("Stored", words.count, True),
)
_QUEUE_NAMES: Final = (
    *("queue", "partitions", "active_partitions", "messages", "gini", "variation"),
    *("top_1_share", f"top_{TOP}_share", "hottest_partition"),
)
_QUEUE_COLUMNS: Final = (
    Column("Queue"),
    Column("Partitions", words.count, True),
    Column("Active", words.count, True),
    Column("Messages", words.count, True),
    Column("Gini", lambda value: f"{value:.2f}", True),
    Column("Variation", lambda value: f"{value:.2f}", True),
    Column("Top 1", words.share, True),
    Column(f"Top {TOP}", words.share, True),
    Column("Hottest"),
)
