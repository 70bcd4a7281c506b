"""Reads through the source's own classes, in this process: all but Spark itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql.datasource import Filter
from pyspark.sql.types import BooleanType, LongType, StringType, StructType, TimestampType

from queenmq.spark.options import COLUMNS, read_options
from queenmq.spark.reader import FilteredReader, MessageReader, message_reader
from queenmq.spark.stream_reader import MessageStreamReader

Rows = list[dict[str, Any]]
_KINDS = {"seq": LongType(), "encrypted": BooleanType(), "created_at": TimestampType()}


def schema(columns: Sequence[str] = COLUMNS, data: StructType | None = None) -> StructType:
    made = StructType()
    for name in columns:
        made.add(name, _KINDS.get(name, StringType()))
    return made if data is None else made.add("data", data)


def reader(
    url: str, columns: Sequence[str] = COLUMNS, data: StructType | None = None, **options: object
) -> MessageReader:
    given = {"databaseUrl": url, "queue": "*"} | {name: str(value) for name, value in options.items()}
    return message_reader(read_options(given, {}), schema(columns, data))


def batch(
    url: str,
    columns: Sequence[str] = COLUMNS,
    *,
    filters: Iterable[Filter] = (),
    data: StructType | None = None,
    **options: object,
) -> Rows:
    """Everything that a batch read returns, task after task."""
    filters = list(filters)
    source = reader(url, columns, data, **({"pushdown": "true"} if filters else {}) | options)
    if filters:
        assert isinstance(source, FilteredReader)
        assert list(source.pushFilters(filters)) == []
    return [row for part in source.partitions() for each in source.read(part) for row in each.to_pylist()]


opened: list[MessageStreamReader] = []
"""Streams of the running test; each keeps a connection until it is stopped."""


def stream(url: str, **options: object) -> MessageStreamReader:
    given = {"databaseUrl": url, "queue": "*"} | {name: str(value) for name, value in options.items()}
    opened.append(MessageStreamReader(read_options(given, {}), schema()))
    return opened[-1]


def between(source: MessageStreamReader, start: dict[str, int], end: dict[str, int]) -> Rows:
    """What a micro-batch between two offsets contains."""
    return [row for part in source.partitions(start, end) for each in source.read(part) for row in each.to_pylist()]


def step(source: MessageStreamReader, start: dict[str, int]) -> tuple[Rows, dict[str, int]]:
    """The next micro-batch, and the offset it ends with."""
    end = source.latestOffset(start, source.getDefaultReadLimit())
    return between(source, start, end), end


def places(rows: Rows) -> list[tuple[str, str, int]]:
    return [(row["queue"], row["partition"], row["seq"]) for row in rows]


__all__ = ["Rows", "batch", "between", "opened", "places", "reader", "schema", "step", "stream"]
