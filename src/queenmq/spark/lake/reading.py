"""Reading a lake exactly: the files that its manifest names, and of those only what can hold the wanted messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from ..errors import OptionError
from ..options import COLUMNS
from . import layout
from .filesystem import Files, open_lake
from .manifest import DataFile, Log
from .staging import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def files(
    lake: str | os.PathLike[str],
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[DataFile]:
    """The committed files with messages of these queues (names, or patterns with * and ?) in [since, until)."""
    return selected(Log(open_lake(lake)).state.files.values(), queues, since, until)


def selected(
    known: Iterable[DataFile], queues: Sequence[str], since: datetime | None = None, until: datetime | None = None
) -> list[DataFile]:
    wanted = matcher(queues)
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
    from pyspark.sql import functions as F

    place = open_lake(lake)
    frame = frame_of(spark, place, selected(Log(place).state.files.values(), queues, since, until))
    if since is not None:
        frame = frame.where(F.col("created_at") >= F.lit(since))
    return frame if until is None else frame.where(F.col("created_at") < F.lit(until))


def frame_of(spark: SparkSession, place: Files, chosen: Sequence[DataFile]) -> DataFrame:
    """The messages in these files."""
    from pyspark.sql import functions as F

    if not chosen:
        return spark.createDataFrame([], SCHEMA).select(*COLUMNS)
    reader = spark.read.schema(SCHEMA).option("basePath", place.uri())
    frame = reader.parquet(*(place.uri(file.path) for file in chosen))
    cut = {layout.unescaped(layout.escaped(file.queue)): file.queue for file in chosen}
    for short, name in sorted(cut.items()):
        if short != name:
            frame = frame.withColumn("queue", F.when(F.col("queue") == short, name).otherwise(F.col("queue")))
    return frame.select(*COLUMNS)
