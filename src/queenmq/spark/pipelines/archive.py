"""Copies queues into a lake, exactly once, and keeps retention from removing what the lake does not hold yet.

Each micro-batch is one commit of the lake under the id of the query and the number of the batch, so a batch that Spark
repeats after a failure is recognised. A hold keeps retention off every queue of the archive, also while the archive is
stopped; it moves on when Spark has recorded that a batch is committed, as only then that batch is never read again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...storage import holds, pipeline_states
from ...storage.holds import WEEK
from ...storage.queues import list_queues
from ..connecting import call
from ..errors import PipelineError
from ..lake import layout
from ..lake.checkpoint import Checkpoint
from ..lake.claims import Claims
from ..lake.commit import Writer
from ..lake.compaction import Compactor, Limits
from ..lake.direct import Planned
from ..lake.filesystem import Files, check_writable, open_lake
from ..lake.manifest import Conflict, Log, LostMessages
from ..lake.reading import matcher, patterns, reaches
from ..options import read_options
from ..positions import release_holds
from .base import Arguments, Events, Outcome, Quiet, follow

if TYPE_CHECKING:
    import asyncpg
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ...storage.pipeline_states import PipelineState
    from ..options import ReadOptions
    from ..reader import Lost

MAX_MESSAGES: Final = 1_000_000
"""In one batch, unless told otherwise: the first batch of an old queue must not be all of it."""
_HOLDER: Final = "archive:"
_SHOWN: Final = 20
_LOST: Final = (
    "the lake {} is empty, although messages were archived into it; is it mounted? To begin a lake there anew, end its "
    "holds (queen pipeline release) and leave its checkpoint behind"
)
_NO_WAY: Final = (
    "Spark has no access to the checkpoint {}; give a checkpoint in a directory, or add the jar for such places "
    "(for s3a: org.apache.hadoop:hadoop-aws in spark.jars.packages)"
)
_RUNS: Final = "{0} is running, and would only take its holds again; stop it first with: queen pipeline stop {0}"


def run(spark: SparkSession, arguments: Arguments, events: Events) -> Outcome:
    assert arguments.lake is not None
    assert arguments.queue is not None
    return archive(
        spark,
        lake=arguments.lake,
        queue=arguments.queue,
        checkpoint=arguments.checkpoint,
        once=arguments.once,
        database_url=arguments.database_url,
        max_messages=arguments.max_messages or MAX_MESSAGES,
        trigger_seconds=arguments.trigger_seconds,
        fail_on_data_loss=not arguments.accept_data_loss,
        events=events,
    )


def archive(
    spark: SparkSession,
    *,
    lake: str | os.PathLike[str],
    queue: str,
    checkpoint: str | os.PathLike[str] | None = None,
    once: bool = False,
    database_url: str | None = None,
    max_messages: int = MAX_MESSAGES,
    trigger_seconds: float = 5.0,
    hold_cap_seconds: int = WEEK,
    fail_on_data_loss: bool = True,
    compaction: Limits | None = None,
    events: Events | None = None,
) -> Outcome:
    """Archive until told to stop, or with `once` until everything that is in the queues now is in the lake. Without
    `fail_on_data_loss`, messages that are gone are left out, and the manifest says which."""
    given = {"queue": queue, "databaseUrl": database_url, "maxMessagesPerTrigger": str(max_messages)}
    # What was encrypted stays so in the lake, even where the key is at hand.
    given |= {"dataset": "ranges", "decrypt": "false", "failOnDataLoss": str(fail_on_data_loss).lower()}
    options = {name: value for name, value in given.items() if value is not None}
    reading = read_options(options)
    files = open_lake(lake, Claims(reading.database_url))
    place = Checkpoint(open_lake(checkpoint) if checkpoint else files.below(layout.checkpoint(queue)))
    if not reaches(spark, place.uri):
        raise PipelineError(_NO_WAY.format(place.uri))
    holding = Holding(reading, holder_of(files), hold_cap_seconds)
    archiving = _Archiving(spark, files, place, holding, compaction or Limits())
    archiving.prepare()
    query = _started(spark, options, archiving, once, trigger_seconds)
    outcome = follow(query, events or Quiet(), archiving.committed, archiving.written)
    return Outcome(outcome.rows, (f"the lake is {files.uri()}", *archiving.left_out()), outcome.status)


def holder_of(files: Files) -> str:
    """The name of the holds for a lake."""
    return _HOLDER + files.uri()


def release(*, lake: str | os.PathLike[str], queue: str, database_url: str | None = None) -> list[str]:
    """End the holds of an archive that will not go on; returns the queues that were held. Refused while it runs."""
    given = {"queue": queue, "databaseUrl": database_url}
    options = read_options({name: value for name, value in given.items() if value is not None})
    return Holding(options, holder_of(open_lake(lake)), WEEK).release()


@dataclass(frozen=True, slots=True)
class Holding:
    """The holds of one archive."""

    options: ReadOptions
    holder: str
    cap_seconds: int

    def acquire(self) -> None:
        """Hold every queue that matches; those that are held stay as they are."""

        async def work(connection: asyncpg.Connection) -> None:
            held = {hold.queue for hold in await holds.list_holds(connection) if hold.holder == self.holder}
            wanted = matcher(self.options.queues)
            for queue in await list_queues(connection):
                if wanted.fullmatch(queue.name) and queue.name not in held:
                    await holds.acquire(connection, queue.name, self.holder, cap_seconds=self.cap_seconds)

        call(self.options.database_url, work)

    def has_released(self) -> bool:
        """Whether something was archived, according to the holds."""

        async def work(connection: asyncpg.Connection) -> bool:
            found = await holds.list_holds(connection)
            return any(hold.holder == self.holder and hold.released_to is not None for hold in found)

        return call(self.options.database_url, work)

    def advance(self, offset: dict[str, Any]) -> None:
        """Release what all batches up to this offset contain."""
        release_holds(self.options.database_url, int(offset["epoch"]), self.holder)

    def release(self) -> list[str]:
        async def work(connection: asyncpg.Connection) -> list[str]:
            wanted = matcher(self.options.queues)
            held = [hold.queue for hold in await holds.list_holds(connection) if hold.holder == self.holder]
            ended = [queue for queue in held if wanted.fullmatch(queue)]
            for seen in await pipeline_states.listed(connection):
                if seen.alive and self._is_of(seen.state, ended):
                    raise PipelineError(_RUNS.format(seen.state.id))
            for queue in ended:
                await holds.release(connection, queue, self.holder)
            return ended

        return call(self.options.database_url, work)

    def _is_of(self, run: PipelineState, queues: list[str]) -> bool:
        """Whether this run holds one of these queues for the same lake."""
        lake, queue = run.arguments.get("lake"), run.arguments.get("queue")
        if run.pipeline != "archive" or not isinstance(lake, str) or not isinstance(queue, str):
            return False
        holds_some = any(map(matcher(patterns(queue)).fullmatch, queues))
        return holds_some and holder_of(open_lake(lake)) == self.holder


@dataclass(slots=True)
class _Archiving:
    """One run of an archive."""

    spark: SparkSession
    files: Files
    checkpoint: Checkpoint
    holding: Holding
    limits: Limits
    writer: Writer | None = field(default=None, init=False)
    lost: list[Lost] = field(default_factory=list, init=False)
    rows: dict[int, int] = field(default_factory=dict, init=False)
    """Of each batch that is in the lake and was not told yet."""

    def prepare(self) -> None:
        """Before the first read: hold the queues, and do what a run before this one may have died over."""
        offset = self.checkpoint.committed()
        if (offset is not None or self.holding.has_released()) and not Log(self.files).state.number:
            raise PipelineError(_LOST.format(self.files.uri()))
        check_writable(self.files)
        self.holding.acquire()
        if offset is not None:
            self.holding.advance(offset)
            self._compactor().tidy()

    def write(self, frame: DataFrame, batch: int) -> None:
        """What Spark calls for each batch."""
        self.holding.acquire()
        if self.writer is None:
            self.writer = Writer(self.files, _HOLDER + self.checkpoint.query_id())
        planned = Planned(frame, self.holding.options)
        lost = [] if self.holding.options.fail_on_data_loss else planned.leave_out_lost(self.spark)
        try:
            added = self.writer.write(batch, planned, lost=[_named(each) for each in lost])
        except Conflict as conflict:
            raise PipelineError(conflict.message) from None
        if added is not None:
            self.lost += lost
        if added:
            self.rows[batch] = sum(file.rows for file in added)
            queues = sorted({file.queue for file in added})
            self._compactor().step(self.spark, self.limits, queues, self.writer.log)

    def committed(self, offset: dict[str, Any]) -> None:
        if self.writer is not None:  # else this is what `prepare` has seen, or nothing was ever read
            self.holding.advance(offset)

    def written(self, batch: int) -> int:
        return self.rows.pop(batch, 0)

    def left_out(self) -> list[str]:
        """What is lost, for people."""
        more = len(self.lost) - _SHOWN
        lines = [f"left out: {each}" for each in self.lost[:_SHOWN]]
        return [*lines, f"left out: {more} more, which the manifest names"] if more > 0 else lines

    def _compactor(self) -> Compactor:
        return Compactor(self.files, self.checkpoint.query_id())


def _named(lost: Lost) -> LostMessages:
    return LostMessages(
        queue=lost.queue, partition=lost.partition, partition_number=lost.pid, first=lost.first, last=lost.last
    )


def _started(
    spark: SparkSession, options: dict[str, str], archiving: _Archiving, once: bool, trigger_seconds: float
) -> StreamingQuery:
    messages = spark.readStream.format("queen").options(**options).load()
    writer = messages.writeStream.foreachBatch(archiving.write)
    writer = writer.option("checkpointLocation", archiving.checkpoint.uri)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{trigger_seconds} seconds").start()
