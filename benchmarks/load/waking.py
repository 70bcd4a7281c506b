"""How long it takes from a push to the answer of the poll that waited for it, when nothing else happens."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass

from . import render
from .clients import Run
from .connection import Asking
from .render import Pushing
from .waiting import complete, dial
from .window import Figures, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeJob:
    """A poll is parked, and after a random pause a message is pushed: to another worker when there are several behind
    one port. In each lane, which is a queue of its own, one after the other."""

    push_port: int
    poll_port: int
    wakes: int = 200
    pause: tuple[float, float] = (0.1, 0.4)
    lanes: int = 1


async def wake(job: WakeJob, window: Window) -> Figures:
    """The latencies are those from the push to the answer of the poll."""
    run = Run()
    lanes = [await _Lane.open(job, number) for number in range(job.lanes)]
    for lane in lanes:
        await lane.wake(0)  # the first of each makes its queue
    window.begin(run, lambda: len(run.latencies))

    async def work(lane: _Lane) -> None:
        for _ in range(-(-job.wakes // job.lanes)):
            window.progress(f"wake {len(run.latencies)} of {job.wakes}")
            run.latencies.append(await lane.wake(random.uniform(*job.pause)))

    await asyncio.gather(*map(work, lanes))
    window.end()
    return window.figures()


class _Lane:
    def __init__(self, pusher: Asking, poller: Asking, job: WakeJob, number: int) -> None:
        queue = f"wake{number}"
        self._pusher, self._poller = pusher, poller
        self._host = f"127.0.0.1:{job.poll_port}"
        self._push = render.pushes(f"127.0.0.1:{job.push_port}", Pushing(queue=queue, batch=1, partitions=1))
        self._poll = render.pop(self._host, queue, batch=1, wait_ms=60_000)

    @classmethod
    async def open(cls, job: WakeJob, number: int) -> _Lane:
        if job.push_port == job.poll_port:
            pusher, poller = await _apart(job.push_port)
            return cls(pusher, poller, job, number)
        (pusher,), (poller,) = await dial(job.push_port, 1), await dial(job.poll_port, 1)
        return cls(pusher, poller, job, number)

    async def wake(self, pause: float) -> float:
        parked = asyncio.create_task(_answer(self._poller, self._poll))
        await asyncio.sleep(pause)
        await self._pusher.expect(self._push(), 201)
        body, answered = await parked
        await complete(self._host, [self._poller], [body], 1)
        return answered - self._pusher.sent


async def _apart(port: int) -> tuple[Asking, Asking]:
    """Two connections, to different workers if there are any."""
    by_worker: dict[int, Asking] = {}
    connections = await dial(port, 8)
    for connection in connections:
        health = json.loads(await connection.expect(render.get(f"127.0.0.1:{port}", "/health"), 200))
        by_worker.setdefault(health["worker_id"], connection)
    first, *others = [*by_worker.values(), *connections[1:]]
    return first, others[0]


async def _answer(connection: Asking, request: bytes) -> tuple[bytes, float]:
    body = await connection.expect(request, 200)
    return body, time.perf_counter()
