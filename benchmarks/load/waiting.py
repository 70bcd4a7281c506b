"""The runs that are about waiting: an idle connection, many pops at one moment, and thousands of parked polls."""

from __future__ import annotations

import asyncio
import itertools
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import asyncpg

from ..processes import resident_bytes
from . import render
from .clients import Run
from .connection import Asking, BadAnswer
from .jobs import fill
from .render import Pushing
from .window import Figures, Window, percentile

_COMMIT_TABLE = "create table if not exists bench_commits (n int)"
_COMMIT = "insert into bench_commits values (1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """One connection pushes one message at a time; between two of them PostgreSQL alone commits one row."""

    port: int
    dsn: str
    seconds: float = 5.0
    warm_up: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PopsJob:
    """As many pops as there are partitions, at one moment and one after another, in turn."""

    port: int
    pops: int = 500
    batch: int = 10
    rounds: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkJob:
    """Parked polls on many queues; then /health, and pushes that wake one each."""

    port: int
    server: int
    """Process id of `queen serve`."""
    polls: int = 10_000
    queues: int = 100
    seconds: float = 10.0
    wakes: int = 100


async def idle(job: IdleJob, window: Window) -> Figures:
    run = Run()
    request = render.pushes(f"127.0.0.1:{job.port}", Pushing(batch=1))
    await fill(run, job.port, Pushing(batch=1), messages=Pushing().partitions)  # every partition exists
    commits: list[float] = []
    database = await asyncpg.connect(job.dsn)
    try:
        await database.execute(_COMMIT_TABLE)
        commit = await database.prepare(_COMMIT)
        (connection,) = await dial(job.port, 1)
        start = time.perf_counter()
        while (now := time.perf_counter()) < start + job.warm_up + job.seconds:
            if not window.begun and now > start + job.warm_up:
                window.begin(run, lambda: len(run.latencies))
            await connection.expect(request(), 201)
            pushed = time.perf_counter()
            await commit.fetch()
            if window.begun:
                run.latencies.append(pushed - connection.sent)
                commits.append(time.perf_counter() - pushed)
        window.end()
        connection.close()
    finally:
        await database.close()
    return window.figures({"commit": 1000 * percentile(commits, 0.5)})


async def pops(job: PopsJob, window: Window) -> Figures:
    """Messages are pops; the latencies are those of the pops at one moment."""
    run = Run()
    host = f"127.0.0.1:{job.port}"
    shape = Pushing(batch=job.batch, partitions=job.pops)
    rounds = 2 * (job.rounds + 1)
    await fill(run, job.port, shape, messages=rounds * job.pops * job.batch, progress=window.progress)
    connections = await dial(job.port, job.pops)
    request = render.pop(host, shape.queue, batch=job.batch)
    together: list[float] = []
    in_turn: list[float] = []
    window.begin(run, lambda: job.pops * len(together))
    for number in range(job.rounds + 1):
        window.progress(f"round {number} of {job.rounds}")
        for way, walls in ((_one_after_another, in_turn), (_at_once, together)):
            before = time.perf_counter()
            bodies, latencies = await way(connections, request)
            wall = time.perf_counter() - before
            if number:  # the first round warms up
                walls.append(wall)
                if way is _at_once:
                    run.latencies.extend(latencies)
            await complete(host, connections, bodies, job.batch)
    window.end()
    for connection in connections:
        connection.close()
    concurrent, sequential = statistics.median(together), statistics.median(in_turn)
    return window.figures(
        {
            "sequential ms": 1000 * sequential,
            "concurrent ms": 1000 * concurrent,
            "ratio": sequential / concurrent,
        }
    )


async def _one_after_another(connections: Sequence[Asking], request: bytes) -> tuple[list[bytes], list[float]]:
    bodies = []
    for connection in connections:
        bodies.append(await connection.expect(request, 200))
    return bodies, []


async def _at_once(connections: Sequence[Asking], request: bytes) -> tuple[list[bytes], list[float]]:
    async def one(connection: Asking) -> tuple[bytes, float]:
        body = await connection.expect(request, 200)
        return body, time.perf_counter() - connection.sent

    answers = await asyncio.gather(*(one(connection) for connection in connections))
    return [body for body, _ in answers], [seconds for _, seconds in answers]


async def complete(host: str, connections: Sequence[Asking], bodies: Sequence[bytes], batch: int) -> None:
    """Ack all of it; every pop must have got a batch of its own partition."""
    seen = set()
    for connection, body in zip(connections, bodies, strict=True):
        ids, partition, lease = render.claim(body)
        if len(ids) != batch or partition in seen:
            raise BadAnswer(f"a pop got {len(ids)} of {batch} messages, or a partition that another pop holds")
        seen.add(partition)
        answer = await connection.expect(render.ack(host, ids, partition, lease, None), 200)
        if answer.count(b'"success":true') != batch:
            raise BadAnswer(f"ack: {answer[:300]!r}")


async def park(job: ParkJob, window: Window) -> Figures:
    run = Run()
    host = f"127.0.0.1:{job.port}"
    allow_connections(job.polls + 100)
    (helper,) = await dial(job.port, 1)
    await make_queues(helper, host, job.queues)
    empty = resident_bytes(job.server)
    parked = await park_polls(job.port, job.polls, job.queues, window.progress)
    memory = (resident_bytes(job.server) - empty) / job.polls
    window.begin(run, lambda: len(run.latencies))
    window.progress("asking /health")
    await _ask_health(helper, host, job.seconds, run)
    window.end()
    if any(task.done() for task in parked):
        raise BadAnswer("a parked poll was answered although nothing was pushed")
    window.progress("waking")
    wakes = await _wake(job, host, helper, parked)
    for task in parked:
        task.cancel()
    extra = {"KB per connection": memory / 1024}
    extra |= {"wake p50 ms": 1000 * percentile(wakes, 0.5), "wake p99 ms": 1000 * percentile(wakes, 0.99)}
    return window.figures(extra)


async def make_queues(helper: Asking, host: str, queues: int) -> None:
    for number in range(queues):
        await helper.expect(render.configure(host, f"parked{number}"), 200, 201)


async def park_polls(port: int, polls: int, queues: int, progress: Callable[[str], None]) -> list[asyncio.Task[bytes]]:
    """As many polls, on those queues in turn. All are parked when it returns."""
    host = f"127.0.0.1:{port}"
    parked: list[asyncio.Task[bytes]] = []
    for number in range(0, polls, 100):
        progress(f"parking: {number:,} of {polls:,}")
        for connection in await dial(port, min(100, polls - number)):
            request = render.pop(host, f"parked{len(parked) % queues}", batch=1, wait_ms=600_000)
            parked.append(asyncio.create_task(connection.expect(request, 200)))
        await asyncio.sleep(0)
    (probe,) = await dial(port, 1)  # answered behind all of them: they are parked
    await probe.expect(render.pop(host, "parked0", batch=1, wait_ms=1_000), 204)
    probe.close()
    return parked


async def _ask_health(helper: Asking, host: str, seconds: float, run: Run) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        await helper.expect(render.get(host, "/health"), 200)
        run.latencies.append(time.perf_counter() - helper.sent)
        await asyncio.sleep(0.01)


async def _wake(job: ParkJob, host: str, helper: Asking, parked: list[asyncio.Task[bytes]]) -> list[float]:
    """Each push wakes exactly one poll of its queue."""
    seconds = []
    for number in itertools.islice(itertools.cycle(range(job.queues)), job.wakes):
        before = time.perf_counter()
        shape = Pushing(queue=f"parked{number}", batch=1, partitions=1)
        await helper.expect(render.pushes(host, shape)(), 201)
        waiting = [task for task in parked[number :: job.queues] if not task.done()]
        done, _ = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        seconds.append(time.perf_counter() - before)
        if len(done) != 1:
            raise BadAnswer(f"a push woke {len(done)} of {len(waiting)} polls")
        await done.pop()
    return seconds


async def dial(port: int, count: int) -> list[Asking]:
    made = [Asking() for _ in range(count)]
    for connection in made:
        await connection.open(port)
    return made


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files, or say what stands in the way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise SystemExit(f"{count} connections need {count} open files; the limit is {hard} (ulimit -Hn).")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
