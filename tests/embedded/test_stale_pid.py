"""What an earlier server left: its pid file goes only when its process is proven to be none of the cluster's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queenmq.embedded import (
    DirectoryLockedError,
    DirectoryUnusableError,
    binaries,
    identity,
    pidfile,
    predecessor,
    processes,
)
from queenmq.embedded.processes import Verdict
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import value, wait_until


@pytest.fixture
def cluster(made_dir: Path) -> Path:
    """A cluster whose server has stopped."""
    return made_dir / "postgres"


@pytest.fixture
def bystander(cluster: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A living process with the very user and working directory of a server, but another program."""
    owner = cluster.stat()
    drop = owner.st_uid if os.geteuid() == 0 else None
    with subprocess.Popen(["/bin/sleep", "60"], cwd=cluster, user=drop) as process:
        yield process
        process.kill()


def leave_pid_file(cluster: Path, content: str) -> Path:
    path = cluster / "postmaster.pid"
    path.write_text(content)
    os.chown(path, cluster.stat().st_uid, cluster.stat().st_gid)
    path.chmod(0o600)
    return path


def test_a_reused_pid_of_an_unrelated_process(
    cluster: Path, manager: MakeManager, bystander: subprocess.Popen[bytes]
) -> None:
    leave_pid_file(cluster, f"{bystander.pid}\n{cluster}\n1700000000\n5432\n/tmp\n\n  1 1\nready   \n")
    connection = manager(cluster.parent).start()
    assert not connection.attached
    assert value(connection.dsn, "SELECT 1") == 1
    assert bystander.poll() is None, "it was left alone"


def test_a_reused_pid_of_another_clusters_server(cluster: Path, public_dir: Path, manager: MakeManager) -> None:
    other = manager(public_dir / "other")
    pid = other.start().postmaster_pid
    leave_pid_file(cluster, f"{pid}\n{cluster}\n1700000000\n5432\n/tmp\n\n  1 1\nready   \n")
    assert manager(cluster.parent).start().postmaster_pid != pid
    assert other.alive()


def test_a_dead_process_that_nobody_waited_for(cluster: Path, manager: MakeManager) -> None:
    """PostgreSQL itself takes such a process for a living one and would not start."""
    with subprocess.Popen(["/bin/true"], user=cluster.stat().st_uid) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        leave_pid_file(cluster, f"{zombie.pid}\n{cluster}\n1700000000\n5432\n/tmp\n\n  1 1\nready   \n")
        assert not manager(cluster.parent).start().attached


@pytest.mark.parametrize("content", ["", "nonsense\n", "0\n"])
def test_a_pid_file_that_names_no_process(cluster: Path, manager: MakeManager, content: str) -> None:
    leave_pid_file(cluster, content)
    assert not manager(cluster.parent).start().attached


def test_an_unproven_pid_file_is_kept(
    cluster: Path, manager: MakeManager, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = leave_pid_file(cluster, f"{bystander.pid}\n")
    monkeypatch.setattr(processes, "judge", lambda _pid, _cluster: Verdict.UNKNOWN)
    with pytest.raises(DirectoryUnusableError, match=str(bystander.pid)):
        manager(cluster.parent).start()
    assert path.exists()


@contextmanager
def server_of_somebody_else(cluster: Path, *mode: str) -> Iterator[subprocess.Popen[bytes]]:
    user = identity.choose(cluster)
    postgres = binaries.for_identity(binaries.find(None), user).program("postgres")
    options = ["-D", str(cluster), "-c", "listen_addresses=", "-c", f"unix_socket_directories={cluster}"]
    with subprocess.Popen(
        [postgres, *mode, *options, *(["postgres"] if mode else [])],
        user=user.uid if user.drops_root else None,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def test_an_orphaned_server_is_stopped_cleanly_first(
    cluster: Path, manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predecessor, "ORPHAN_STEPS", predecessor.ORPHAN_STEPS[1:])
    with server_of_somebody_else(cluster) as orphan:
        wait_until(lambda: "ready" in status(cluster), "the orphan is ready")
        assert not manager(cluster.parent).start().attached
        assert orphan.wait(10) == 0, "stopped by a clean shutdown"


def test_a_single_user_server_is_not_disturbed(cluster: Path, manager: MakeManager) -> None:
    with server_of_somebody_else(cluster, "--single") as maintenance:
        wait_until((cluster / "postmaster.pid").exists, "the single-user server is there")
        with pytest.raises(DirectoryLockedError, match=str(maintenance.pid)):
            manager(cluster.parent).start()
        assert maintenance.poll() is None


def status(cluster: Path) -> str:
    note = pidfile.read(cluster)
    return note.status if note else ""


def test_systems_without_proc_reach_the_same_verdicts(
    cluster: Path, manager: MakeManager, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = manager(cluster.parent).start().postmaster_pid
    monkeypatch.setattr(processes, "PROC", Path("/nonexistent"))
    assert processes.judge(pid, cluster) is Verdict.OURS
    assert processes.judge(bystander.pid, cluster) is Verdict.NOT_OURS
    assert processes.judge(pid, Path("/tmp")) is Verdict.NOT_OURS
