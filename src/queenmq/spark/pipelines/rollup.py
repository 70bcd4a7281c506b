"""Sums up metrics by minute, hour and day: count, sum, min, max and exact percentiles of every number, for each host
and for the whole cluster.

A run computes every bucket anew that may have changed since the last run, from all its rows, and stores what it finds.
So a run may be repeated, interrupted or run beside another one, and rows that arrive late are counted by the next run
as long as they are not later than the allowance. A bucket of which retention has removed rows keeps what it had.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from ... import sql
from ...storage import analytics
from ...storage.analytics import WIDTHS, RolledUp, ceiling, floor
from ...storage.metrics import Bucket, RollupRow
from ..connecting import call
from ..datasets import read_dataset
from ..options import read_options
from .base import Arguments, Events, Outcome, Progress

if TYPE_CHECKING:
    import asyncpg
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LATENESS: Final = timedelta(hours=2)
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_BATCH: Final = 500
_KEY: Final = ("bucket", "bucket_at", "hostname", "scope")
_EVERYTHING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RollupResult:
    """How many rows of each bucket were stored, and which time they cover."""

    rows: dict[Bucket, int]
    since: datetime
    until: datetime


def rollup(
    spark: SparkSession,
    *,
    database_url: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    lateness: timedelta = LATENESS,
) -> RollupResult:
    """Compute every bucket that overlaps [since, until): by default from the last run, less the allowance, to now."""
    url = read_options({"dataset": "metrics"} | ({"databaseUrl": database_url} if database_url else {})).database_url
    now, reach = call(url, _reach)
    end = min(until or now, now)
    begin = since or (_EVERYTHING if reach is None else reach.until - lateness)
    raw = read_dataset(spark, "metrics", database_url=url, since=floor(begin, "day"), until=ceiling(end, "day"))
    documents = _documents(_summed(_placed(raw, begin, end)))
    rows = _stored(documents, url)
    if since is None and (reach is None or end > reach.until):
        call(url, lambda connection: analytics.put_rolled_up(connection, RolledUp(end, end - lateness)))
    return RollupResult(rows, begin, end)


def run(spark: SparkSession, arguments: Arguments, events: Events) -> Outcome:
    result = rollup(spark, database_url=arguments.database_url, since=arguments.since, until=arguments.until)
    total = sum(result.rows.values())
    events.progress(Progress(total))
    counts = ", ".join(f"{result.rows[bucket]} {bucket} rows" for bucket in WIDTHS)
    return Outcome(total, (f"stored {counts}, up to {result.until.isoformat(timespec='seconds')}",))


async def _reach(connection: asyncpg.Connection) -> tuple[datetime, RolledUp | None]:
    """The time of the database, whose clock also orders the runs, and what was rolled up before."""
    return await connection.fetchval(sql.query("database_time")), await analytics.rolled_up(connection)


def _placed(raw: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Each number once for every bucket it is to be counted in: of its host and of the cluster."""
    hosts = F.explode(F.array_distinct(F.array("hostname", F.lit(""))))
    buckets = F.explode(F.array(*(_bucket(bucket, begin) for bucket in WIDTHS)))
    placed = raw.select(hosts.alias("hostname"), "at", "scope", "metric", "value")
    placed = placed.select("hostname", "scope", "metric", "value", buckets.alias("place"))
    return placed.select("place.*", "hostname", "scope", "metric", "value").where(
        (F.col("bucket_at") >= F.col("first")) & (F.col("bucket_at") < F.lit(end))
    )


def _bucket(bucket: Bucket, begin: datetime) -> Any:
    """Arithmetic instead of date_trunc, which follows the time zone of the session."""
    width = WIDTHS[bucket] // timedelta(microseconds=1)
    start = F.timestamp_micros((F.floor(F.unix_micros("at") / width) * width).cast("bigint"))
    return F.struct(F.lit(bucket).alias("bucket"), start.alias("bucket_at"), F.lit(floor(begin, bucket)).alias("first"))


def _summed(placed: DataFrame) -> DataFrame:
    found = placed.groupBy(*_KEY, "metric").agg(
        F.count("value").alias("count"),
        F.sum("value").alias("sum"),
        F.min("value").alias("min"),
        F.max("value").alias("max"),
        F.percentile("value", list(PERCENTILES.values())).alias("percentiles"),
    )
    levels = [F.col("percentiles")[place].alias(name) for place, name in enumerate(PERCENTILES)]
    return found.select(*_KEY, "metric", F.struct("count", "sum", "min", "max", *levels).alias("summary"))


def _documents(summed: DataFrame) -> DataFrame:
    """One JSON object for each row of the table."""
    entries = F.map_from_entries(F.collect_list(F.struct("metric", "summary")))
    return summed.groupBy(*_KEY).agg(F.to_json(entries).alias("metrics"))


def _stored(documents: DataFrame, url: str) -> dict[Bucket, int]:
    """Written by the tasks; a task that is repeated writes the same again."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        counts = call(url, lambda connection: _written(connection, _rows(batches)))
        columns = {"bucket": list(counts), "rows": list(counts.values())}
        yield pa.RecordBatch.from_pydict(columns, pa.schema([("bucket", pa.string()), ("rows", pa.int64())]))

    counted = documents.mapInArrow(write, "bucket STRING, rows BIGINT").groupBy("bucket").agg(F.sum("rows").alias("n"))
    found = {row["bucket"]: int(row["n"]) for row in counted.collect()}
    return {bucket: found.get(bucket, 0) for bucket in WIDTHS}


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[RollupRow]:
    for row in chain.from_iterable(batch.to_pylist() for batch in batches):
        yield RollupRow(row["bucket"], row["bucket_at"], json.loads(row["metrics"]), row["hostname"], row["scope"])


async def _written(connection: asyncpg.Connection, rows: Iterator[RollupRow]) -> dict[Bucket, int]:
    counts: dict[Bucket, int] = dict.fromkeys(WIDTHS, 0)
    while some := list(islice(rows, _BATCH)):
        await analytics.merge_rollup(connection, some)
        for row in some:
            counts[row.bucket] += 1
    return counts
