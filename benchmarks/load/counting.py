"""The runs that count what PostgreSQL is asked: for each push, and by polls that wait while nothing happens.

What is counted is every statement that was sent to the server's database, `begin` and what the driver does for itself
among them, whoever sent it. Statements that PostgreSQL refuses are not in its count; there are none in these runs.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from . import render
from .clients import Run
from .connection import BadAnswer
from .render import Pushing
from .waiting import allow_connections, dial, make_queues, park_polls
from .window import Figures, Window

_SO_FAR = Path(__file__).parents[1].joinpath("sql", "statements.sql").read_text()
STATEMENTS = "statements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """`statistics`: a connection to another database of the same PostgreSQL, so that counting does not count."""

    statistics: str
    database: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountJob:
    """One message after another, to partitions that are known."""

    port: int
    counted: Counted
    pushes: int = 2_000
    partitions: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietJob:
    """Parked polls on many queues, and nothing else."""

    port: int
    counted: Counted
    polls: int = 10_000
    queues: int = 100
    settle: float = 5.0
    """Seconds until they look as seldom as they ever will."""
    seconds: float = 10.0


class Statements:
    """Reads the count of one database."""

    def __init__(self, connection: asyncpg.Connection, database: str) -> None:
        self._connection = connection
        self._database = database

    async def so_far(self) -> int:
        return int(await self._connection.fetchval(_SO_FAR, self._database))


@asynccontextmanager
async def statements(counted: Counted) -> AsyncIterator[Statements]:
    connection = await asyncpg.connect(counted.statistics)
    try:
        yield Statements(connection, counted.database)
    finally:
        await connection.close()


async def count(job: CountJob, window: Window) -> Figures:
    run = Run()
    turns = itertools.cycle(range(job.partitions))
    shape = Pushing(batch=1, partitions=job.partitions)
    request = render.pushes(f"127.0.0.1:{job.port}", shape, turns.__next__)
    (connection,) = await dial(job.port, 1)
    async with statements(job.counted) as counter:
        for _ in range(5 * job.partitions):
            await connection.expect(request(), 201)
        window.begin(run, lambda: len(run.latencies))
        before = await counter.so_far()
        for _ in range(job.pushes):
            await connection.expect(request(), 201)
            run.latencies.append(time.perf_counter() - connection.sent)
        made = await counter.so_far() - before
        window.end()
    connection.close()
    return window.figures({STATEMENTS: made})


async def quiet(job: QuietJob, window: Window) -> Figures:
    """Its statements are those of the measured seconds."""
    run = Run()
    allow_connections(job.polls + 100)
    (helper,) = await dial(job.port, 1)
    await make_queues(helper, f"127.0.0.1:{job.port}", job.queues)
    parked = await park_polls(job.port, job.polls, job.queues, window.progress)
    window.progress("waiting")
    await asyncio.sleep(job.settle)
    async with statements(job.counted) as counter:
        window.begin(run, lambda: 0)
        before = await counter.so_far()
        await asyncio.sleep(job.seconds)
        made = await counter.so_far() - before
        window.end()
    if any(task.done() for task in parked):
        raise BadAnswer("a parked poll was answered although nothing was pushed")
    for task in parked:
        task.cancel()
    return window.figures({STATEMENTS: made})
