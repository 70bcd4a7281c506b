"""DataFrames and streams into queues.

What a write needs is checked on the driver, when the query is planned; tasks push their rows by themselves, and what
they have pushed can be read at once. There is nothing to commit and nothing to take back: a task that runs again makes
the same transactionIds, so its messages are recognised and stored once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..domain.ids import new_id
from .errors import WriteRefused
from .options import WriteOptions
from .pushing import Pusher, Tally, push_all
from .row_ids import RowIds, Scope
from .write_rows import Columns, Rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log: Final = logging.getLogger("queenmq.spark")
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task has done."""

    tally: Tally


class MessageWriter(DataSourceArrowWriter):
    """A DataFrame into queues. Without a `writeId` every write is one of its own, but for the attempts of its tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._columns = _checked(options, schema, overwrite)
        self._id = options.write_id or new_id()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(push_rows(iterator, self._columns, self._options, _scope(self._id)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell("%s", _summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._columns.transaction_id is not None:
            again = "rows with a transaction_id are not added twice"
        elif self._options.write_id:
            again = "the same writeId adds nothing twice"
        else:
            again = "without a writeId it is added again"
        _tell("the write failed; what it has pushed stays in the queue; when it is repeated, %s", again)


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """A stream into queues. The query's id is in its checkpoint, so a restart repeats a batch under the same ids."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._columns = _checked(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(push_rows(iterator, self._columns, self._options, _scope(self._options.write_id or "")))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Says something only when a batch was repeated: a stream has a progress of its own."""
        if any(isinstance(message, Written) and message.tally.duplicates for message in messages):
            _tell("batch %d: %s", batchId, _summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _tell("batch %d failed; what it has pushed stays, and is recognised when the query is restarted", batchId)


def push_rows(batches: Iterator[pa.RecordBatch], columns: Columns, options: WriteOptions, scope: Scope) -> Tally:
    """What a task does. Raises WriteRefused."""
    rows = Rows(columns, options, RowIds(scope))
    return push_all(rows.parcels(batches), _pusher(options), scope.task)


def _checked(options: WriteOptions, schema: StructType, overwrite: bool) -> Columns:
    if overwrite:
        raise WriteRefused(
            "a queue cannot be overwritten, only added to; use mode append (for a stream: outputMode append or update)"
        )
    return Columns.of(schema, options)


def _pusher(options: WriteOptions) -> Pusher:
    if options.url is not None:
        from .http_pushing import HttpPusher

        return HttpPusher(options.url, options.max_retry_seconds)
    from .database_pushing import DatabasePusher

    return DatabasePusher(options.database_url or "", options.max_retry_seconds)


def _scope(write_id: str) -> Scope:
    """In a stream, and in what its foreachBatch writes, the query and the batch are part of it."""
    context = TaskContext.get()
    if context is None:
        raise WriteRefused("rows are written by Spark's tasks only")
    query = context.getLocalProperty(_QUERY) or ""
    return Scope(query, int(context.getLocalProperty(_BATCH) or 0), write_id, context.partitionId())


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    tally = sum((message.tally for message in messages if isinstance(message, Written)), Tally())
    total = tally.queued + tally.duplicates
    return f"wrote {total:,} messages: {tally.queued:,} queued, {tally.duplicates:,} duplicates that were there already"


def _tell(words: str, *values: object) -> None:
    """To the driver's standard error, unless something else is set up: Spark runs this in a process of its own."""
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)
    if not _log.hasHandlers():
        _log.addHandler(logging.StreamHandler(sys.stderr))
    _log.info(words, *values)
