"""Compares a lake with its queues for a range of time, and names every difference.

First each side is summed up by partition: how many messages, and two checksums that do not depend on their order. Only
partitions whose sums differ are compared message by message. What retention has removed from a queue is missing there
rightly: the queue knows how far it has removed, and such messages are counted apart.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, cast

from pyspark.sql import Window
from pyspark.sql import functions as F

from .. import lake as lakes
from ..lake.reading import patterns
from .base import Arguments, Events, Outcome, Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["missing in the lake", "missing in the queue", "twice in the lake", "different"]
EXAMPLES: Final = 5
_LISTED: Final = 1000
_CONTENT: Final = ("seq", "message_id", "transaction_id", "trace_id", "producer_sub", "payload", "encrypted")
_KEY: Final = ("queue", "partition", "partition_id")
# Nulls are left out of a hash; the text says which they were.
_HASH: Final = f"xxhash64({', '.join(_CONTENT)}, concat(trace_id is null, producer_sub is null))"


@dataclass(frozen=True, slots=True)
class Difference:
    """Messages of one partition that differ in the same way."""

    queue: str
    partition: str
    partition_id: str
    kind: Kind
    messages: int
    first_seq: int
    last_seq: int
    examples: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.examples)) + (", …" if self.messages > len(self.examples) else "")
        return f"{self.queue} / {self.partition}: {self.messages:,} {self.kind} (seq {shown})"


@dataclass(frozen=True, slots=True)
class Check:
    """`removed`: messages of the lake which the queue has removed. Of the differences the first thousand are listed."""

    partitions: int
    messages: int
    removed: int
    differences: tuple[Difference, ...]


def run(spark: SparkSession, arguments: Arguments, events: Events) -> Outcome:
    assert arguments.lake is not None
    check = backfill_check(
        spark,
        lake=arguments.lake,
        queue=arguments.queue or "*",
        since=arguments.since,
        until=arguments.until,
        partitions=arguments.partitions,
        database_url=arguments.database_url,
    )
    events.progress(Progress(check.messages))
    verdict = f"{len(check.differences)} differences" if check.differences else "no difference"
    summary = (
        f"{check.messages:,} messages in {check.partitions:,} partitions compared: {verdict}",
        f"{check.removed:,} more are in the lake, and removed from the queue by retention",
        *map(str, check.differences),
    )
    return Outcome(check.messages, summary, "differences" if check.differences else "finished")


def backfill_check(
    spark: SparkSession,
    *,
    lake: str | os.PathLike[str],
    queue: str = "*",
    since: datetime | None = None,
    until: datetime | None = None,
    partitions: Sequence[str] = (),
    database_url: str | None = None,
) -> Check:
    """Compare what was created in [since, until). What was not archived yet is missing in the lake."""
    archived = lakes.read(spark, lake, patterns(queue), since, until)
    if partitions:
        archived = archived.where(F.col("partition").isin(list(partitions)))
    archived = _kept(archived, _trimmed(spark, queue, database_url))
    stored = _stored(spark, queue, since, until, partitions, database_url)
    sums = _sums(archived, stored).cache()
    try:
        total = sums.agg(F.count("*"), F.sum(F.greatest("lake_count", "queue_count")), F.sum("lake_removed")).first()
        assert total is not None
        odd = sums.where(~F.col("equal")).select("partition_id")
        differences = _differences(archived, stored, odd) if not odd.isEmpty() else ()
    finally:
        sums.unpersist()
    return Check(int(total[0]), int(total[1] or 0), int(total[2] or 0), differences)


def _stored(
    spark: SparkSession,
    queue: str,
    since: datetime | None,
    until: datetime | None,
    partitions: Sequence[str],
    database_url: str | None,
) -> DataFrame:
    given = {
        "queue": queue,
        "databaseUrl": database_url,
        "startingOffsets": since and since.isoformat(),
        "endingOffsets": until and until.isoformat(),
        "partitions": json.dumps(list(partitions)) if partitions else None,
        "decrypt": "false",
    }
    options = {name: value for name, value in given.items() if value}
    return spark.read.format("queen").options(**options).load().select(*_KEY, "seq", F.expr(_HASH).alias("hash"))


def _trimmed(spark: SparkSession, queue: str, database_url: str | None) -> DataFrame:
    options = {"queue": queue, "dataset": "partitions"} | ({"databaseUrl": database_url} if database_url else {})
    return spark.read.format("queen").options(**options).load().select("partition_id", "trimmed_seq")


def _kept(archived: DataFrame, trimmed: DataFrame) -> DataFrame:
    """The messages of the lake, and whether the queue has removed them. A partition that is gone has removed all."""
    rows = archived.select(*_KEY, "seq", F.expr(_HASH).alias("hash")).join(trimmed, "partition_id", "left")
    removed = F.col("trimmed_seq").isNull() | (F.col("seq") <= F.col("trimmed_seq"))
    return rows.select(*_KEY, "seq", "hash", removed.alias("removed"))


def _sums(archived: DataFrame, stored: DataFrame) -> DataFrame:
    """One row for each partition that is on one of the sides."""
    here = F.when(~F.col("removed"), F.col("hash"))
    left = archived.groupBy(*_KEY).agg(
        F.count(here).alias("lake_count"),
        F.count_if("removed").alias("lake_removed"),
        F.bit_xor(here).alias("lake_xor"),
        F.sum(F.shiftright(here, 32)).alias("lake_sum"),
    )
    right = stored.groupBy(*_KEY).agg(
        F.count("hash").alias("queue_count"),
        F.bit_xor("hash").alias("queue_xor"),
        F.sum(F.shiftright("hash", 32)).alias("queue_sum"),
    )
    both = left.join(right, list(_KEY), "full_outer").fillna(0, ["lake_count", "lake_removed", "queue_count"])
    equal = [F.col(f"lake_{name}").eqNullSafe(F.col(f"queue_{name}")) for name in ("count", "xor", "sum")]
    return both.withColumn("equal", equal[0] & equal[1] & equal[2])


def _differences(archived: DataFrame, stored: DataFrame, odd: DataFrame) -> tuple[Difference, ...]:
    left = archived.where(~F.col("removed")).join(F.broadcast(odd), "partition_id", "left_semi")
    left = left.groupBy(*_KEY, "seq").agg(F.count("*").alias("copies"), F.min("hash").alias("lake_hash"))
    right = stored.join(F.broadcast(odd), "partition_id", "left_semi").withColumnRenamed("hash", "queue_hash")
    pairs = left.join(right, [*_KEY, "seq"], "full_outer")
    kind = (
        F.when(F.col("lake_hash").isNull(), "missing in the lake")
        .when(F.col("queue_hash").isNull(), "missing in the queue")
        .when(F.col("copies") > 1, "twice in the lake")
        .when(F.col("lake_hash") != F.col("queue_hash"), "different")
    )
    found = pairs.select(*_KEY, "seq", kind.alias("kind")).where(F.col("kind").isNotNull())
    return _listed(found)


def _listed(found: DataFrame) -> tuple[Difference, ...]:
    group = [*_KEY, "kind"]
    place = F.row_number().over(Window.partitionBy(*group).orderBy("seq"))
    rows = (
        found.withColumn("place", place)
        .groupBy(*group)
        .agg(
            F.count("*"),
            F.min("seq"),
            F.max("seq"),
            F.sort_array(F.collect_list(F.when(F.col("place") <= EXAMPLES, F.col("seq")))),
        )
        .orderBy(*group)
        .limit(_LISTED)
        .collect()
    )
    return tuple(
        Difference(row[0], row[1], row[2], cast(Kind, row[3]), row[4], row[5], row[6], tuple(row[7])) for row in rows
    )
