"""Sudden deaths under load: of the manager, and of the postmaster. Every acknowledged row must be there afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from queenmq.embedded import predecessor, processes
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import CUT, gone, insert_until_cut, query, stored, value, wait_until
from tests.embedded.manager_process import ManagerProcess

StartManager = Callable[..., ManagerProcess]


@pytest.mark.parametrize("tether", ["signal", "pipe"])
def test_killing_the_manager_stops_the_server_and_loses_nothing(
    made_dir: Path, manager: MakeManager, manager_process: StartManager, tether: str
) -> None:
    """Both ties to the manager's life: the kernel's signal, and the watched pipe for systems without it."""
    owner = manager_process(made_dir, tether=tether)
    acknowledged = insert_until_cut(owner.dsn, owner.kill)
    wait_until(gone(made_dir / "postgres"), "the server stops after its manager")
    assert "received fast shutdown request" in (made_dir / "postgres.log").read_text(), "it stopped cleanly"
    connection = manager(made_dir).start()
    assert not connection.attached
    assert acknowledged <= stored(connection.dsn)


def test_a_new_manager_takes_over_at_once_from_a_killed_one(
    made_dir: Path, manager: MakeManager, manager_process: StartManager
) -> None:
    """Without waiting for the old server: `start` has to."""
    owner = manager_process(made_dir)
    acknowledged = insert_until_cut(owner.dsn, owner.kill)
    connection = manager(made_dir).start()
    assert not connection.attached
    assert connection.postmaster_pid != owner.postmaster
    assert acknowledged <= stored(connection.dsn)


def test_killing_the_postmaster_is_noticed_and_recovered_from(made_dir: Path, manager: MakeManager) -> None:
    said: list[str] = []
    server = manager(made_dir, report=said.append)
    first = server.start()
    acknowledged = insert_until_cut(first.dsn, lambda: os.kill(first.postmaster_pid, signal.SIGKILL))
    assert server.wait_dead(10)
    assert not server.alive()
    second = server.start()
    assert server.alive()
    assert second.dsn == first.dsn, "clients find the server where it was"
    assert acknowledged <= stored(second.dsn)
    assert any("recovering" in line for line in said)


def test_processes_that_outlive_their_postmaster_are_waited_for_then_ended(
    made_dir: Path, manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy backend does not notice that its postmaster is gone, and still has the shared memory."""
    waiting, *rest = predecessor.LEFTOVER_STEPS
    monkeypatch.setattr(predecessor, "LEFTOVER_STEPS", (replace(waiting, seconds=0.5), *rest))
    said: list[str] = []
    server = manager(made_dir, report=said.append)
    first = server.start()
    busy = threading.Thread(target=compute_without_end, args=(first.dsn,), daemon=True)
    busy.start()
    wait_until(lambda: busy_backends(first.dsn) == 1, "the backend is busy")
    os.kill(first.postmaster_pid, signal.SIGKILL)
    assert server.wait_dead(10)
    assert processes.of_cluster(made_dir / "postgres"), "the busy backend is still there"
    second = server.start()
    busy.join(10)
    assert not busy.is_alive()
    assert any("ending processes of the previous PostgreSQL" in line for line in said)
    assert value(second.dsn, "SELECT 1") == 1


def test_postgres_own_guard_against_leftovers_is_waited_out(
    made_dir: Path, manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where processes cannot be listed, PostgreSQL's refusal of the old shared memory is what tells of them."""
    said: list[str] = []
    server = manager(made_dir, report=said.append)
    first = server.start()
    busy = threading.Thread(target=compute_without_end, args=(first.dsn,), daemon=True)
    busy.start()
    wait_until(lambda: busy_backends(first.dsn) == 1, "the backend is busy")
    os.kill(first.postmaster_pid, signal.SIGKILL)
    assert server.wait_dead(10)
    leftovers = processes.of_cluster(made_dir / "postgres")
    monkeypatch.setattr(processes, "of_cluster", lambda _: [])

    def end_them_once_noticed(line: str) -> None:
        said.append(line)
        if "still use its memory" in line:
            for pid in leftovers:
                os.kill(pid, signal.SIGKILL)
            leftovers.clear()

    monkeypatch.setattr(server, "_report", end_them_once_noticed)
    second = server.start()
    busy.join(10)
    assert any("still use its memory" in line for line in said)
    assert value(second.dsn, "SELECT 1") == 1


def test_a_long_recovery_is_waited_for_with_progress(
    made_dir: Path, manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenmq.embedded.startup.REPORT_EVERY", 0.0)
    said: list[str] = []
    server = manager(made_dir, report=said.append, settings={"log_startup_progress_interval": "1ms"})
    first = server.start()
    query(first.dsn, "CREATE TABLE much AS SELECT g, repeat('x', 100) FROM generate_series(1, 200000) g")
    os.kill(first.postmaster_pid, signal.SIGKILL)
    assert server.wait_dead(10)
    server.start()
    assert any(line.startswith("PostgreSQL is recovering: ") and "redo at 0/" in line for line in said), said


def compute_without_end(dsn: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$")
        except CUT:
            connection.terminate()

    asyncio.run(run())


def busy_backends(dsn: str) -> int:
    found = value(dsn, "SELECT count(*)::int FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO %LOOP%'")
    assert isinstance(found, int)
    return found
