"""The runner against a real database, with pipelines that are plain functions and no Spark."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from queenmq.spark.connecting import call
from queenmq.spark.errors import DataLoss, NotReady, PipelineBusy, PipelineError, PipelineFailed
from queenmq.spark.pipelines.base import Arguments, Events, Outcome, Progress, Run
from queenmq.spark.pipelines.registry import Pipeline
from queenmq.spark.processes import has_ended, identity
from queenmq.spark.runner import Job, Runner, first_state, pause
from queenmq.storage import pipeline_states
from queenmq.storage.pipeline_states import PipelineState
from tests.conftest import Server
from tests.server.running import eventually

STREAM = Pipeline("archive", "Copies.", streaming=True)
BATCH = Pipeline("replay", "Pushes.")
DEADLINE = 30
_CUT = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""


@dataclass
class FakeSession:
    """All that the runner itself asks of a session."""

    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def sparkContext(self) -> FakeSession:
        return self

    def cancelAllJobs(self) -> None:
        self.cancelled.set()


@dataclass
class FakeSessions:
    opened: list[FakeSession] = field(default_factory=list)
    dead: bool = False

    def open(self) -> Any:
        if self.dead or not self.opened:
            self.opened.append(FakeSession())
            self.dead = False
        return self.opened[-1]

    def lost(self, session: Any) -> bool:
        return self.dead


@dataclass
class Shown:
    said: list[str] = field(default_factory=list)
    seen: list[Progress] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


def runner(
    database: str,
    work: Callable[[Any, Arguments, Events], Outcome],
    *,
    pipeline: Pipeline = STREAM,
    label: str | None = None,
    arguments: Arguments | None = None,
    max_restarts: int = 10,
    sessions: FakeSessions | None = None,
    shown: Shown | None = None,
) -> Runner:
    job = Job(pipeline, arguments or Arguments(), database, label=label, master="local[2]", max_restarts=max_restarts)
    return Runner(job, sessions or FakeSessions(), shown or Shown(), work=cast(Run, work), pace=0.001)


def states(database: str) -> dict[str, PipelineState]:
    return {seen.state.id: seen.state for seen in call(database, pipeline_states.listed)}


def failing(times: int, error: Exception, *, rows: int = 0) -> Callable[[Any, Arguments, Events], Outcome]:
    left = iter(range(times))

    def work(spark: Any, arguments: Arguments, events: Events) -> Outcome:
        number = next(left, None)
        if rows and number is not None:
            events.progress(Progress(rows, batch=number))
        if number is not None:
            raise error
        return Outcome(7)

    return work


def test_a_run_ends_in_a_state_that_others_can_read(database: str) -> None:
    def work(spark: Any, arguments: Arguments, events: Events) -> Outcome:
        events.progress(Progress(5, rows_per_second=2.5, lag=3, batch=1))
        return Outcome(8, ("a line",))

    arguments = Arguments(queue="orders", lake="lake", since=datetime(2025, 1, 31, tzinfo=UTC), partitions=("a", "b"))
    shown = Shown()
    outcome = runner(database, work, label="orders", arguments=arguments, shown=shown).run()
    assert outcome == Outcome(8, ("a line",))
    assert shown.seen == [Progress(5, rows_per_second=2.5, lag=3, batch=1)]
    state = states(database)["archive:orders"]
    assert (state.state, state.rows, state.lag, state.batch, state.master) == ("finished", 8, 3, 1, "local[2]")
    assert (state.pipeline, state.restarts, state.last_error) == ("archive", 0, None)
    assert state.arguments == {
        "queue": "orders",
        "lake": "lake",
        "since": "2025-01-31T00:00:00+00:00",
        "partitions": ["a", "b"],
        "trigger_seconds": 5.0,
    }


def test_a_failed_stream_is_started_again_and_rows_add_up(database: str) -> None:
    shown = Shown()
    outcome = runner(database, failing(3, ConnectionError("lost"), rows=10), shown=shown).run()
    assert outcome == Outcome(37)
    assert [progress.rows for progress in shown.seen] == [10, 20, 30]
    assert [said.partition(" failed (")[0] for said in shown.said] == ["archive"] * 3
    state = states(database)["archive"]
    assert (state.state, state.restarts, state.last_error) == ("finished", 3, "ConnectionError: lost")


def test_pauses_grow_while_nothing_gets_done() -> None:
    assert [pause(failures) for failures in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_pauses_start_over_with_progress(database: str) -> None:
    rows = iter([0, 0, 5, 0])

    def work(spark: Any, arguments: Arguments, events: Events) -> Outcome:
        done = next(rows, None)
        if done is None:
            return Outcome(0)
        events.progress(Progress(done, batch=6))
        raise ConnectionError("lost")

    shown = Shown()
    runner(database, work, shown=shown).run()
    assert [said.rpartition(" in ")[2] for said in shown.said] == ["1 s", "2 s", "1 s", "2 s"]


def test_a_stream_that_gets_nowhere_is_given_up(database: str) -> None:
    tried = 0

    def work(spark: Any, arguments: Arguments, events: Events) -> Outcome:
        nonlocal tried
        tried += 1
        raise ConnectionError("lost")

    with pytest.raises(PipelineFailed, match="archive failed 4 times without getting further: ConnectionError: lost"):
        runner(database, work, max_restarts=3).run()
    assert tried == 4
    state = states(database)["archive"]
    assert (state.state, state.restarts) == ("failed", 3)
    assert state.last_error is not None
    assert state.last_error.startswith("archive failed 4 times")


def test_progress_counts_only_when_something_was_done(database: str) -> None:
    """A query that fails in its first batch reports where it stands at every start."""

    def work(spark: Any, arguments: Arguments, events: Events) -> Outcome:
        events.progress(Progress(0, batch=6))
        raise ConnectionError("lost")

    with pytest.raises(PipelineFailed, match="4 times"):
        runner(database, work, max_restarts=3).run()


def test_a_batch_without_rows_is_progress_too(database: str) -> None:
    """As when windows are closed by time that others have brought."""
    batches = iter(range(6, 12))

    def work(spark: Any, arguments: Arguments, events: Events) -> Outcome:
        batch = next(batches, None)
        if batch is None:
            return Outcome(0)
        events.progress(Progress(0, batch=batch))
        raise ConnectionError("lost")

    assert runner(database, work, max_restarts=1).run() == Outcome(0)


def test_failures_with_progress_between_them_are_no_reason_to_give_up(database: str) -> None:
    assert runner(database, failing(6, ConnectionError("lost"), rows=1), max_restarts=1).run() == Outcome(13)


@pytest.mark.parametrize("error", [DataLoss("7 messages of orders are gone"), PipelineError("no")])
def test_what_another_try_cannot_mend_ends_the_run(database: str, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        runner(database, failing(1, error)).run()
    state = states(database)["archive"]
    assert (state.state, state.restarts, state.last_error) == ("failed", 0, str(error))


def test_a_pipeline_that_does_not_stream_is_not_repeated(database: str) -> None:
    with pytest.raises(PipelineFailed, match="replay failed: ConnectionError: lost"):
        runner(database, failing(1, ConnectionError("lost")), pipeline=BATCH).run()


def test_a_dead_session_is_replaced(database: str) -> None:
    sessions = FakeSessions()
    used: list[Any] = []

    def work(spark: Any, arguments: Arguments, events: Events) -> Outcome:
        used.append(spark)
        if len(used) == 1:
            sessions.dead = True
            raise ConnectionRefusedError
        return Outcome(0)

    shown = Shown()
    runner(database, work, sessions=sessions, shown=shown).run()
    assert used == sessions.opened
    assert used[0] is not used[1]
    assert "the Spark session is lost; a new one will be started" in shown.said


def until_stopped(spark: Any, arguments: Arguments, events: Events) -> Outcome:
    deadline = threading.Event()
    for _ in range(DEADLINE * 20):
        if events.stop_requested():
            return Outcome(3, status="stopped")
        deadline.wait(0.05)
    raise PipelineError("nobody asked it to stop")


class InBackground:
    """A run in a thread, for tests that look at it from outside."""

    def __init__(self, started: Runner) -> None:
        self.outcome: Outcome | None = None
        self.error: Exception | None = None
        self._runner = started
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._runner.run()
        except Exception as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


def test_whoever_reaches_the_database_can_stop_a_run(database: str) -> None:
    background = InBackground(runner(database, until_stopped))
    eventually(lambda: "archive" in states(database))
    assert call(database, lambda db: pipeline_states.ask_to_stop(db, "archive"))
    background.join()
    assert background.outcome == Outcome(3, status="stopped")
    assert states(database)["archive"].state == "stopped"
    assert not call(database, lambda db: pipeline_states.ask_to_stop(db, "archive"))


def test_a_stop_takes_the_work_from_a_pipeline_that_does_not_stream(database: str) -> None:
    sessions = FakeSessions()

    def work(spark: FakeSession, arguments: Arguments, events: Events) -> Outcome:
        assert spark.cancelled.wait(DEADLINE)
        raise RuntimeError("Job 3 cancelled as part of cancellation of all jobs")

    started = runner(database, work, pipeline=BATCH, sessions=sessions)
    background = InBackground(started)
    eventually(lambda: "replay" in states(database))
    started.request_stop()
    background.join()
    assert background.outcome == Outcome(0, status="stopped")


def test_a_stop_ends_the_pause_before_another_try(database: str) -> None:
    shown = Shown()
    started = runner(database, failing(1, ConnectionError("lost")), shown=shown)
    started._pace = 1000
    background = InBackground(started)
    eventually(lambda: bool(shown.said))
    started.request_stop()
    background.join()
    assert background.outcome == Outcome(0, status="stopped")


@pytest.mark.parametrize("checkpoint", ["here", None])
def test_the_same_run_is_refused_while_it_is_alive(database: str, checkpoint: str | None) -> None:
    lake = Arguments(queue="orders", lake="lake")
    first = runner(database, until_stopped, label="orders", arguments=replace(lake, checkpoint=checkpoint))
    background = InBackground(first)
    eventually(lambda: "archive:orders" in states(database))
    for label, there in (("orders", "there"), ("payments", checkpoint)):
        other = runner(database, until_stopped, label=label, arguments=replace(lake, checkpoint=there))
        with pytest.raises(PipelineError, match=r"archive:orders is running already, on \S+ as process [0-9]+"):
            other.run()
    first.request_stop()
    background.join()
    again = runner(database, failing(0, OSError()), label="orders", arguments=replace(lake, checkpoint=checkpoint))
    assert again.run() == Outcome(7)


def test_a_run_whose_place_was_taken_gives_way(database: str) -> None:
    """Its machine slept, say, and another run took over: two must not write at one checkpoint."""
    background = InBackground(runner(database, until_stopped))
    eventually(lambda: "archive" in states(database))
    job = Job(STREAM, Arguments(), database)
    successor = first_state(job)
    assert call(database, lambda db: pipeline_states.claim(db, successor, gone_seconds=0))
    background.join()
    assert isinstance(background.error, PipelineBusy)
    assert states(database)["archive"] == successor


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "600"])
    yield started
    started.kill()
    started.wait()


def left_behind(database: str, process: str | None, label: str = "orders") -> PipelineState:
    """The row of a run that says it is alive."""
    job = Job(STREAM, Arguments(queue="orders", lake="lake"), database, label=label)
    state = replace(first_state(job), process=process)
    assert call(database, lambda db: pipeline_states.claim(db, state))
    return state


@pytest.mark.parametrize("waited_for", [True, False])
@pytest.mark.parametrize("label", ["orders", "other"])
def test_a_run_that_died_on_this_machine_gives_its_place_away_at_once(
    database: str, process: subprocess.Popen[bytes], waited_for: bool, label: str
) -> None:
    """By its id, or by its checkpoint; also while its parent has not asked for its exit code."""
    left_behind(database, identity(process.pid))
    again = runner(database, failing(0, OSError()), label=label, arguments=Arguments(queue="orders", lake="lake"))
    with pytest.raises(PipelineBusy, match="archive:orders is running already"):
        again.run()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | (0 if waited_for else os.WNOWAIT))
    assert again.run() == Outcome(7)


@pytest.mark.parametrize("where", ["another-boot/{}/1", "{}", None])
def test_a_run_of_another_machine_keeps_its_place(database: str, where: str | None) -> None:
    left_behind(database, where and where.format(2**22))
    with pytest.raises(PipelineBusy):
        runner(database, failing(0, OSError()), arguments=Arguments(queue="orders", lake="lake")).run()


def test_a_number_that_was_given_again_is_another_process() -> None:
    name = identity()
    assert name is not None
    place, _, started = name.rpartition("/")
    assert not has_ended(name)
    assert has_ended(f"{place}/{int(started) - 1}")


def test_of_two_that_find_a_dead_run_one_gets_its_place(database: str) -> None:
    dead = left_behind(database, None)
    heirs = [replace(dead, run=run) for run in ("one", "two")]
    got = [call(database, lambda db, heir=heir: pipeline_states.claim(db, heir, dead=dead.run)) for heir in heirs]  # type: ignore[misc]
    assert got == [True, False]


def test_lost_messages_end_a_stream_with_the_command_that_helps(database: str) -> None:
    loss = DataLoss("messages were removed: 7 of orders. To go on without them, give the option failOnDataLoss=false")
    arguments = Arguments(queue="orders *", lake="/data/lake", max_messages=5)
    command = "queen pipeline run archive --queue 'orders *' --lake /data/lake --once --max-messages 5"
    takes = replace(STREAM, takes=("accept_data_loss",))
    with pytest.raises(DataLoss) as ended:
        runner(database, failing(1, loss), pipeline=takes, arguments=arguments).run()
    assert ended.value.message == (
        f"messages were removed: 7 of orders. To go on without them, run once: {command} --accept-data-loss"
    )
    assert states(database)["archive"].last_error == ended.value.message


def test_a_run_outlives_a_break_of_its_connection(database: str) -> None:
    started = runner(database, until_stopped)
    background = InBackground(started)
    eventually(lambda: "archive" in states(database))
    before = states(database)["archive"].updated_at
    call(database, lambda db: db.fetch(_CUT))
    eventually(lambda: states(database)["archive"].updated_at > before)
    started.request_stop()
    background.join()
    assert background.outcome == Outcome(3, status="stopped")


def test_passwords_are_not_told(database: str) -> None:
    arguments = Arguments(database_url="postgresql://ann:hunter2@db/shop", url="https://ann:hunter2@queen.example")
    state = first_state(Job(STREAM, arguments, database))
    assert "hunter2" not in str(state)


async def test_a_database_without_the_schema_is_not_ready(embedded_server: Server) -> None:
    name = await embedded_server.create("template1")
    try:
        with pytest.raises(NotReady, match="queen db migrate"):
            await asyncio.to_thread(runner(embedded_server.database(name), until_stopped).run)
    finally:
        await embedded_server.drop(name)
