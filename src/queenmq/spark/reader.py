"""Batch reads: plan once on the driver, then each task copies its ranges out of PostgreSQL as Arrow batches.

A task sees the database as it is at one moment. If retention has removed something of a task's ranges since they were
planned, it says so instead of returning less.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from .. import sql
from ..domain.cipher import Cipher
from ..domain.segments import array
from .arrow import Unpacker, fetched, unpacked
from .connecting import arrow_reads
from .errors import DataLoss, OptionError
from .filters import narrowed
from .options import ReadOptions
from .planning import Bounds, Ranges, batch_plan, divided, warn_of_unknown
from .schema import arrow_schema, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_postgresql import dbapi
    from pyspark.sql.types import StructType

log = logging.getLogger("queenmq.spark")
_BATCH_BYTES: Final = 4 << 20
_EXAMPLES: Final = 3


@dataclass(frozen=True, eq=False)
class Split(InputPartition):
    """What one task reads."""

    ranges: Ranges

    def __repr__(self) -> str:
        return f"Split({len(self.ranges.pids)} partitions, {self.ranges.messages} messages)"


class MessageReader(DataSourceReader):
    """Has no `pushFilters`: Spark 4.3 keeps what a reader was pushed on an object that all scans of a DataFrame share,
    so the filter of one query would narrow every other use of that DataFrame."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        _reject_stream_options(options)
        self._options = options
        self._schema = schema
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        with arrow_reads(self._options.database_url) as cursor:
            warn_of_unknown(cursor, self._options.queues, "nothing is read of it")
            plan = batch_plan(cursor, self._options, self._bounds)
        splits = [Split(part) for part in divided(plan, self._options.splits)]
        return splits or [Split(plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self._options, self._schema, partition.ranges)


class FilteredReader(MessageReader):
    """Takes filters of the query, where the query has said that it is the only one of its `load()`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds, left = narrowed(self._bounds, filters)
        return left


def message_reader(options: ReadOptions, schema: StructType) -> MessageReader:
    """With pushdown only on demand: no Spark release is known to keep pushed filters apart for each scan."""
    return FilteredReader(options, schema) if options.pushdown else MessageReader(options, schema)


def _reject_stream_options(options: ReadOptions) -> None:
    for name, value in (
        ("maxMessagesPerTrigger", options.max_messages),
        ("maxBytesPerTrigger", options.max_bytes),
        ("consumerGroup", options.group),
    ):
        if value is not None:
            raise OptionError(name, str(value), "left out: only streams take it")


def read_split(options: ReadOptions, schema: StructType, ranges: Ranges) -> Iterator[pa.RecordBatch]:
    """The messages of these ranges, in their order."""
    if not len(ranges.pids):
        return
    unpacker = Unpacker(arrow_schema(schema), cipher() if options.decrypt else None)
    with arrow_reads(options.database_url) as cursor:
        prepare(cursor, ranges, fetched(schema.names))
        check_loss(cursor, options)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        cursor.execute(sql.query("spark_segments"))
        yield from unpacked(cursor.fetch_record_batch(), unpacker)


def prepare(cursor: dbapi.Cursor, ranges: Ranges, columns: str) -> None:
    cursor.execute(
        sql.query("spark_prepare_reads"), parameters=(array(ranges.pids), array(ranges.los), array(ranges.his), columns)
    )
    cursor.fetchall()


def check_loss(cursor: dbapi.Cursor, options: ReadOptions) -> None:
    """Raises DataLoss, or warns, when something of the prepared ranges is gone."""
    lost = lost_ranges(cursor)
    if not lost:
        return
    shown = "; ".join(map(str, lost[:_EXAMPLES]))
    more = f" and {len(lost) - _EXAMPLES} more partitions" if len(lost) > _EXAMPLES else ""
    sentence = f"messages were removed before they were read: {shown}{more}"
    if options.fail_on_data_loss:
        raise DataLoss(f"{sentence}{DataLoss.WAY_OUT}, give the option failOnDataLoss=false")
    log.warning(sentence)


@dataclass(frozen=True, slots=True)
class Lost:
    """The messages of a range that are gone, first to last. A partition has no name when nothing is known of it."""

    pid: int
    first: int
    last: int
    removed: bool
    queue: str | None
    partition: str | None

    def __str__(self) -> str:
        known = f"number {self.pid}" if self.partition is None else f"{self.partition!r} of queue {self.queue!r}"
        how = "was removed with" if self.removed else "has lost"
        return f"partition {known} {how} the messages {self.first} to {self.last}"


def lost_ranges(cursor: dbapi.Cursor) -> list[Lost]:
    """What is gone of the prepared ranges."""
    cursor.execute(sql.query("spark_lost_ranges"))
    return [
        Lost(pid, lo + 1, hi if trimmed is None else min(trimmed, hi), trimmed is None, queue, partition)
        for pid, lo, hi, trimmed, queue, partition in cursor.fetchall()
    ]


def cipher() -> Cipher | None:
    """With the key that was given to the job, if one was."""
    key = os.environ.get("QUEEN_ENCRYPTION_KEY")
    if not key:
        return None
    try:
        return Cipher(bytes.fromhex(key))
    except ValueError:
        raise OptionError("QUEEN_ENCRYPTION_KEY (environment)", "hidden", "64 hexadecimal digits") from None
