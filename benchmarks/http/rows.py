"""The rows of the table: each a job for the load generator, for how many workers, and what it may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ..lab import Server
from ..load.jobs import DrainJob, FlowJob, NullJob, PushJob
from ..load.process import Job
from ..load.render import Pushing
from ..load.waiting import IdleJob, ParkJob, PopsJob

LONG_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`targets` are CPU µs per message of server and PostgreSQL together, by the number of workers."""

    name: str
    work: str
    job: Callable[[Server, float], Job]
    targets: dict[int, float] = field(default_factory=dict)
    workers: tuple[int, ...] = (1, 2)
    only_when_asked: bool = False


def _push(server: Server, seconds: float, *, shape: Pushing, connections: int) -> PushJob:
    return PushJob(port=server.port, seconds=seconds, shape=shape, connections=connections)


def _flow(server: Server, seconds: float, *, partitions: int = 100, batch: int = 10) -> FlowJob:
    shape = Pushing(batch=10, partitions=partitions)
    return FlowJob(port=server.port, seconds=seconds, shape=shape, batch=batch)


def _fan_out(server: Server, seconds: float) -> FlowJob:
    return FlowJob(port=server.port, seconds=seconds, groups=5, producers=4, consumers=4)


def _long(server: Server, seconds: float) -> FlowJob:
    return FlowJob(port=server.port, seconds=LONG_SECONDS, parts=10, warm_up=5)


ROWS = [
    Row(
        name="push100",
        work="push batch 100, 8 connections, 100 partitions",
        job=partial(_push, shape=Pushing(), connections=8),
        targets={1: 12, 2: 14},
    ),
    Row(
        name="push100-one",
        work="push batch 100, 8 connections, 1 partition",
        job=partial(_push, shape=Pushing(partitions=1), connections=8),
        targets={1: 12, 2: 14},
    ),
    Row(
        name="push100-spread",
        work="push batch 100, 8 connections, each push spread over 100 partitions",
        job=partial(_push, shape=Pushing(spread=True), connections=8),
    ),
    Row(
        name="push1000",
        work="push batch 1000, 8 connections, 100 partitions",
        job=partial(_push, shape=Pushing(batch=1000), connections=8),
        targets={1: 11, 2: 13},
    ),
    Row(
        name="push1",
        work="push batch 1, 64 connections, 100 partitions",
        job=partial(_push, shape=Pushing(batch=1), connections=64),
        targets={1: 85, 2: 90},
    ),
    Row(
        name="idle",
        work="push batch 1, 1 connection, nothing else going on",
        job=lambda server, seconds: IdleJob(port=server.port, dsn=server.dsn, seconds=seconds),
        workers=(1,),
    ),
    Row(
        name="drain",
        work="pop 100 + ack/batch, 16 connections, 100 partitions filled by pushes of 100",
        job=lambda server, seconds: DrainJob(port=server.port, fill_seconds=1.5 * seconds),
        targets={1: 8, 2: 10},
    ),
    Row(
        name="flow",
        work="end to end, 10 producers of batch 10, 10 long-polling consumers of batch 10, 100 partitions",
        job=_flow,
        targets={1: 60, 2: 75},
    ),
    Row(name="flow-batch100", work="end to end, consumers of batch 100", job=partial(_flow, batch=100), workers=(1,)),
    Row(name="flow-10", work="end to end, 10 partitions", job=partial(_flow, partitions=10), workers=(1,)),
    Row(name="flow-10000", work="end to end, 10,000 partitions", job=partial(_flow, partitions=10_000), workers=(1,)),
    Row(
        name="push100-1kb",
        work="push batch 100 of 1 KB, 8 connections, 100 partitions",
        job=partial(_push, shape=Pushing(payload_bytes=1024), connections=8),
        workers=(1,),
    ),
    Row(
        name="fan-out",
        work="end to end, 4 producers of batch 10, 5 groups of 4 consumers, per delivery",
        job=_fan_out,
        workers=(1,),
    ),
    Row(
        name="pops500",
        work="500 pops at one moment on 500 partitions, against one after another",
        job=lambda server, seconds: PopsJob(port=server.port),
        workers=(1,),
    ),
    Row(
        name="parked",
        work="10,000 parked polls on 100 queues: /health",
        job=lambda server, seconds: ParkJob(port=server.port, server=server.pid),
        workers=(1,),
    ),
    Row(
        name="long",
        work="end to end for 10 minutes",
        job=_long,
        workers=(1,),
        only_when_asked=True,
    ),
]

GENERATOR = [
    ("push batch 100", PushJob(port=0, seconds=2)),
    ("push batch 1, 64 connections", PushJob(port=0, seconds=2, connections=64, shape=Pushing(batch=1))),
    ("pop 100 + ack", DrainJob(port=0, fill_seconds=1)),
    ("end to end", FlowJob(port=0, seconds=2)),
]
"""What the generator can do when the server does nothing, both on one core."""


def against_nothing(job: PushJob | DrainJob | FlowJob) -> NullJob:
    return NullJob(job=job)
