"""Who the server runs as, whoever runs the manager: a normal user stays himself, a root becomes unprivileged.

What only root can try is in `test_root`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import queenmq.embedded
from queenmq.embedded import binaries
from queenmq.embedded.identity import Identity, run_as
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import gone, insert_until_cut, query, stored, uid_of, value, wait_until
from tests.embedded.manager_process import ManagerProcess


@dataclass(frozen=True)
class NormalUser:
    """What a manager process of a normal user needs; in a root's test run nothing of ours may be readable for it."""

    uid: int
    options: dict[str, object]


@pytest.fixture
def normal_user(public_dir: Path) -> NormalUser:
    if os.geteuid() != 0:
        return NormalUser(os.geteuid(), {})
    nobody = pwd.getpwnam("nobody")
    user = Identity(nobody.pw_uid, nobody.pw_gid, drops_root=True)
    os.chown(public_dir, user.uid, user.gid)
    library = public_dir / "library"
    package = Path(queenmq.embedded.__file__).parent
    shutil.copytree(package, library / "queenmq" / "embedded", ignore=shutil.ignore_patterns("__pycache__"))
    program = shutil.copy(Path(__file__).with_name("manager_process.py"), public_dir)
    options = {
        "python": reachable_python(user),
        "user": user.uid,
        "bin_dir": str(binaries.for_identity(binaries.find(None), user).bin_dir),
        "library": str(library),
        "program": str(program),
    }
    return NormalUser(user.uid, options)


def reachable_python(user: Identity) -> str:
    recent = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        if run_as(user, [python, "-c", recent]) is not None:
            return python
    pytest.skip("no Python that another user can run")


def test_a_normal_user_runs_the_server_as_himself_and_survives_a_kill_under_load(
    data_dir: Path, normal_user: NormalUser, manager_process: Callable[..., ManagerProcess]
) -> None:
    first = manager_process(data_dir, **normal_user.options)
    assert uid_of(first.process.pid) == normal_user.uid
    assert uid_of(first.postmaster) == normal_user.uid
    assert (data_dir / "postgres").stat().st_uid == normal_user.uid
    acknowledged = insert_until_cut(first.dsn, first.kill)
    wait_until(gone(data_dir / "postgres"), "the server stops after its manager")
    second = manager_process(data_dir, **normal_user.options)
    assert acknowledged <= stored(second.dsn)


def test_the_server_is_unprivileged(data_dir: Path, manager: MakeManager) -> None:
    pid = manager(data_dir).start().postmaster_pid
    assert (data_dir / "postgres").stat().st_uid == uid_of(pid)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ids = {line.split(":")[0]: set(line.split()[1:]) for line in lines if line.startswith(("Uid", "Gid", "Groups"))}
    assert ids["Uid"] == {str(uid_of(pid))}
    assert not {"0"} & (ids["Uid"] | ids["Gid"] | ids["Groups"])


def test_private_parents_are_passed_and_their_permissions_kept(tmp_path: Path, manager: MakeManager) -> None:
    """As under /root: the server's user cannot walk there, and the directories are not opened for it."""
    data_dir = tmp_path / "private" / "data"
    data_dir.parent.mkdir(mode=0o700)
    data_dir.mkdir(mode=0o700)
    before = permissions(data_dir)
    server = manager(data_dir)
    connection = server.start()
    query(connection.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(connection.postmaster_pid, 9)
    assert server.wait_dead(10)
    assert value(server.start().dsn, "SELECT answer FROM kept") == 42
    server.stop()
    assert permissions(data_dir) == before


def permissions(directory: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in (directory, *directory.parents)}
    return {path: (stat.S_IMODE(status.st_mode), status.st_uid) for path, status in found.items()}
