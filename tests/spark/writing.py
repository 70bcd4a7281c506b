"""What tests of the writer need: rows as Spark hands them to a task, and a look at what was stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import pyarrow as pa

from queenmq.spark.options import WriteOptions, write_options
from queenmq.spark.pushing import Tally
from queenmq.spark.row_ids import Scope
from queenmq.spark.write_rows import Columns
from queenmq.spark.writer import push_rows

SCOPE = Scope("query", 7, "", 0)
_STORED = """
    select partition, seq::int, transaction_id, payload::text, trace_id::text, producer_sub, encrypted
    from queen.messages where queue = $1 order by partition, seq
"""


@dataclass(frozen=True, slots=True)
class Stored:
    partition: str
    seq: int
    transaction_id: str
    payload: str
    trace_id: str | None
    producer_sub: str | None
    encrypted: bool


def asked(database: str, query: str, *arguments: Any) -> list[Any]:
    async def ask() -> list[Any]:
        connection = await asyncpg.connect(database)
        try:
            return list(await connection.fetch(query, *arguments))
        finally:
            await connection.close()

    return asyncio.run(ask())


def stored(database: str, queue: str) -> list[Stored]:
    """Every message of a queue, partition by partition in order."""
    return [Stored(*row) for row in asked(database, _STORED, queue)]


def payloads(database: str, queue: str) -> list[str]:
    return [message.payload for message in stored(database, queue)]


def to_database(database: str, **given: str) -> WriteOptions:
    return write_options({"maxRetrySeconds": "20", **given}, {"DATABASE_URL": database})


def to_server(url: str, **given: str) -> WriteOptions:
    return write_options({"maxRetrySeconds": "20", "url": url, **given}, {})


def rows(**columns: Sequence[object]) -> pa.RecordBatch:
    types = {"encrypted": pa.bool_()}
    return pa.record_batch({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})


def write(options: WriteOptions, *batches: pa.RecordBatch, scope: Scope = SCOPE) -> Tally:
    """What one task does with these batches."""
    positions = {name: position for position, name in enumerate(batches[0].schema.names)}
    return push_rows(iter(batches), Columns(**positions), options, scope)


def numbered(count: int, start: int = 0) -> Iterator[str]:
    return (f'{{"n": {number}}}' for number in range(start, start + count))
