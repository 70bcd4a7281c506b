"""What a pipeline and its runner agree on: what it is asked for, what it tells meanwhile, what it hands back.

A pipeline is a module with `run(spark, arguments, events) -> Outcome`. It may be called again after a failure, with
the same arguments and the same checkpoint, so whatever it did before must not be done twice. It raises a SparkError for
what a repetition cannot mend, and lets everything else through. One that streams starts its query and leaves the rest
to `follow`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Status = Literal["finished", "stopped", "differences"]
Offset = dict[str, Any]
POLL_SECONDS: Final = 0.25
# How long a stop waits for the batch under way. Ending it in the middle loses nothing, it is only repeated later.
STOP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Arguments:
    """What somebody wants of a pipeline; each uses some of it, and the registry says which. No secrets."""

    queue: str | None = None
    lake: str | None = None
    checkpoint: str | None = None
    to: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    once: bool = False
    out: str | None = None
    config: str | None = None
    where: str | None = None
    partitions: tuple[str, ...] = ()
    database_url: str | None = None
    url: str | None = None
    max_messages: int | None = None
    trigger_seconds: float = 5.0
    interval_seconds: float | None = None
    accept_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `rows` counts from its start; `lag` is how many messages are still to be read."""

    rows: int
    rows_per_second: float | None = None
    lag: int | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, and lines for people. `differences` is for checks that found some."""

    rows: int
    summary: tuple[str, ...] = ()
    status: Status = "finished"


class Events(Protocol):
    """The runner, as a pipeline sees it."""

    def progress(self, progress: Progress) -> None: ...

    def stop_requested(self) -> bool: ...


@dataclass(slots=True)
class Quiet:
    """Events for those who call a pipeline from their own program."""

    seen: list[Progress] = field(default_factory=list)
    stopping: bool = False

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)

    def stop_requested(self) -> bool:
        return self.stopping


class Run(Protocol):
    def __call__(self, spark: SparkSession, arguments: Arguments, events: Events) -> Outcome: ...


class Query(Protocol):
    """The part of a StreamingQuery that is needed here."""

    @property
    def isActive(self) -> bool: ...

    @property
    def recentProgress(self) -> list[Any]: ...

    @property
    def status(self) -> dict[str, Any]: ...

    def awaitTermination(self, timeout: Any = None) -> bool | None: ...

    def stop(self) -> None: ...


OnCommit = Callable[[Offset], None]
Written = Callable[[int], int]


def follow(query: Query, events: Events, on_commit: OnCommit | None = None, written: Written | None = None) -> Outcome:
    """Stay with a query until it ends, or is asked to end. Raises what made it fail.

    `on_commit` gets the end offset of its source for each batch that the sink has committed, in order, once. Right
    after a start it may get the one at which the query stood before, for those who died between the two. `written`
    knows how many messages of a batch the sink has stored; without it, all that the source has passed count.
    """
    told = _Told(query, events, on_commit, written)
    try:
        while not query.awaitTermination(POLL_SECONDS):
            told.look()
            if events.stop_requested():
                _stop(query, told)
                told.look()
                return Outcome(told.rows, status="stopped")
        told.look()
    except BaseException:
        with suppress(Exception):
            told.look()  # batches that were committed before the failure count
        with suppress(Exception):
            query.stop()  # it may be another one that failed
        raise
    return Outcome(told.rows)


class _Told:
    """What was told of a query's progress so far."""

    def __init__(self, query: Query, events: Events, on_commit: OnCommit | None, written: Written | None) -> None:
        self._query = query
        self._events = events
        self._on_commit = on_commit
        self._written = written
        self._last = (-1, "")
        self._committed: Offset | None = None
        self.rows = 0

    def look(self) -> bool:
        """Tell what is not told yet; False when there is nothing."""
        fresh = [each for each in self._query.recentProgress if _key(each) > self._last]
        for each in fresh:
            self._last = _key(each)
            self._tell(each)
        return bool(fresh)

    def _tell(self, progress: Any) -> None:
        source = progress["sources"][0] if progress["sources"] else {}
        end, latest = _offset(source, "endOffset"), _offset(source, "latestOffset")
        rows, batch = int(progress["numInputRows"]), int(progress["batchId"])
        counted = _passed(_offset(source, "startOffset"), end) if rows else 0
        if rows and self._written is not None:
            counted = self._written(batch)
        self.rows += rows if counted is None else counted
        if end is not None and end != self._committed:
            self._committed = end
            if self._on_commit is not None:
                self._on_commit(end)
        shown = Progress(self.rows, _speed(progress, counted), _lag(end, latest), batch)
        self._events.progress(shown)


def _stop(query: Query, told: _Told) -> None:
    """Between two batches if one ends soon. Under load there is no pause between them, only the news that one ended."""
    deadline = time.monotonic() + STOP_SECONDS
    while query.status["isTriggerActive"] and time.monotonic() < deadline:
        if query.awaitTermination(POLL_SECONDS) or told.look():
            break
    query.stop()


def _key(progress: Any) -> tuple[int, str]:
    """While there is no data, progress is reported again and again under the number of the batch that will come."""
    return int(progress["batchId"]), str(progress["timestamp"])


def _offset(source: Any, name: str) -> Offset | None:
    text = source.get(name) if isinstance(source, dict) else source[name]
    found = json.loads(text) if isinstance(text, str) else text
    return found if isinstance(found, dict) else None


def _passed(start: Offset | None, end: Offset | None) -> int | None:
    """Messages of a batch: what a source delivers for them may be fewer rows. A stream begins at 0."""
    if end is None or "position" not in end:
        return None
    return int(end["position"]) - int((start or {}).get("position", 0))


def _speed(progress: Any, counted: int | None) -> float | None:
    rows = int(progress["numInputRows"])
    speed = float(progress["processedRowsPerSecond"] or 0.0)
    if counted is not None and rows:
        speed *= counted / rows
    return speed if isfinite(speed) else None


def _lag(end: Offset | None, latest: Offset | None) -> int | None:
    if end is None or latest is None or "position" not in end or "position" not in latest:
        return None
    return max(0, int(latest["position"]) - int(end["position"]))
