"""How each figure of the table is measured: servers are started, a job runs, and its figures make one number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..lab import Lab, Server, peers
from ..load.contention import ContendJob
from ..load.counting import STATEMENTS, Counted, CountJob, QuietJob
from ..load.process import Job, run
from ..load.waking import WakeJob
from ..load.window import Figures
from ..tables import Measured
from .gateways import notifications
from .sealing import seal_and_open

NO_HINTS = {"QUEEN_LEASE_HINT_MAX": "0"}
NO_CACHES = {"QUEEN_CACHE_ENABLED": "false"}
SERVERS = 10


@dataclass(frozen=True, slots=True)
class Bench:
    """`scale`: this part of all wakes, pushes, messages and polls."""

    lab: Lab
    progress: Callable[[str], None]
    scale: float = 1.0

    def scaled(self, count: int) -> int:
        return max(20, round(count * self.scale))

    def run(self, job: Job) -> Figures:
        return run(job, lambda moment: None, self.progress)

    def counted(self, server: Server) -> Counted:
        return Counted(statistics=self.lab.statistics, database=server.database)


def wake_here(bench: Bench, *, workers: int) -> Measured:
    with bench.lab.server(workers) as server:
        return _woken(bench, WakeJob(push_port=server.port, poll_port=server.port, wakes=bench.scaled(200)))


def wake_there(bench: Bench) -> Measured:
    with bench.lab.servers(1, peers(2)) as (here, there):
        return _woken(bench, WakeJob(push_port=here.port, poll_port=there.port, wakes=bench.scaled(200)))


def wake_untold(bench: Bench) -> Measured:
    """Pauses are long enough for polls to look as seldom as they ever will; ten at a time, to be done sooner."""
    with bench.lab.servers(1, [{}, {}]) as (here, there):
        wakes = bench.scaled(100)
        return _woken(
            bench, WakeJob(push_port=here.port, poll_port=there.port, wakes=wakes, pause=(0.1, 3.0), lanes=10)
        )


def _woken(bench: Bench, job: WakeJob) -> Measured:
    figures = bench.run(job)
    return Measured(figures.p99, f"p50 {figures.p50:.1f} ms, {figures.messages} wakes")


def push_statements(bench: Bench) -> Measured:
    figures = _push_count(bench, {})
    made = figures.extra[STATEMENTS]
    return Measured(_each(figures), f"{made:,.0f} statements for {figures.messages:,} pushes")


def push_saved(bench: Bench) -> Measured:
    with_, without = _each(_push_count(bench, {})), _each(_push_count(bench, NO_CACHES))
    return Measured(1 - with_ / without, f"{with_:.2f} statements per push, {without:.2f} without caches")


def _push_count(bench: Bench, environment: Mapping[str, str]) -> Figures:
    with bench.lab.server(1, environment) as server:
        job = CountJob(port=server.port, counted=bench.counted(server), pushes=bench.scaled(2_000))
        return bench.run(job)


def contended_saved(bench: Bench) -> Measured:
    environments = peers(2)
    runs = [_contended(bench, [each | other for each in environments]) for other in ({}, NO_HINTS, NO_CACHES)]
    (all_, unhinted, without), rates = map(_each, runs), [f"{one.rate:.0f}" for one in runs]
    beside = f"{all_:.2f} statements per delivered message, {unhinted:.2f} without hints, {without:.2f} without caches"
    return Measured(1 - all_ / without, f"{beside}; {', '.join(rates)} messages/s")


def _contended(bench: Bench, environments: Sequence[Mapping[str, str]]) -> Figures:
    with bench.lab.servers(1, environments) as servers:
        ports = tuple(server.port for server in servers)
        job = ContendJob(ports=ports, counted=bench.counted(servers[0]), messages=bench.scaled(400))
        return bench.run(job)


def _each(figures: Figures) -> float:
    return figures.extra[STATEMENTS] / figures.messages


def packets(bench: Bench) -> Measured:
    pushes = bench.scaled(1_000)
    bench.progress("told to the one")
    one = asyncio.run(notifications(SERVERS, pushes, blind=False))
    bench.progress("told to everybody")
    every = asyncio.run(notifications(SERVERS, pushes, blind=True))
    return Measured(one / every, f"{one:,} packets for {pushes:,} pushes, {every:,} when all are told")


def quiet(bench: Bench) -> Measured:
    with bench.lab.server(2) as server:
        polls = bench.scaled(10_000)
        figures = bench.run(QuietJob(port=server.port, counted=bench.counted(server), polls=polls))
    made = figures.extra[STATEMENTS]
    return Measured(made / figures.seconds, f"{made:.0f} statements in {figures.seconds:.1f} s, {polls:,} polls")


def seal(bench: Bench) -> Measured:
    packets_ = bench.scaled(100_000)
    return Measured(seal_and_open(packets_), f"best of 5 times {packets_:,}")
