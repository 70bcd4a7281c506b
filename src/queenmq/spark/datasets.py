"""Tables beside the messages, as DataFrames: metrics, dead letters, lag and partitions.

They are batches only. What is large is read in parts, each on a connection of its own: metrics by time, dead letters by
id, partitions by number. A query that gives a schema of its own with fewer columns gets those; payloads of dead letters
are not even fetched then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .. import sql
from .connecting import arrow_reads
from .errors import OptionError, Unreadable
from .options import Dataset, ReadOptions
from .planning import names_and_patterns
from .reader import cipher
from .schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_postgresql import dbapi
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ..domain.cipher import Cipher

SCHEMAS: Final[dict[Dataset, str]] = {
    "metrics": "at TIMESTAMP, hostname STRING, worker_id STRING, scope STRING, metric STRING, value DOUBLE",
    "dead_letters": "queue STRING, partition STRING, partition_id STRING, consumer_group STRING, seq BIGINT, "
    "message_id STRING, transaction_id STRING, trace_id STRING, producer_sub STRING, payload STRING, "
    "encrypted BOOLEAN, error_message STRING, retry_count INT, created_at TIMESTAMP, failed_at TIMESTAMP",
    "lag": "consumer_group STRING, queue STRING, partition STRING, partition_id STRING, lag BIGINT, "
    "oldest_unconsumed_at TIMESTAMP, lag_seconds DOUBLE, last_consumed_at TIMESTAMP, consumed BIGINT",
    "partitions": "queue STRING, partition STRING, partition_id STRING, last_seq BIGINT, trimmed_seq BIGINT, "
    "stored BIGINT, created_at TIMESTAMP, last_message_created_at TIMESTAMP, messages BIGINT, bytes BIGINT",
}
_TIMELESS: Final = ("lag",)
_PER_SPLIT: Final = 64 << 20  # bytes on disk that one task reads
_COUNTED_PER_SPLIT: Final = 1 << 30  # the same where segments are only counted
_MAX_SPLITS: Final = 64
_IDS: Final = 1 << 128


@dataclass(frozen=True)
class DatasetSplit(InputPartition):
    """What one task reads: from `low` to before `high`, as the query of the dataset understands them."""

    low: str = ""
    high: str = ""


def dataset_schema(name: Dataset) -> str:
    """The columns of a dataset, as DDL."""
    return SCHEMAS[name]


def read_dataset(
    spark: SparkSession,
    name: Dataset,
    *,
    database_url: str | None,
    queue: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    schema: str | None = None,
) -> DataFrame:
    """A dataset for pipelines; what is None is left to the source's defaults."""
    given = {
        "dataset": name,
        "databaseUrl": database_url,
        "queue": queue,
        "startingOffsets": None if since is None else since.isoformat(),
        "endingOffsets": None if until is None else until.isoformat(),
    }
    reader = spark.read.format("queen").options(**{option: value for option, value in given.items() if value})
    return (reader if schema is None else reader.schema(schema)).load()


class DatasetReader(DataSourceReader):
    """Reads one dataset. Made on the driver for planning, and again for each task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        _check_options(options)
        _check_schema(options.dataset, schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with arrow_reads(self._options.database_url) as cursor:
            return _PLANS[self._options.dataset](cursor, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, DatasetSplit)
        target = arrow_schema(self._schema)
        key = self._cipher()
        with arrow_reads(self._options.database_url) as cursor:
            cursor.execute(sql.query("dataset_arguments"), parameters=self._arguments(partition))
            cursor.fetchall()
            cursor.execute(sql.query(f"dataset_{self._options.dataset}"))
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    yield _shaped(_opened(batch, key), target)

    def _cipher(self) -> Cipher | None:
        if self._options.dataset != "dead_letters" or not self._options.decrypt or "payload" not in self._schema.names:
            return None
        return cipher()

    def _arguments(self, split: DatasetSplit) -> tuple[str, ...]:
        options = self._options
        names, patterns = names_and_patterns(options.queues)
        return (
            json.dumps(names if options.queues else None),
            json.dumps(options.namespace),
            json.dumps(options.task),
            json.dumps(options.partitions or None),
            _moment(options.starting.time, "-infinity"),
            _moment(options.ending.time, "infinity"),
            split.low,
            split.high,
            json.dumps("payload" in self._schema.names),
            json.dumps(patterns),
        )


def _metric_splits(cursor: dbapi.Cursor, options: ReadOptions) -> list[DatasetSplit]:
    since, until = _moment(options.starting.time, "-infinity"), _moment(options.ending.time, "infinity")
    cursor.execute(sql.query("dataset_metrics_extent"), parameters=(since, until))
    ((low, high),) = cursor.fetchall()
    if low is None:
        return [DatasetSplit("infinity", "infinity")]
    count = options.splits or _fitting(cursor, "queen.metrics_history", _PER_SPLIT)
    return [DatasetSplit(a.isoformat(), b.isoformat()) for a, b in ranges(low, high, count)]


def _dead_letter_splits(cursor: dbapi.Cursor, options: ReadOptions) -> list[DatasetSplit]:
    count = options.splits or _fitting(cursor, "queen.dead_letter_queue", _PER_SPLIT)
    edges = [str(UUID(int=_IDS * n // count)) for n in range(count)]
    return [DatasetSplit(low, high) for low, high in zip(edges, [*edges[1:], ""], strict=True)]


def _lag_splits(cursor: dbapi.Cursor, options: ReadOptions) -> list[DatasetSplit]:
    """One: all cursors as they are at one moment."""
    return [DatasetSplit()]


def _partition_splits(cursor: dbapi.Cursor, options: ReadOptions) -> list[DatasetSplit]:
    count = options.splits or _fitting(cursor, "queen.segments", _COUNTED_PER_SPLIT)
    cursor.execute(sql.query("dataset_partitions_extent"), parameters=(count,))
    return [DatasetSplit(str(low), str(high)) for low, high in cursor.fetchall()] or [DatasetSplit("0", "0")]


_PLANS: Final[dict[Dataset, Callable[[dbapi.Cursor, ReadOptions], list[DatasetSplit]]]] = {
    "metrics": _metric_splits,
    "dead_letters": _dead_letter_splits,
    "lag": _lag_splits,
    "partitions": _partition_splits,
}


def _fitting(cursor: dbapi.Cursor, table: str, per_split: int) -> int:
    cursor.execute(sql.query("dataset_bytes"), parameters=(table,))
    ((size,),) = cursor.fetchall()
    return min(_MAX_SPLITS, 1 + int(size) // per_split)


def ranges(low: datetime, high: datetime, count: int) -> list[tuple[datetime, datetime]]:
    """[low, high) in equal parts, at most `count`, none of them empty."""
    edges = sorted({low + (high - low) * n / count for n in range(count)} | {low, high})
    return list(pairwise(edges))


def _moment(moment: datetime | None, otherwise: str) -> str:
    return otherwise if moment is None else moment.isoformat()


def _opened(batch: pa.RecordBatch, cipher: Cipher | None) -> pa.RecordBatch:
    """Encrypted payloads in clear, when there is a key."""
    import pyarrow as pa

    if cipher is None or not batch.column("encrypted").true_count:
        return batch
    payloads: list[Any] = batch.column("payload").to_pylist()
    for place, sealed in enumerate(batch.column("encrypted").to_pylist()):
        if sealed:
            payloads[place] = _clear(cipher, payloads[place])
    names = batch.schema.names
    opened = batch.set_column(names.index("payload"), "payload", pa.array(payloads, pa.string()))
    clear = pa.array([False] * batch.num_rows)
    return opened.set_column(names.index("encrypted"), "encrypted", clear)


def _clear(cipher: Cipher, sealed: str) -> str:
    (clear,) = cipher.open([sealed.encode()])
    if clear is None:
        raise Unreadable(
            "a dead letter cannot be decrypted: QUEEN_ENCRYPTION_KEY is not the key it was encrypted with. Give the "
            "key of the server, or the option decrypt=false to read payloads as they are stored"
        )
    return clear.decode()


def _shaped(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The columns that are wanted, with exactly the types that Spark expects."""
    import pyarrow as pa

    columns = [batch.column(field.name).cast(field.type) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _check_options(options: ReadOptions) -> None:
    """What means something for messages only is refused, so that nobody believes it was heeded."""
    name = options.dataset
    allowed = f"left out for the dataset {name}"
    only_messages = (
        ("columns", ",".join(options.columns), "left out: give a schema with the wanted columns instead"),
        ("payloadSchema", options.payload_schema, allowed),
        ("consumerGroup", options.group, allowed),
        ("maxMessagesPerTrigger", options.max_messages, allowed),
        ("maxBytesPerTrigger", options.max_bytes, allowed),
        ("pushdown", "true" if options.pushdown else None, allowed),
    )
    for option, given, meant in only_messages:
        if given:
            raise OptionError(option, str(given), meant)
    _check_times(options)
    if name == "metrics":
        for option, value in (("namespace", options.namespace), ("task", options.task)):
            if value is not None:
                raise OptionError(option, value, f"{allowed}; choose scopes with queue")
        if options.partitions:
            raise OptionError("partitions", ",".join(options.partitions), allowed)


def _check_times(options: ReadOptions) -> None:
    sides = (("startingOffsets", options.starting, "earliest"), ("endingOffsets", options.ending, "latest"))
    for option, where, default in sides:
        timeless = options.dataset in _TIMELESS
        if where.word != default and (timeless or where.word != "time"):
            meant = "left out, since it shows the present" if timeless else f"{default} or a time"
            raise OptionError(option, where.word, f"{meant} for the dataset {options.dataset}")


def _check_schema(name: Dataset, schema: StructType) -> None:
    known = dict(column.split() for column in SCHEMAS[name].lower().split(", "))
    for field in schema.fields:
        given = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
        if known.get(field.name) != given:
            raise OptionError("schema", f"{field.name} {given}", f"columns of {SCHEMAS[name]}")
