"""Several managers on one directory: one owns, the others attach, and the lock always tells the truth."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queenmq.embedded import DirectoryLockedError
from queenmq.embedded.lock import DirectoryLock
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import gone, value, wait_until
from tests.embedded.manager_process import ManagerProcess

StartManager = Callable[..., ManagerProcess]


def test_a_second_manager_attaches_and_its_stop_leaves_the_server_running(made_dir: Path, manager: MakeManager) -> None:
    owner, guest = manager(made_dir), manager(made_dir)
    owned, attached = owner.start(), guest.start()
    assert (owned.attached, attached.attached) == (False, True)
    assert (attached.dsn, attached.postmaster_pid) == (owned.dsn, owned.postmaster_pid)
    guest.stop()
    assert owner.alive()
    assert not guest.alive()
    assert value(owned.dsn, "SELECT 1") == 1


def test_an_attached_manager_notices_the_owners_stop_and_can_take_over(made_dir: Path, manager: MakeManager) -> None:
    owner, guest = manager(made_dir), manager(made_dir)
    owner.start()
    first = guest.start()
    assert not guest.wait_dead(0.2)
    owner.stop()
    assert guest.wait_dead(10)
    second = guest.start()
    assert not second.attached
    assert second.dsn == first.dsn


def test_an_attached_manager_survives_the_owners_violent_death(
    made_dir: Path, manager: MakeManager, manager_process: StartManager
) -> None:
    owner = manager_process(made_dir)
    guest = manager(made_dir)
    assert guest.start().attached
    owner.kill()
    assert guest.wait_dead(30)
    assert not guest.start().attached


def test_two_managers_started_together_agree_on_one_owner(data_dir: Path, manager_process: StartManager) -> None:
    """Both find an empty directory; one makes the cluster while the other waits."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: manager_process(data_dir), range(2))
    assert first.postmaster == second.postmaster
    assert first.dsn == second.dsn


def test_a_holder_without_a_server_is_named(
    made_dir: Path, manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenmq.embedded.attachment.PATIENCE", 0.5)
    monkeypatch.setattr("queenmq.embedded.attachment.REPORT_EVERY", 0.1)
    holder = DirectoryLock(made_dir / "postgres.lock")
    assert holder.acquire()
    said: list[str] = []
    with pytest.raises(DirectoryLockedError, match=str(os.getpid())) as refused:
        manager(made_dir, report=said.append).start()
    assert refused.value.data["pid"] == os.getpid()
    assert any(f"process {os.getpid()}" in line for line in said)
    holder.release()
    assert not manager(made_dir).start().attached


def test_the_lock_is_free_once_the_manager_is_dead_whatever_children_it_left(
    made_dir: Path, manager: MakeManager, manager_process: StartManager
) -> None:
    """Neither the server nor a forked worker may hold it on."""
    owner = manager_process(made_dir, fork_child="yes")
    assert owner.child_attached, "a forked worker owns nothing, and its stop stops nothing"
    os.kill(owner.postmaster, signal.SIGSTOP)
    try:
        owner.kill()
        lock = DirectoryLock(made_dir / "postgres.lock")
        assert lock.acquire()
        lock.release()
    finally:
        os.kill(owner.postmaster, signal.SIGCONT)
        os.kill(owner.child, signal.SIGKILL)
    wait_until(gone(made_dir / "postgres"), "the server stops after its manager")
    assert not manager(made_dir).start().attached
