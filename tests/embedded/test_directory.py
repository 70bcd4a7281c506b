"""Directories that cannot be used as they are: each has a clear error, and none is ever initialised anew."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queenmq.embedded import (
    DirectoryUnusableError,
    DiskFullError,
    StartFailedError,
    VersionMismatchError,
)
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import query, value


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_a_cluster_of_another_version_is_refused_and_kept(made_dir: Path, manager: MakeManager) -> None:
    (made_dir / "postgres" / "PG_VERSION").write_text("14\n")
    before = contents(made_dir / "postgres")
    with pytest.raises(VersionMismatchError, match="made by PostgreSQL 14") as refused:
        manager(made_dir).start()
    assert refused.value.data["cluster_version"] == "14"
    assert str(refused.value.data["binaries_version"]).startswith("18")
    assert contents(made_dir / "postgres") == before


def test_a_directory_with_unknown_content_is_refused_and_kept(data_dir: Path, manager: MakeManager) -> None:
    (data_dir / "postgres").mkdir(parents=True)
    (data_dir / "postgres" / "thesis.txt").write_text("years of work")
    with pytest.raises(DirectoryUnusableError, match="not a PostgreSQL cluster"):
        manager(data_dir).start()
    assert contents(data_dir / "postgres") == {"thesis.txt": b"years of work"}


def test_a_damaged_cluster_is_refused_and_kept(made_dir: Path, manager: MakeManager) -> None:
    (made_dir / "postgres" / "global" / "pg_control").unlink()
    before = contents(made_dir / "postgres")
    with pytest.raises(StartFailedError, match="pg_control"):
        manager(made_dir).start()
    assert contents(made_dir / "postgres") == before


def test_a_file_in_the_way_is_refused(data_dir: Path, manager: MakeManager) -> None:
    data_dir.write_text("not a directory")
    with pytest.raises(DirectoryUnusableError, match=str(data_dir)):
        manager(data_dir).start()


def test_what_a_killed_initialisation_left_is_removed(data_dir: Path, manager: MakeManager) -> None:
    half_made = data_dir / "postgres.init-abandoned"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    (data_dir / "postgres.initial-notes").write_text("not ours")
    connection = manager(data_dir).start()
    assert value(connection.dsn, "SELECT 1") == 1
    assert sorted(p.name for p in data_dir.iterdir() if "init" in p.name) == ["postgres.initial-notes"]


def test_an_empty_directory_is_filled(data_dir: Path, manager: MakeManager) -> None:
    (data_dir / "postgres").mkdir(parents=True)
    assert value(manager(data_dir).start().dsn, "SELECT 1") == 1


Shortage = Callable[[Path], Iterator[None]]


def limited_file_size(_data_dir: Path) -> Iterator[None]:
    """Works for every user: no file may grow beyond a megabyte, which WAL segments do."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def small_disk(data_dir: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=0755", "tmpfs", str(data_dir)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(data_dir)], check=True)


def can_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


SHORTAGES: list[Shortage] = [limited_file_size, *([small_disk] if can_mount() else [])]


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_no_room_for_a_new_cluster(data_dir: Path, manager: MakeManager, shortage: Shortage) -> None:
    data_dir.mkdir()
    with contextmanager(shortage)(data_dir):
        with pytest.raises(DiskFullError, match="no room") as refused:
            manager(data_dir).start()
        left = sorted(p.name for p in data_dir.iterdir())
    assert refused.value.data["directory"] == str(data_dir)
    assert left == ["postgres.lock"], "nothing half-made stays"
    assert value(manager(data_dir).start().dsn, "SELECT 1") == 1


def test_no_room_for_a_start(made_dir: Path, manager: MakeManager) -> None:
    """Recovery that has to write and cannot: the server's own words tell why it ended."""
    server = manager(made_dir)
    first = server.start()
    query(first.dsn, "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 20)")
    os.kill(first.postmaster_pid, 9)
    assert server.wait_dead(10)
    with contextmanager(limited_file_size)(made_dir), pytest.raises(DiskFullError, match="no room"):
        server.start()
    assert value(server.start().dsn, "SELECT 1") == 1


def test_a_cluster_behind_a_symbolic_link(made_dir: Path, public_dir: Path, manager: MakeManager) -> None:
    shutil.move(made_dir / "postgres", public_dir / "elsewhere")
    (made_dir / "postgres").symlink_to(public_dir / "elsewhere")
    assert value(manager(made_dir).start().dsn, "SELECT 1") == 1
