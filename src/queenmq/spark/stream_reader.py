"""Streaming reads. Spark asks where the queue ends, plans a micro-batch between two offsets, and says when it is done
with one.

One process on the driver answers these questions for a query; it keeps a connection and the last state. The head of a
partition is the row that a push updates in its own transaction: a push that commits late is behind the head until
then, so nothing is ever skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .. import sql
from . import positions
from .admission import about, at_most
from .connecting import ArrowSession
from .errors import OptionError
from .options import ReadOptions
from .planning import Ranges, divided, matching, starting_at, stream_splits, warn_of_unknown
from .positions import Epoch, Moment, Positions
from .progress_group import ProgressGroup
from .reader import Split, read_split
from .removals import removed_since, together
from .schema import check_schema

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    from adbc_driver_postgresql import dbapi
    from pyspark.sql.types import StructType

_SAMPLED: Final = 2000
_FORGET_EVERY: Final = 20
_TOUCH_SECONDS: Final = 3600.0
"""How often a stream says that it is in use; much less than the time after which it would be forgotten."""
_T = TypeVar("_T")


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.dataset == "messages":
            check_schema(schema)
        elif options.dataset != "ranges":
            raise OptionError("dataset", options.dataset, "messages or ranges: the others can only be read as a batch")
        if options.ending.word != "latest":
            raise OptionError("endingOffsets", options.ending.word, "left out: a stream has no end")
        self._options = options
        self._schema = schema
        self._session = ArrowSession(options.database_url)
        self._states: dict[int, Epoch] = {}
        self._first: Epoch | None = None
        self._stop_at: Ranges | None = None
        self._latest = 0
        self._group = None if options.group is None else ProgressGroup(options.database_url, options.group)
        self._commits = 0
        self._touched = -_TOUCH_SECONDS

    def __reduce__(self) -> tuple[object, ...]:
        """What a task gets: the positions of all partitions and the connection stay here."""
        return type(self), (self._options, self._schema)

    # What Spark asks on the driver.

    def initialOffset(self) -> dict[str, int]:
        if self._first is None:
            moment, start = self._ask(self._beginning)
            self._first = self._ask(lambda cursor: positions.keep_first(cursor, start, moment), writes=True)
            self._remember(self._first)
        return self._first.offset

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stop_at = self._ask(lambda cursor: matching(cursor, self._options))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        before = self._state(start)
        self._check_group(before)
        moment, chosen = self._ask(lambda cursor: self._next(cursor, before, limit))
        if not len(chosen.pids):
            self._touch(before, moment)
            return before.offset
        change, count = Positions(chosen.pids, chosen.his), chosen.messages
        epoch = self._ask(lambda cursor: positions.keep_next(cursor, before, change, count, moment), writes=True)
        self._remember(epoch)
        return epoch.offset

    def reportLatestOffset(self) -> dict[str, int]:
        return {"position": self._latest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        before, after = self._stretch(start, end)
        self._check_group(before)
        if before.number == before.lineage:
            self._publish(before)
        change = after.positions.since(before.positions)
        ranges = Ranges(change.pids, before.positions.at(change.pids), change.seqs)
        splits = self._options.splits or stream_splits(ranges.messages)
        return [Split(part) for part in divided(ranges, splits)] or [Split(ranges)]

    def commit(self, end: dict[str, int]) -> None:
        self._commits += 1
        epoch = self._state(end)
        self._publish(epoch)
        self._touch(epoch)
        if self._commits % _FORGET_EVERY == 0:
            self._ask(lambda cursor: positions.forget(cursor, epoch.number), writes=True)
        self._states = {number: state for number, state in self._states.items() if number >= epoch.number}

    def stop(self) -> None:
        self._session.close()

    # What an executor does.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        if self._options.dataset == "ranges":
            return _described(partition.ranges)
        return read_split(self._options, self._schema, partition.ranges)

    def _beginning(self, cursor: dbapi.Cursor) -> tuple[Moment, Positions]:
        moment = positions.look(cursor)
        warn_of_unknown(cursor, self._options.queues, "it is read when it is there")
        stored = matching(cursor, self._options)
        start = starting_at(cursor, stored, self._options.starting)
        return moment, Positions(stored.pids[start > 0], start[start > 0])

    def _next(self, cursor: dbapi.Cursor, before: Epoch, limit: ReadLimit) -> tuple[Moment, Ranges]:
        """What a micro-batch after this epoch reads."""
        moment = positions.look(cursor)
        backlog = self._backlog(cursor, before)
        lost = removed_since(cursor, self._options, before)
        self._latest = before.messages + backlog.messages + lost.messages
        return moment, together(self._admitted(cursor, backlog, limit, before.number).nonempty(), lost)

    def _backlog(self, cursor: dbapi.Cursor, before: Epoch) -> Ranges:
        heads = matching(cursor, self._options)
        backlog = Ranges(heads.pids, before.positions.at(heads.pids), heads.his)
        if self._stop_at is not None:
            ends = Positions(self._stop_at.pids, self._stop_at.his)
            backlog = replace(backlog, his=np.minimum(backlog.his, ends.at(backlog.pids)))
        return backlog.nonempty()

    def _admitted(self, cursor: dbapi.Cursor, backlog: Ranges, limit: ReadLimit, turn: int) -> Ranges:
        if isinstance(limit, ReadAllAvailable) or not len(backlog.pids):
            return backlog
        if self._options.max_messages is not None:
            backlog = at_most(backlog, self._options.max_messages, turn).nonempty()
        if self._options.max_bytes is not None:
            backlog = about(backlog, self._options.max_bytes, _sizes(cursor, backlog), turn)
        return backlog

    def _state(self, offset: dict[str, int]) -> Epoch:
        number = int(offset["epoch"])
        if number not in self._states:
            self._remember(self._ask(lambda cursor: positions.load(cursor, number)))
        return self._states[number]

    def _remember(self, epoch: Epoch) -> None:
        self._states[epoch.number] = epoch

    def _stretch(self, start: dict[str, int], end: dict[str, int]) -> tuple[Epoch, Epoch]:
        """The epochs between which a micro-batch lies. After a crash before its first batch was committed, a stream is
        asked once more where it begins, and the batch is planned from this new answer to the end that Spark wrote down.
        The batch begins where the stream of that end began, whatever is the earliest or latest message by now."""
        before, after = self._state(start), self._state(end)
        if before.lineage == after.lineage:
            return before, after
        self._first = self._state({"epoch": after.lineage})
        self._ask(lambda cursor: positions.drop_first(cursor, before.number), writes=True)
        return self._first, after

    def _touch(self, epoch: Epoch, moment: Moment | None = None) -> None:
        if time.monotonic() - self._touched >= _TOUCH_SECONDS:
            self._ask(lambda cursor: positions.looked(cursor, epoch.number, moment), writes=True)
            self._touched = time.monotonic()

    def _check_group(self, before: Epoch) -> None:
        group = self._group
        if group is not None and not group.checked:
            stored = self._ask(lambda cursor: matching(cursor, self._options)).pids
            everywhere = Positions(stored, before.positions.at(stored))
            self._ask(lambda cursor: group.check(cursor, everywhere, before.positions))

    def _publish(self, epoch: Epoch) -> None:
        group = self._group
        if group is not None:
            self._ask(lambda cursor: group.show(cursor, epoch.positions))

    def _ask(self, question: Callable[[dbapi.Cursor], _T], *, writes: bool = False) -> _T:
        with self._session.transaction(writes=writes) as cursor:
            return question(cursor)


def _described(ranges: Ranges) -> Iterator[pa.RecordBatch]:
    """The plan of a task itself, for those who fetch its messages in a way of their own."""
    import pyarrow as pa

    kinds = pa.schema({"ranges": pa.binary(), "messages": pa.int64()})
    yield pa.RecordBatch.from_pylist([{"ranges": ranges.encoded(), "messages": ranges.messages}], kinds)


def _sizes(cursor: dbapi.Cursor, backlog: Ranges) -> npt.NDArray[np.float64]:
    """The size of a message in each partition, from a sample; where none was taken, the average of the sample."""
    sample = np.linspace(0, len(backlog.pids) - 1, min(len(backlog.pids), _SAMPLED)).astype(np.int64)
    pids, los = positions.list_text(backlog.pids[sample]), positions.list_text(backlog.los[sample])
    cursor.execute(sql.query("spark_average_sizes"), parameters=(pids, los))
    table = cursor.fetch_arrow_table()
    place, size, count = (column.to_numpy().astype(np.int64) for column in table.columns)
    known = np.full(len(backlog.pids), max(size.sum() / max(count.sum(), 1), 1.0))
    known[sample[place - 1]] = np.maximum(size / count, 1.0)
    return known
