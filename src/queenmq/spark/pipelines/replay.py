"""Pushes messages of a lake into their queue again, or into another one, each partition in its original order.

A message keeps its transaction id, so the queue recognises what it has seen: running a replay twice adds nothing, nor
does a replay of what is still stored. Where several queues are poured into one, ids of different queues could meet;
there the message's own id, which is unique, takes that place, except for messages that return to their own queue: it
knows them by their transaction ids. Encrypted payloads stay encrypted on the way to PostgreSQL; a server encrypts by
itself, so they are decrypted for it, in memory, behind the last shuffle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from pyspark.sql import Observation
from pyspark.sql import functions as F

from ...wire.names import InvalidValue, check_name
from ..errors import OptionError, PipelineError, Unreadable
from ..lake.filesystem import open_lake
from ..lake.manifest import DataFile
from ..lake.reading import between, committed, frame_of, patterns, selected
from ..options import write_options
from ..reader import cipher
from .base import Arguments, Events, Outcome, Progress, Quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..options import WriteOptions

Ids = Literal["transaction", "message"]
Used = Literal[Ids, "poured"]
"""`poured`: the message id for messages of other queues than the target."""
_OVER_HTTP: Final = ("queue", "partition", "transaction_id", "trace_id", "payload")
_STRAIGHT: Final = (*_OVER_HTTP, "producer_sub", "encrypted")


def run(spark: SparkSession, arguments: Arguments, events: Events) -> Outcome:
    assert arguments.lake is not None
    return replay(
        spark,
        lake=arguments.lake,
        queue=arguments.queue,
        to=arguments.to,
        since=arguments.since,
        until=arguments.until,
        partitions=arguments.partitions,
        where=arguments.where,
        database_url=arguments.database_url,
        url=arguments.url,
        events=events,
    )


def replay(
    spark: SparkSession,
    *,
    lake: str | os.PathLike[str],
    queue: str | None = None,
    to: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    partitions: Sequence[str] = (),
    where: str | None = None,
    ids: Ids | None = None,
    database_url: str | None = None,
    url: str | None = None,
    events: Events | None = None,
) -> Outcome:
    """Push what was created in [since, until); `where` is an SQL condition on the columns of the lake. `ids="message"`
    adds messages to their own queue again that are still there under another transaction id."""
    named = {"url": url, "databaseUrl": database_url}
    given = {name: value for name, value in named.items() if value is not None}
    options = write_options(given)
    files = open_lake(lake)
    chosen = selected(committed(files), patterns(queue), since, until)
    if not chosen:
        return Outcome(0, ("the lake has no such messages",))
    _check(chosen, to, options)
    messages = _wanted(frame_of(spark, files, chosen), since, until, partitions, where)
    seen = Observation()
    rows = prepared(messages, to, ids or _ids(chosen, to), over_http=options.url is not None)
    rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("queen").options(**given).mode("append").save()
    count = int(seen.get["rows"])
    (events or Quiet()).progress(Progress(count))
    return Outcome(count, (f"{count:,} messages replayed into {to or 'their own queues'}",))


def prepared(messages: DataFrame, to: str | None, ids: Used, *, over_http: bool) -> DataFrame:
    """The rows to write: a partition's messages in one task, in order. Times never go back in a partition; they come
    first, because one that was deleted and made again counts from 1 again."""
    spread = messages.repartition("queue", "partition")
    ordered = spread.sortWithinPartitions("queue", "partition", "created_at", "partition_id", "seq")
    if ids == "message":
        ordered = ordered.withColumn("transaction_id", F.col("message_id"))
    elif ids == "poured":
        own = F.when(F.col("queue") == F.lit(to), F.col("transaction_id"))
        ordered = ordered.withColumn("transaction_id", own.otherwise(F.col("message_id")))
    if to is not None:
        ordered = ordered.withColumn("queue", F.lit(to))
    if not over_http:
        return ordered.select(*_STRAIGHT)
    rows = ordered.select(*_OVER_HTTP, "encrypted")
    schema = rows.drop("encrypted").schema
    return rows.mapInArrow(decrypted, schema)


def decrypted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in clear, without the column `encrypted`."""
    key = cipher()
    for batch in batches:
        marks = batch.column("encrypted")
        plain = batch.drop_columns(["encrypted"])
        if marks.true_count:
            if key is None:
                raise Unreadable(_NO_KEY)
            texts = [
                key.decrypt(text.encode()).decode() if mark else text
                for text, mark in zip(batch.column("payload").to_pylist(), marks.to_pylist(), strict=True)
            ]
            position = plain.schema.get_field_index("payload")
            field = plain.schema.field(position)
            plain = plain.set_column(position, field, pa.array(texts, field.type))
        yield plain


_NO_KEY: Final = (
    "the lake has encrypted payloads, and the server can only take them in clear; give QUEEN_ENCRYPTION_KEY in the "
    "environment, or replay straight into PostgreSQL (databaseUrl without url)"
)


def _check(chosen: Sequence[DataFile], to: str | None, options: WriteOptions) -> None:
    if to is not None:
        try:
            check_name("to", to)
        except InvalidValue as error:
            raise OptionError("to", to, error.allowed) from None
    if options.url is not None and any(file.encrypted for file in chosen) and cipher() is None:
        raise PipelineError(_NO_KEY)


def _ids(chosen: Sequence[DataFile], to: str | None) -> Used:
    return "poured" if to is not None and len({file.queue for file in chosen}) > 1 else "transaction"


def _wanted(
    messages: DataFrame, since: datetime | None, until: datetime | None, partitions: Sequence[str], where: str | None
) -> DataFrame:
    messages = between(messages, since, until)
    if partitions:
        messages = messages.where(F.col("partition").isin(list(partitions)))
    return messages if where is None else messages.where(F.expr(where))
