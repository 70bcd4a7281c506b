"""Aggregates a queue in windows of event time and pushes each window's result into another queue, exactly once.

A window is closed, and its result pushed, when the watermark has passed its end: the latest event time seen, less the
allowed lateness. The id of a result is made of the pipeline's name, the key and the bounds of the window, so a batch
that is repeated after a failure pushes the same messages again, and the queue recognises them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from ...wire.names import MAX_NAME
from ..errors import PipelineError
from .base import Arguments, Events, Outcome, follow
from .window_spec import Aggregate, Function, WindowSpec, load

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# A number from here on counts milliseconds since 1970; below, seconds. As seconds it would be the year 5138.
_MILLISECONDS_FROM: Final = 100_000_000_000
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
_UUID: Final = ("(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
_HASH: Final = 32
_SHAPE: Final = "queenmq-window.json"
_CONTROLS: Final = r"[\x{00}-\x{1f}\x{7f}-\x{9f}]"


def run(spark: SparkSession, arguments: Arguments, events: Events) -> Outcome:
    assert arguments.config is not None
    assert arguments.checkpoint is not None
    spec = load(arguments.config)
    query = start(
        spark,
        spec,
        checkpoint=arguments.checkpoint,
        once=arguments.once,
        max_messages=arguments.max_messages,
        trigger_seconds=arguments.trigger_seconds,
        fail_on_data_loss=not arguments.accept_data_loss,
        database_url=arguments.database_url,
        url=arguments.url,
    )
    outcome = follow(query, events)
    return replace(outcome, summary=(f"closed windows are in {spec.target}",))


def start(
    spark: SparkSession,
    spec: WindowSpec,
    *,
    checkpoint: str,
    once: bool = False,
    max_messages: int | None = None,
    trigger_seconds: float = 5.0,
    fail_on_data_loss: bool = True,
    database_url: str | None = None,
    url: str | None = None,
) -> StreamingQuery:
    """The running query. With `once` it ends when everything that is in the queue now has been read."""
    _claim(spark, checkpoint, spec)
    columns = "queue,partition,payload,created_at"
    given = {"queue": spec.source, "columns": columns, "databaseUrl": database_url}
    given["failOnDataLoss"] = str(fail_on_data_loss).lower()
    if max_messages is not None:
        given["maxMessagesPerTrigger"] = str(max_messages)
    reader = spark.readStream.format("queen").options(**_present(given))
    writer = ordered(results(reader.load(), spec)).writeStream.format("queen").outputMode("append")
    writer = writer.options(**_present({"queue": spec.target, "url": url, "databaseUrl": database_url}))
    writer = writer.option("checkpointLocation", checkpoint)
    return (
        writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger_seconds} seconds")
    ).start()


def _claim(spark: SparkSession, checkpoint: str, spec: WindowSpec) -> None:
    """Refuse a checkpoint of other windows: Spark would go on with their state, if only its columns look the same."""
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path
    folder = path(checkpoint)
    files = folder.getFileSystem(spark._jsc.hadoopConfiguration())  # Spark may reach places which only it knows
    kept = path(folder, _SHAPE)
    if files.exists(kept):
        with closing(files.open(kept)) as stream:
            before = json.loads(java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        _check_shape(checkpoint, before, spec.shape())
    elif files.exists(path(folder, "metadata")):
        raise PipelineError(f"the checkpoint {checkpoint} is not that of a window pipeline; give another one")
    else:
        whole = path(folder, f"{_SHAPE}.part")
        with closing(files.create(whole)) as stream:
            stream.write(bytearray(json.dumps(spec.shape(), indent=2).encode()))
        files.rename(whole, kept)


def _check_shape(checkpoint: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [name for name, value in after.items() if before.get(name) != value]
    if changed:
        raise PipelineError(
            f"the checkpoint {checkpoint} was made with another {', '.join(changed)}; give a new checkpoint, and a new"
            " name if windows that were pushed before shall be pushed again"
        )


def results(messages: DataFrame, spec: WindowSpec) -> DataFrame:
    """One row for each key and window, as the writer takes them, and the end of the window. A message without an event
    time belongs to none."""
    rows = messages.select(
        _event_time(spec).alias("at"),
        *(_key(source).alias(f"key_{name}") for name, source in spec.key.items()),
        *(_value(each).alias(f"value_{name}") for name, each in spec.aggregates.items()),
    ).where(F.col("at").isNotNull())
    grouped = rows.withWatermark("at", spec.watermark).groupBy(_window(spec), *(f"key_{name}" for name in spec.key))
    return _outcome(grouped.agg(*(_figure(name, each.function) for name, each in spec.aggregates.items())), spec)


def _outcome(windows: DataFrame, spec: WindowSpec) -> DataFrame:
    bounds = F.struct(F.col("w.start").alias("start"), F.col("w.end").alias("end")).alias("window")
    key = F.struct(*(F.col(f"key_{name}").alias(name) for name in spec.key)).alias("key")
    figures = [F.col(f"value_{name}").alias(name) for name in spec.aggregates]
    identity = _json(F.struct(F.lit(spec.name).alias("name"), *([key] if spec.key else []), bounds))
    return windows.select(
        _json(F.struct(bounds, *([key] if spec.key else []), *figures)).alias("payload"),
        _partition(spec).alias("partition"),
        F.regexp_replace(F.substring(F.sha2(identity, 256), 1, _HASH), *_UUID).alias("transaction_id"),
        F.col("w.end").alias("end"),
    )


def ordered(windows: DataFrame) -> DataFrame:
    """The windows of a key in one task, in the order of their ends. Spark itself sorts no streams."""
    return windows.repartition("partition").mapInArrow(_sorted, windows.drop("end").schema)


def _sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if found := list(batches):
        rows = pa.Table.from_batches(found).sort_by([("partition", "ascending"), ("end", "ascending")])
        yield from rows.drop_columns(["end"]).to_batches()


def _json(value: Column) -> Column:
    return F.to_json(value, {"timestampFormat": _TIME, "ignoreNullFields": "false"})


def _partition(spec: WindowSpec) -> Column:
    """The key as a name. One that would be too long ends in a hash."""
    if not spec.key:
        return F.lit("Default")
    parts = [F.coalesce(F.col(f"key_{name}"), F.lit("")) for name in spec.key]
    whole = F.concat_ws("|", *parts)
    clean = F.regexp_replace(whole, _CONTROLS, "?")
    short = F.concat(F.substring(clean, 1, MAX_NAME - _HASH - 1), F.lit("-"), F.md5(whole))
    return F.when(clean == "", F.lit("-")).when(F.length(clean) > MAX_NAME, short).otherwise(clean)


def _window(spec: WindowSpec) -> Column:
    if spec.kind == "session":
        assert spec.gap is not None
        return F.session_window("at", spec.gap).alias("w")
    assert spec.size is not None
    return F.window("at", spec.size, spec.slide).alias("w")


def _event_time(spec: WindowSpec) -> Column:
    """ISO 8601 text (UTC where no zone is given), or a number of seconds or milliseconds since 1970."""
    if spec.event_time == "created_at":
        return F.col("created_at")
    text = F.get_json_object("payload", spec.event_time)
    number = text.try_cast("double")
    moment = F.when(number >= _MILLISECONDS_FROM, number / 1000).otherwise(number)
    return F.coalesce(F.timestamp_seconds(moment), text.try_cast("timestamp"))


def _key(source: str) -> Column:
    return F.col(source) if source in ("partition", "queue") else F.get_json_object("payload", source)


def _value(aggregate: Aggregate) -> Column:
    if aggregate.path is None:
        return F.lit(1)
    text = F.get_json_object("payload", aggregate.path)
    return text if aggregate.function == "count" else text.try_cast("double")


def _figure(name: str, function: Function) -> Column:
    column = f"value_{name}"
    if function == "p95":
        return F.percentile_approx(column, 0.95).alias(column)
    by_name = {"count": F.count, "sum": F.sum, "min": F.min, "max": F.max, "avg": F.avg}
    return by_name[function](column).alias(column)


def _present(options: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
