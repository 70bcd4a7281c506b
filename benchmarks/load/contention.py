"""Consumers that all want the same few partitions: who comes while another has one asks in vain, unless it knows.

Each holds what it got for a while before the ack, as one who works on it. Half of the consumers are at each server, and
most ask again and again, as clients do that cannot wait. With the same seeds, two runs differ only in the servers.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass

from . import render
from .clients import Run
from .connection import Asking, BadAnswer
from .counting import STATEMENTS, Counted, statements
from .jobs import fill
from .render import Pushing, partition_name
from .waiting import dial
from .window import Figures, Window

_QUEUE = "contended"
_MORE = 1.25  # times as many messages are there, so that no partition runs dry before the end


@dataclass(frozen=True, slots=True, kw_only=True)
class ContendJob:
    ports: tuple[int, ...]
    counted: Counted
    messages: int = 400
    """So many are delivered, one at a time."""
    partitions: int = 4
    consumers: int = 8
    waiting: int = 2
    """So many of the consumers wait."""
    hold: tuple[float, float] = (0.05, 0.2)
    pause: tuple[float, float] = (0.01, 0.03)


async def contend(job: ContendJob, window: Window) -> Figures:
    run = Run()
    shape = Pushing(queue=_QUEUE, batch=1, partitions=job.partitions)
    await fill(run, job.ports[0], shape, messages=int(_MORE * job.messages) + 4 * job.partitions)
    consumers = [await _Consumer.open(job, run, number) for number in range(job.consumers)]
    async with statements(job.counted) as counter:
        window.begin(run, lambda: run.acked)
        before = await counter.so_far()
        working = [asyncio.create_task(one.work()) for one in consumers]
        try:
            while run.acked < job.messages:
                done, _ = await asyncio.wait(working, timeout=0.01, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                window.progress(f"{run.acked} of {job.messages} messages")
            made = await counter.so_far() - before
            window.end()
        finally:
            for task in working:
                task.cancel()
    _check(run)
    return window.figures({STATEMENTS: made})


def _check(run: Run) -> None:
    """None was delivered twice."""
    delivered = [one for ids in run.delivered or [] for one in ids]
    if len(delivered) != len(set(delivered)):
        raise BadAnswer(f"{len(delivered)} delivered, but {len(set(delivered))} different messages")


class _Consumer:
    """Asks for one partition after the other."""

    def __init__(self, connection: Asking, job: ContendJob, run: Run, number: int) -> None:
        self._connection = connection
        self._job = job
        self._run = run
        self._host = f"127.0.0.1:{job.ports[number % len(job.ports)]}"
        self._random = random.Random(number)
        self._wait_ms = 1_000 if number < job.waiting else 0
        self._turns = itertools.cycle(range(job.partitions))
        for _ in range(number % job.partitions):
            next(self._turns)

    @classmethod
    async def open(cls, job: ContendJob, run: Run, number: int) -> _Consumer:
        (connection,) = await dial(job.ports[number % len(job.ports)], 1)
        return cls(connection, job, run, number)

    async def work(self) -> None:
        while True:
            partition = partition_name(next(self._turns))
            pop = render.pop(self._host, _QUEUE, partition=partition, batch=1, wait_ms=self._wait_ms)
            status, body = await self._connection.ask(pop)
            if status == 200:
                await self._finish(body)
            elif status != 204:
                raise BadAnswer(f"pop: status {status}: {body[:300]!r}")
            elif not self._wait_ms:
                await asyncio.sleep(self._random.uniform(*self._job.pause))

    async def _finish(self, body: bytes) -> None:
        ids, partition, lease = render.claim(body)
        if self._run.delivered is not None:
            self._run.delivered.append(ids)
        await asyncio.sleep(self._random.uniform(*self._job.hold))
        answer = await self._connection.expect(render.ack(self._host, ids, partition, lease, None), 200)
        if answer.count(b'"success":true') != 1:
            raise BadAnswer(f"ack: {answer[:300]!r}")
        self._run.acknowledged(1)
