"""Runs a pipeline to its end: keeps its state, shows progress, restarts it when it fails, stops it when asked.

A pipeline that streams continues at its checkpoint, so whatever tore its query down, be it a worker that did not come
up, a lost connection or a Java process that died, is answered by starting it again, with pauses that grow until
something gets done. What another try cannot mend ends the run at once: a wrong option, lost messages, rows that the
queue refuses.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from ..storage.pipeline_states import PipelineState, now
from ..storage.system_state import Json
from ..storage.url import without_password
from .errors import DataLoss, PipelineBusy, PipelineFailed, SparkError
from .failures import final, sentence
from .pipelines.base import Arguments, Outcome, Progress, Run
from .pipelines.registry import Pipeline
from .processes import identity
from .state import Keeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_PAUSE: Final = 60
_LOOK_SECONDS: Final = 0.5


class Display(Protocol):
    """Where a run is shown."""

    def progress(self, progress: Progress) -> None: ...

    def say(self, sentence: str) -> None: ...


class Sessions(Protocol):
    """Where the Spark session comes from. `lost` says whether the one at hand is dead, and forgets it if so."""

    def open(self) -> SparkSession: ...

    def lost(self, session: SparkSession) -> bool: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What to run, and how stubbornly. A label tells apart several runs of one pipeline."""

    pipeline: Pipeline
    arguments: Arguments
    database_url: str
    label: str | None = None
    master: str = ""
    max_restarts: int = 10

    @property
    def id(self) -> str:
        return f"{self.pipeline.name}:{self.label}" if self.label else self.pipeline.name

    def with_way_out(self, error: SparkError) -> SparkError:
        """An error that every run would meet again, with the command that ends this."""
        if not isinstance(error, DataLoss) or "accept_data_loss" not in self.pipeline.takes:
            return error
        what = error.message.partition(DataLoss.WAY_OUT)[0]
        command = self.pipeline.command(replace(self.arguments, once=True, accept_data_loss=True))
        return DataLoss(f"{what}{DataLoss.WAY_OUT}, run once: {command}")


class Runner:
    """One run. It is the Events of its pipeline."""

    def __init__(
        self, job: Job, sessions: Sessions, display: Display, *, work: Run | None = None, pace: float = 1.0
    ) -> None:
        self._job = job
        self._sessions = sessions
        self._display = display
        self._work = work
        self._pace = pace
        self._stop = threading.Event()
        self._keeper: Keeper | None = None
        self._rows_before = 0
        self._rows = 0
        self._batch: int | None = None
        self._progressed = False

    def request_stop(self) -> None:
        """From a signal handler, or any thread."""
        self._stop.set()

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def progress(self, progress: Progress) -> None:
        before, batch = self._batch, progress.batch
        further = before is not None and batch is not None and batch > before
        self._progressed = self._progressed or further or progress.rows > self._rows
        self._rows, self._batch = progress.rows, batch
        total = Progress(self._rows_before + progress.rows, progress.rows_per_second, progress.lag, progress.batch)
        self._change(rows=total.rows, rows_per_second=total.rows_per_second, lag=total.lag, batch=total.batch)
        self._display.progress(total)

    def run(self) -> Outcome:
        """Until the pipeline has ended or was stopped. Raises SparkError when it failed for good."""
        work = self._work or self._job.pipeline.load()
        job = self._job
        with Keeper(job.database_url, first_state(job), self.request_stop, streams=job.pipeline.streaming) as keeper:
            self._keeper = keeper
            try:
                outcome = self._supervised(work)
            except BaseException as error:
                self._change(state="failed", last_error=sentence(error))
                raise
            if keeper.displaced:
                raise PipelineBusy(f"another run of {self._job.id} has taken the place of this one, which has stopped")
            self._change(state="stopped" if outcome.status == "stopped" else "finished", rows=outcome.rows)
            return outcome

    def _supervised(self, work: Run) -> Outcome:
        failures = restarts = 0
        while not self.stop_requested():
            self._progressed = False
            try:
                return self._attempt(work)
            except Exception as error:
                if self.stop_requested():
                    break
                failures = 1 if self._progressed else failures + 1
                self._give_up_on(error, failures)
                restarts += 1
                self._change(restarts=restarts, last_error=sentence(error))
                seconds = pause(failures)
                self._display.say(f"{self._job.id} failed ({sentence(error)}); starting it again in {seconds:.0f} s")
                self._stop.wait(seconds * self._pace)
        return Outcome(self._rows_before, status="stopped")

    def _attempt(self, work: Run) -> Outcome:
        self._rows = 0
        session = None
        try:
            session = self._sessions.open()
            with self._cancelling(session):
                outcome = work(session, self._job.arguments, self)
            return Outcome(self._rows_before + outcome.rows, outcome.summary, outcome.status)
        except Exception:
            self._rows_before += self._rows
            if session is not None and self._sessions.lost(session):
                self._display.say("the Spark session is lost; a new one will be started")
            raise

    def _give_up_on(self, error: Exception, failures: int) -> None:
        known = final(error)
        if known is not None:
            raise self._job.with_way_out(known) from error
        if not self._job.pipeline.streaming:
            raise PipelineFailed(f"{self._job.id} failed: {sentence(error)}") from error
        if failures > self._job.max_restarts:
            times = f"{failures} times" if failures > 1 else "once"
            raise PipelineFailed(f"{self._job.id} failed {times} without getting further: {sentence(error)}") from error

    @contextmanager
    def _cancelling(self, session: SparkSession) -> Iterator[None]:
        """A pipeline that does not stream does not look up from its work; so that is taken away when it is to stop."""
        if self._job.pipeline.streaming:
            yield
            return
        over = threading.Event()

        def cancel() -> None:
            while not over.wait(_LOOK_SECONDS):
                if self.stop_requested():
                    with suppress(Exception):
                        session.sparkContext.cancelAllJobs()

        threading.Thread(target=cancel, name=f"stop of {self._job.id}", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _change(self, **changes: object) -> None:
        if self._keeper is not None:
            self._keeper.change(**changes)


def pause(failures: int) -> float:
    """Seconds before another try, after so many in a row that got nowhere."""
    return float(min(LONGEST_PAUSE, 2 ** (failures - 1)))


def first_state(job: Job) -> PipelineState:
    started = now()
    return PipelineState(
        id=job.id,
        pipeline=job.pipeline.name,
        run=uuid.uuid4().hex,
        started_at=started,
        updated_at=started,
        host=socket.gethostname(),
        pid=os.getpid(),
        process=identity(),
        master=job.master,
        arguments=_shown(job.arguments),
    )


def _shown(arguments: Arguments) -> dict[str, Json]:
    """What was asked for, without what was not, and without passwords."""
    found: dict[str, Json] = {}
    for each in fields(arguments):
        value = getattr(arguments, each.name)
        if value in (None, (), False):
            continue
        if each.name in ("database_url", "url"):
            value = without_password(value)[0]
        found[each.name] = value.isoformat() if isinstance(value, datetime) else _plain(value)
    return found


def _plain(value: object) -> Json:
    if isinstance(value, tuple):
        return [str(each) for each in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
