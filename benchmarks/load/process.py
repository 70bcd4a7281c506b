"""Runs a job in a process of its own and calls back at the begin and the end of what it measures."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

from .connection import BadAnswer
from .contention import ContendJob, contend
from .counting import CountJob, QuietJob, count, quiet
from .jobs import DrainJob, FlowJob, NullJob, PushJob, drain, flow, null, push
from .waiting import IdleJob, ParkJob, PopsJob, idle, park, pops
from .waking import WakeJob, wake
from .window import Figures, Moment, Window

Job = PushJob | DrainJob | FlowJob | NullJob | IdleJob | PopsJob | ParkJob | WakeJob | CountJob | ContendJob | QuietJob
_RUNS: dict[type, Callable[..., Coroutine[Any, Any, Figures]]] = {
    PushJob: push,
    DrainJob: drain,
    FlowJob: flow,
    NullJob: null,
    IdleJob: idle,
    PopsJob: pops,
    ParkJob: park,
    WakeJob: wake,
    CountJob: count,
    ContendJob: contend,
    QuietJob: quiet,
}


def run(job: Job, said: Callable[[Moment], None], progress: Callable[[str], None]) -> Figures:
    """Run a job. `said` is called while the run goes on; a failure of the run is a BadAnswer."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work, args=(job, there), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            kind, value = _next(here)
            if kind == "moment":
                said(value)
            elif kind == "progress":
                progress(value)
            elif kind == "done":
                return value  # type: ignore[no-any-return]
            else:
                raise BadAnswer(value)
    finally:
        process.kill()
        process.join()


def _next(pipe: Pipe[Any, Any]) -> tuple[str, Any]:
    try:
        return pipe.recv()  # type: ignore[no-any-return]
    except EOFError:
        return "failed", "the load generator has died"


def _work(job: Job, pipe: Pipe[Any, Any]) -> None:
    window = Window(lambda moment: pipe.send(("moment", moment)), lambda text: pipe.send(("progress", text)))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pipe.send(("done", runner.run(_RUNS[type(job)](job, window))))
    except (Exception, SystemExit) as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
