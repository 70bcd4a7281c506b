"""The runs: pushing, draining what was pushed, and both at once. Each is described by a job and checked at its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from . import render
from .clients import Client, Consumer, Pusher, Run
from .connection import BadAnswer
from .null_server import NullServer
from .render import Pushing
from .window import Figures, Window

PATIENCE = 60.0
"""Seconds that nothing may happen before a run is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushJob:
    port: int
    shape: Pushing = field(default_factory=Pushing)
    connections: int = 8
    seconds: float = 5.0
    warm_up: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainJob:
    """First messages are pushed for a while, unmeasured; then they are popped and acked until none is left."""

    port: int
    shape: Pushing = field(default_factory=Pushing)
    fill_seconds: float = 5.0
    connections: int = 16
    batch: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowJob:
    """Pushers and long-polling consumers together. Pushers rest while more than `backlog` messages are not acked."""

    port: int
    shape: Pushing = field(default_factory=lambda: Pushing(batch=10))
    producers: int = 10
    consumers: int = 10
    """Of each group."""
    batch: int = 10
    groups: int = 1
    backlog: int = 1_000
    seconds: float = 5.0
    warm_up: float = 1.0
    parts: int = 1
    """In how many equal parts of the time the rate is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullJob:
    """Another job, against a server that does nothing and lives in the same process."""

    job: PushJob | DrainJob | FlowJob


async def push(job: PushJob, window: Window) -> Figures:
    run = Run()
    host = f"127.0.0.1:{job.port}"
    pushers = [Pusher(run, render.pushes(host, job.shape), job.shape.batch) for _ in range(job.connections)]
    async with connected(run, job.port, pushers):
        start(pushers)
        await pause(run, job.warm_up)
        window.begin(run, lambda: run.pushed)
        await pause(run, job.seconds)
        window.end()
        run.pushing = False
        await settled(run, lambda: all(pusher.idle for pusher in pushers))
    return window.figures()


async def drain(job: DrainJob, window: Window) -> Figures:
    run = Run()
    await fill(run, job.port, job.shape, seconds=job.fill_seconds, progress=window.progress)
    window.progress(f"popping {run.pushed:,} messages")
    host = f"127.0.0.1:{job.port}"
    first, last = run.pushed // 20, run.pushed * 9 // 10

    def step() -> None:
        if not window.begun and run.acked >= first:
            window.begin(run, lambda: run.acked)
        elif window.begun and not window.ended and run.acked >= last:
            window.end()

    run.step = step
    consumers = [Consumer(run, host, job.shape.queue, batch=job.batch) for _ in range(job.connections)]
    async with connected(run, job.port, consumers):
        start(consumers)
        await settled(run, lambda: run.acked >= run.pushed)
        run.running = False
        await settled(run, lambda: all(consumer.idle for consumer in consumers))
    run.check()
    return window.figures()


async def flow(job: FlowJob, window: Window) -> Figures:
    run = Run(backlog=job.backlog, remember=job.parts == 1, end_to_end=True)
    host = f"127.0.0.1:{job.port}"
    groups = [None] if job.groups == 1 else [f"g{number}" for number in range(job.groups)]
    shape = job.shape
    await fill(run, job.port, replace(shape, batch=min(100, shape.partitions), spread=True), messages=shape.partitions)
    consumers = [
        Consumer(run, host, shape.queue, batch=job.batch, group=group, wait_ms=20_000)
        for group in groups
        for _ in range(job.consumers)
    ]
    pushers = [Pusher(run, render.pushes(host, shape), shape.batch, job.groups) for _ in range(job.producers)]
    async with connected(run, job.port, [*consumers, *pushers]):
        start(consumers)
        await settled(run, lambda: run.acked >= run.pushed * job.groups)
        start(pushers)
        await pause(run, job.warm_up)
        window.begin(run, lambda: run.acked)
        pops, popped = run.pops, run.popped
        extra = await _in_parts(run, job, window)
        extra["messages per pop"] = (run.popped - popped) / max(1, run.pops - pops)
        window.end()
        run.pushing = False
        await settled(run, lambda: run.acked >= run.pushed * job.groups and all(one.idle for one in pushers))
        run.running = False
    run.check(job.groups)
    return window.figures(extra)


async def _in_parts(run: Run, job: FlowJob, window: Window) -> dict[str, float]:
    """The rate in each part of the measured time."""
    rates: dict[str, float] = {}
    for part in range(job.parts):
        before, since = run.acked, time.perf_counter()
        await pause(run, job.seconds / job.parts)
        rates[f"rate {part + 1}"] = (run.acked - before) / (time.perf_counter() - since)
        if job.parts > 1:
            window.progress(f"part {part + 1} of {job.parts}: {rates[f'rate {part + 1}']:,.0f} messages/s")
    return rates if job.parts > 1 else {}


async def null(job: NullJob, window: Window) -> Figures:
    listening, port = await NullServer().start()
    async with listening:
        inner = replace(job.job, port=port)
        if isinstance(inner, PushJob):
            return await push(inner, window)
        return await (drain(inner, window) if isinstance(inner, DrainJob) else flow(inner, window))


async def fill(
    run: Run,
    port: int,
    shape: Pushing,
    *,
    messages: int | None = None,
    seconds: float = PATIENCE,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Push to the partitions in turn: so many messages (rounded up to whole pushes), or for so long."""
    host = f"127.0.0.1:{port}"
    turns = itertools.cycle(range(0, shape.partitions, shape.batch if shape.spread else 1))
    total = None if messages is None else -(-messages // shape.batch)
    connections = 8 if total is None else min(8, total)
    pushers = [Pusher(run, render.pushes(host, shape, turns.__next__), shape.batch) for _ in range(connections)]
    if total is not None:
        for number, pusher in enumerate(pushers):
            pusher.limit = total // connections + (number < total % connections)
    kept, run.backlog = run.backlog, None
    until = time.monotonic() + seconds

    def report() -> None:
        run.pushing = total is not None or time.monotonic() < until
        progress(f"filling: {run.pushed:,} messages")

    async with connected(run, port, pushers):
        start(pushers)
        await settled(run, lambda: all(pusher.idle for pusher in pushers), report)
    run.backlog, run.pushing = kept, True


def start(clients: Sequence[Client]) -> None:
    for client in clients:
        client.turn()


@asynccontextmanager
async def connected(run: Run, port: int, clients: Sequence[Client]) -> AsyncIterator[None]:
    for client in clients:
        await client.open(port)
    try:
        yield
    finally:
        for client in clients:
            client.close()
        with contextlib.suppress(BadAnswer):
            await settled(run, lambda: all(client.transport is None for client in clients))


async def pause(run: Run, seconds: float) -> None:
    """Let the clients work for so long; their failure ends it."""
    await asyncio.wait({run.failure}, timeout=seconds)
    if run.failure.done():
        run.failure.result()


async def settled(run: Run, condition: Callable[[], bool], each: Callable[[], None] | None = None) -> None:
    """Wait for a condition as long as something moves."""
    state, changed = (-1, -1, -1), time.monotonic()
    while not condition():
        await pause(run, 0.01)
        if each is not None:
            each()
        now = (run.pushed, run.popped, run.acked)
        if now != state:
            state, changed = now, time.monotonic()
        elif time.monotonic() - changed > PATIENCE:
            raise BadAnswer(f"nothing happens: {run.pushed} pushed, {run.popped} popped, {run.acked} acked")
