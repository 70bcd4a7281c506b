"""Parquet files without a way through Java: what the tasks of an archive and of a compaction do.

The stream of an archive carries no messages, only which messages each task has to fetch. The task reads them as Arrow
batches, as any read does, and writes them as Parquet files. A task of a compaction reads the files of one directory
instead. Files of an attempt that failed, or was overtaken by another, stay in the staging directory and are never
looked at: only those that a successful task has named count.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..connecting import arrow_reads
from ..options import ReadOptions
from ..planning import Ranges
from ..reader import Lost, lost_ranges, prepare, read_split
from ..schema import every_column
from .commit import Staged
from .filesystem import Files, open_output
from .manifest import DataFile
from .parquet import FILE_COLUMNS, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_GROUP_BYTES: Final = 32 << 20
FILE_BYTES: Final = 1 << 30
"""After these, another file is begun. Object stores copy a few gigabytes at once, not more."""
OPEN_FILES: Final = 64
"""Of a task at once; with more queues and hours than that, the one that waited longest is closed, and begun anew."""
_HOUR: Final = 3_600_000_000
_DICTIONARIES: Final = ["partition", "partition_id", "producer_sub"]
_RESULT: Final = "path string, queue string, day bigint, hour int"
Key = tuple[str, int]
"""A queue and an hour, counted from 1970."""


class Planned:
    """A micro-batch of a stream of ranges as the source of a commit."""

    def __init__(self, frame: DataFrame, options: ReadOptions) -> None:
        self._frame = frame
        self._options = replace(options, fail_on_data_loss=True)

    def leave_out_lost(self, spark: SparkSession) -> list[Lost]:
        """Cut what is gone out of the plan. What is gone after that still fails the batch: nothing is left out that is
        not in the answer."""
        plans = [Ranges.decoded(row["ranges"]) for row in self._frame.collect()]
        found: list[Lost] = []
        left: list[Ranges] = []
        with arrow_reads(self._options.database_url) as cursor:
            for plan in plans:
                prepare(cursor, plan, "")
                lost = lost_ranges(cursor)
                found += lost
                left.append(_without(plan, lost))
        if found:
            rows = [(plan.encoded(), plan.messages) for plan in left]
            self._frame = spark.createDataFrame(rows, self._frame.schema).repartition(len(rows))
        return found

    def stage(self, uri: str) -> Sequence[Staged]:
        options = self._options

        def fetched(plan: Any) -> Iterator[pa.RecordBatch]:
            return read_split(options, every_column(), Ranges.decoded(plan["ranges"]))

        return _staged(self._frame, fetched, uri)


class Merged:
    """Files of a lake as the source of a commit that takes their place: the files of each directory become one."""

    def __init__(self, spark: SparkSession, files: Files, chosen: Iterable[DataFile]) -> None:
        self._spark = spark
        self._places: dict[tuple[str, str, int], list[tuple[str, str]]] = defaultdict(list)
        for each in sorted(chosen, key=lambda file: file.min_created_at):
            self._places[each.queue, each.date, each.hour].append((files.uri(each.path), each.queue))

    def stage(self, uri: str) -> Sequence[Staged]:
        def read(plan: Any) -> Iterator[pa.RecordBatch]:
            for each in plan["files"]:
                yield from read_file(each["uri"], each["queue"])

        plans = [(files,) for files in self._places.values()]
        frame = self._spark.createDataFrame(plans, "files array<struct<uri string, queue string>>")
        return _staged(frame.repartition(len(plans)), read, uri)


def _without(plan: Ranges, lost: Sequence[Lost]) -> Ranges:
    """Retention removes the beginning of a partition, so what is left of a range is its end."""
    ends = {each.pid: each.last for each in lost}
    gone = np.array([ends.get(pid, 0) for pid in plan.pids.tolist()], dtype=np.int64)
    return plan.between(los=gone).nonempty()


def _staged(frame: DataFrame, read: Callable[[Any], Iterable[pa.RecordBatch]], uri: str) -> Sequence[Staged]:
    """Have tasks read the messages of each row of a frame, and write them."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _written((messages for batch in batches for row in batch.to_pylist() for messages in read(row)), uri)

    rows = frame.mapInArrow(write, _RESULT).collect()
    return [Staged(row.path, row.queue, str(np.datetime64(row.day, "D")), row.hour) for row in rows]


def _written(messages: Iterable[pa.RecordBatch], uri: str) -> Iterator[pa.RecordBatch]:
    """What one task does."""
    files = _Files(uri)
    for batch in messages:
        files.add(batch)
    done = files.close()
    keys = [key for _, key in done]
    yield pa.RecordBatch.from_pydict(
        {
            "path": pa.array([path for path, _ in done], pa.string()),
            "queue": pa.array([queue for queue, _ in keys], pa.string()),
            "day": pa.array([hour // 24 for _, hour in keys], pa.int64()),
            "hour": pa.array([hour % 24 for _, hour in keys], pa.int32()),
        }
    )


@dataclass
class _File:
    """One file that is being written; batches are gathered into row groups."""

    name: str
    writer: pq.ParquetWriter
    output: Any
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.waiting.append(batch)
        self.size += batch.nbytes
        if self.size >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            table = pa.Table.from_batches(self.waiting)
            self.writer.write_table(table, row_group_size=table.num_rows)
            self.waiting, self.size = [], 0

    def close(self) -> None:
        self.flush()
        self.writer.close()
        self.output.close()


class _Files:
    """The files of one task: one for each queue and hour, or more."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._open: dict[Key, _File] = {}
        self._done: list[tuple[str, Key]] = []

    def add(self, messages: pa.RecordBatch) -> None:
        for key, rows in _by_place(messages):
            file = self._open.pop(key, None) or self._begun(rows.schema)
            file.add(rows)
            self._open[key] = file  # behind all others: it waits the longest from now on
            if sum(each.size for each in self._open.values()) > 2 * ROW_GROUP_BYTES:
                max(self._open.values(), key=lambda each: each.size).flush()
            if file.output.tell() > FILE_BYTES:
                self._close(key)
            if len(self._open) > OPEN_FILES:
                self._close(next(iter(self._open)))

    def close(self) -> list[tuple[str, Key]]:
        for key in list(self._open):
            self._close(key)
        return self._done

    def _begun(self, schema: pa.Schema) -> _File:
        name = f"{uuid.uuid4().hex}.parquet"
        output = open_output(f"{self._uri}/{name}")
        writer = pq.ParquetWriter(
            output,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARIES,
            write_page_checksum=True,
            version="2.6",
        )
        return _File(name, writer, output)

    def _close(self, key: Key) -> None:
        file = self._open.pop(key)
        file.close()
        self._done.append((file.name, key))


def _by_place(messages: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each queue and hour; in most batches there is one."""
    queues = messages.column("queue").dictionary_encode()
    hours = messages.column("created_at").cast(pa.int64()).to_numpy() // _HOUR
    codes = queues.indices.to_numpy()
    names = queues.dictionary.to_pylist()
    rows = messages.select(list(FILE_COLUMNS))
    starts = np.flatnonzero(np.concatenate([[True], (codes[1:] != codes[:-1]) | (hours[1:] != hours[:-1])]))
    for first, last in zip(starts, [*starts[1:], len(codes)], strict=True):
        yield (names[codes[first]], int(hours[first])), rows.slice(first, last - first)
