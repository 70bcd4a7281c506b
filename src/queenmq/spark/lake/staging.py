"""How a batch lies in its staging directory: `q=<name>/date=…/hour=…/`, as Spark's own writer partitions it.

Spark would write a queue's name as it is, and some are longer than a file name may be. So the directory's name is `n`
and the queue's name or, for a long one, `h` and its hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..options import COLUMNS
from ..schema import TYPES
from . import layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_COLUMNS: Final = tuple(name for name in COLUMNS if name != "queue")
SCHEMA: Final = ", ".join(f"`{name}` {TYPES[name]}" for name in (*FILE_COLUMNS, "queue")) + ", `date` date, `hour` int"
_LONGEST: Final = 80
"""Bytes; each may become three when it is escaped."""
_DIRECTORIES: Final = ("q", "date", "hour")
_IS_LONG: Final = f"octet_length(queue) > {_LONGEST}"
_DERIVED: Final = (
    f"if({_IS_LONG}, concat('h', md5(cast(queue as binary))), concat('n', queue)) as q",
    # Independent of the session's time zone.
    "date_from_unix_date(cast(unix_micros(created_at) div 86400000000 as int)) as date",
    "cast(unix_micros(created_at) div 3600000000 % 24 as int) as hour",
)
_SETTINGS: Final = {
    # Other readers know no INT96, Spark's default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Streams have it off; without it a rebalanced batch would become as many files as there are shuffle partitions.
    "spark.sql.adaptive.enabled": "true",
}
_SPLITTING: Final = "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled"


@dataclass(frozen=True, slots=True)
class Placed:
    """What the directories of a staged file say."""

    name: str
    date: str
    hour: int

    @property
    def is_hashed(self) -> bool:
        return self.name[0] == "h"

    def queue(self, long_names: Sequence[str]) -> str:
        if not self.is_hashed:
            return self.name[1:]
        return next(name for name in long_names if hashlib.md5(name.encode()).hexdigest() == self.name[1:])


def placed(path: str) -> Placed:
    found = re.search(r"/q=([^/]+)/date=([0-9-]+)/hour=([0-9]+)/[^/]+$", path)
    assert found is not None, path
    return Placed(layout.unescaped(found[1]), found[2], int(found[3]))


class Frame:
    """Messages of a DataFrame as the source of a batch: one file for each directory, more where there are many
    messages, unless it has to be one."""

    def __init__(self, frame: DataFrame, *, one_file: bool = False) -> None:
        self._frame = frame
        self._one_file = one_file

    def stage(self, uri: str) -> None:
        frame = self._frame.selectExpr(*FILE_COLUMNS, *_DERIVED).hint("rebalance", *_DIRECTORIES)
        frame = frame.sortWithinPartitions(*_DIRECTORIES, "partition", "partition_id", "seq")
        with _settings(frame.sparkSession, {**_SETTINGS, _SPLITTING: str(not self._one_file).lower()}):
            frame.write.partitionBy(*_DIRECTORIES).option("compression", "zstd").parquet(uri)

    def long_names(self) -> Sequence[str]:
        return [row.queue for row in self._frame.where(_IS_LONG).select("queue").distinct().collect()]


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, former in before.items():
            spark.conf.set(name, str(former))
