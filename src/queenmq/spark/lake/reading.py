"""Reading a lake exactly: the files that its manifest names, and of those only what can hold the wanted messages."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import OptionError, PipelineError
from ..options import COLUMNS
from ..schema import TYPES
from . import layout
from .filesystem import Files, for_spark, open_lake
from .manifest import DataFile, Log
from .parquet import FILE_COLUMNS, read_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_PLACES: Final = ("queue string", "date date", "hour int")
_SCHEMA: Final = ", ".join((*(f"{name} {TYPES[name]}" for name in FILE_COLUMNS), *_PLACES))
_MESSAGES: Final = ", ".join(f"{name} {TYPES[name]}" for name in COLUMNS)
_TASKS: Final = 200
_GLOB: Final = re.compile(r"[\\{}\[\]*?]")
"""What Spark takes for a pattern in a path; in those of queues it is escaped."""


def files(
    lake: str | os.PathLike[str],
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[DataFile]:
    """The committed files with messages of these queues (names, or patterns with * and ?) in [since, until)."""
    return selected(committed(open_lake(lake)), queues, since, until)


def committed(place: Files) -> Collection[DataFile]:
    """All files of a lake. One that was never written to is refused, as its name is more likely wrong."""
    state = Log(place).state
    if not state.number:
        raise PipelineError(f"there is no lake at {place.uri()}, or nothing was archived into it yet")
    return state.files.values()


def selected(
    known: Iterable[DataFile], queues: Sequence[str], since: datetime | None = None, until: datetime | None = None
) -> list[DataFile]:
    wanted, since, until = matcher(queues), _utc(since), _utc(until)
    return [
        file
        for file in known
        if wanted.fullmatch(file.queue)
        and (since is None or file.max_created_at >= since)
        and (until is None or file.min_created_at < until)
    ]


def patterns(queue: str | None) -> list[str]:
    """Names and patterns from how they are given: one, several with commas between them, or a JSON array."""
    text = (queue or "").strip()
    if not text.startswith("["):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        raise OptionError("queue", text, "a name, several with commas between them, or a JSON array of texts") from None


def matcher(patterns: Sequence[str]) -> re.Pattern[str]:
    """Names that one of the patterns matches; without patterns, all."""
    parts = {"*": ".*", "?": "."}
    texts = ("".join(parts.get(letter) or re.escape(letter) for letter in pattern) for pattern in patterns or ["*"])
    return re.compile("|".join(texts), re.DOTALL)


def read(
    spark: SparkSession,
    lake: str | os.PathLike[str],
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The messages of a lake with the columns of the source `queen`."""
    place = open_lake(lake)
    return between(frame_of(spark, place, selected(committed(place), queues, since, until)), since, until)


def between(frame: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """The messages that were created in [since, until)."""
    from pyspark.sql import functions as F

    if since is not None:
        frame = frame.where(F.col("created_at") >= F.lit(_utc(since)))
    return frame if until is None else frame.where(F.col("created_at") < F.lit(_utc(until)))


def _utc(moment: datetime | None) -> datetime | None:
    """Times without a zone are UTC, as everywhere here; Python would not compare them, and Spark take its own zone."""
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


def frame_of(spark: SparkSession, place: Files, chosen: Sequence[DataFile]) -> DataFrame:
    """The messages in these files."""
    from pyspark.sql import functions as F

    if not chosen:
        return spark.createDataFrame([], _MESSAGES)
    check_intact(place, chosen)
    if not reaches(spark, place.uri()):
        return _fetched(spark, place, chosen)
    reader = spark.read.schema(_SCHEMA).option("basePath", for_spark(place.uri()))
    frame = reader.parquet(*(_GLOB.sub(r"\\\g<0>", for_spark(place.uri(file.path))) for file in chosen))
    cut = {layout.unescaped(layout.escaped(file.queue)): file.queue for file in chosen}
    for short, name in sorted(cut.items()):
        if short != name:
            frame = frame.withColumn("queue", F.when(F.col("queue") == short, name).otherwise(F.col("queue")))
    return frame.select(*COLUMNS)


def check_intact(place: Files, chosen: Sequence[DataFile]) -> None:
    """Raises PipelineError when one of the files is missing or was cut."""
    for file, size in zip(chosen, place.sizes([file.path for file in chosen]), strict=True):
        if size != file.bytes:
            found = "missing" if size is None else f"damaged, it has {size:,} bytes instead of {file.bytes:,}"
            raise PipelineError(f"the file {place.uri(file.path)} is {found}; restore it")


def reaches(spark: SparkSession, uri: str) -> bool:
    """Whether this Spark has what it takes for the file system of a URI. For most stores, that is another jar."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    scheme = for_spark(uri).partition(":")[0]
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs.FileSystem  # type: ignore[union-attr]
    try:
        hadoop.getFileSystemClass(scheme, spark.sparkContext._jsc.hadoopConfiguration())
    except Py4JJavaError:
        return False
    return True


def _fetched(spark: SparkSession, place: Files, chosen: Sequence[DataFile]) -> DataFrame:
    """The same, read by Python in the tasks."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file in batch.to_pylist():
                yield from read_file(file["uri"], file["queue"])

    rows = [(place.uri(file.path), file.queue) for file in chosen]
    plan = spark.createDataFrame(rows, "uri string, queue string").repartition(min(len(rows), _TASKS))
    return plan.mapInArrow(read, _MESSAGES)
