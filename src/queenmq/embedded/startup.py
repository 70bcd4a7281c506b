"""Starts a server on a settled cluster and waits until it takes connections.

There is no time limit: crash recovery takes as long as there is log to replay. The wait ends when the server is ready
or its process ends, and meanwhile says what the server is doing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import diagnosis, logfile, predecessor, probe
from .cluster import address
from .identity import Identity
from .postmaster import Postmaster

Report = Callable[[str], None]

POLL_SECONDS = 0.03
REPORT_EVERY = 2.0
LEFTOVERS_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    program: str
    arguments: list[str]
    cluster: Path
    identity: Identity
    socket_dir: Path
    socket_port: int
    tcp_port: int | None
    log: Path


def start(plan: Plan, report: Report, launched: Callable[[Postmaster], None]) -> Postmaster:
    """`launched` hears of each server at once, so that the caller can stop one that never gets ready."""
    begun = time.monotonic()
    while True:
        reader = logfile.LogReader(plan.log)
        with address(plan.cluster, plan.identity) as where:
            argv = [plan.program, "-D", where.argument, *plan.arguments]
            server = Postmaster(argv, where, plan.identity, plan.log)
        launched(server)
        if _wait_ready(server, plan, reader, report):
            return server
        waited = time.monotonic() - begun
        if not diagnosis.memory_in_use(reader.text) or waited > LEFTOVERS_PATIENCE:
            raise diagnosis.of_start(
                reader.text, server.exit_code, cluster=plan.cluster, log_file=plan.log, port=plan.tcp_port
            )
        report(f"processes of the previous PostgreSQL still use its memory; waiting for them: {waited:.0f} s")
        time.sleep(0.5)
        predecessor.make_way(plan.cluster, report)


def _wait_ready(server: Postmaster, plan: Plan, reader: logfile.LogReader, report: Report) -> bool:
    """False when the server ended instead."""
    progress = diagnosis.Progress(report)
    begun = told = time.monotonic()
    while not server.wait_dead(POLL_SECONDS):
        progress.see(reader.read_more())
        if probe.ask(plan.socket_dir, plan.socket_port).ready:
            return True
        if time.monotonic() - told >= REPORT_EVERY:
            told = time.monotonic()
            progress.tell(told - begun)
    reader.read_more()
    return False
