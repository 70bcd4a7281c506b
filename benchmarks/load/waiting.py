"""The runs that are about waiting: an idle connection, many pops at one moment, and thousands of parked polls."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import statistics
import time
from collections.abc import Sequence
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
_COMMITS_SO_FAR = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"


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
    """Parked polls on many queues; then /health, silence, and pushes that wake one each."""

    port: int
    dsn: str
    server: int
    """Process id of `queen serve`."""
    polls: int = 10_000
    queues: int = 100
    seconds: float = 10.0
    wakes: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeJob:
    """A poll is parked, a message is pushed, and that is all that happens; at two workers, when there are two."""

    port: int
    wakes: int = 200
    pause: float = 0.03


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
            await _complete(host, connections, bodies, job.batch)
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


async def _complete(host: str, connections: Sequence[Asking], bodies: Sequence[bytes], batch: int) -> None:
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
    database = await asyncpg.connect(job.dsn)
    try:
        (helper,) = await dial(job.port, 1)
        for number in range(job.queues):
            await helper.expect(render.configure(host, f"parked{number}"), 200, 201)
        empty = resident_bytes(job.server)
        parked = await _park(job, host, window)
        memory = (resident_bytes(job.server) - empty) / job.polls
        window.begin(run, lambda: len(run.latencies))
        before, since = await database.fetchval(_COMMITS_SO_FAR), time.perf_counter()
        window.progress("asking /health")
        await _ask_health(helper, host, job.seconds, run)
        idle_rate = (await database.fetchval(_COMMITS_SO_FAR) - before) / (time.perf_counter() - since)
        window.end()
        if any(task.done() for task in parked):
            raise BadAnswer("a parked poll was answered although nothing was pushed")
        window.progress("waking")
        wakes = await _wake(job, host, helper, parked)
        for task in parked:
            task.cancel()
    finally:
        await database.close()
    extra = {"KB per connection": memory / 1024, "idle queries/s": idle_rate}
    extra |= {"wake p50 ms": 1000 * percentile(wakes, 0.5), "wake p99 ms": 1000 * percentile(wakes, 0.99)}
    return window.figures(extra)


async def wake(job: WakeJob, window: Window) -> Figures:
    """The latencies are those from the push to the answer of the poll."""
    run = Run()
    host = f"127.0.0.1:{job.port}"
    pusher, poller = await _apart(job.port, host)
    push = render.pushes(host, Pushing(queue="wake", batch=1, partitions=1))
    poll = render.pop(host, "wake", batch=1, wait_ms=60_000)
    window.begin(run, lambda: len(run.latencies))
    for number in range(job.wakes):
        window.progress(f"wake {number} of {job.wakes}")
        parked = asyncio.create_task(_answer(poller, poll))
        await asyncio.sleep(job.pause)
        await pusher.expect(push(), 201)
        body, answered = await parked
        run.latencies.append(answered - pusher.sent)
        await _complete(host, [poller], [body], 1)
    window.end()
    return window.figures()


async def _apart(port: int, host: str) -> tuple[Asking, Asking]:
    """Two connections, to different workers if there are any."""
    by_worker: dict[int, Asking] = {}
    connections = await dial(port, 8)
    for connection in connections:
        health = json.loads(await connection.expect(render.get(host, "/health"), 200))
        by_worker.setdefault(health["worker_id"], connection)
    first, *others = [*by_worker.values(), *connections[1:]]
    return first, others[0]


async def _answer(connection: Asking, request: bytes) -> tuple[bytes, float]:
    body = await connection.expect(request, 200)
    return body, time.perf_counter()


async def _park(job: ParkJob, host: str, window: Window) -> list[asyncio.Task[bytes]]:
    parked: list[asyncio.Task[bytes]] = []
    for number in range(0, job.polls, 100):
        window.progress(f"parking: {number:,} of {job.polls:,}")
        for connection in await dial(job.port, min(100, job.polls - number)):
            queue = f"parked{len(parked) % job.queues}"
            request = render.pop(host, queue, batch=1, wait_ms=600_000)
            parked.append(asyncio.create_task(connection.expect(request, 200)))
        await asyncio.sleep(0)
    (probe,) = await dial(job.port, 1)  # answered behind all of them: they are parked
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
