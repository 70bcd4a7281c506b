"""Programs of the wheel and of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenmq.embedded import BinariesNotFoundError, BinariesUnusableError, VersionMismatchError, binaries
from tests.conftest import INSTALLATIONS
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import value


@pytest.mark.parametrize("installation", INSTALLATIONS)
def test_every_installation_runs(data_dir: Path, manager: MakeManager, installation: str) -> None:
    bin_dir = INSTALLATIONS[installation]
    server = manager(data_dir, bin_dir=bin_dir)
    connection = server.start()
    major = binaries.find(bin_dir).major
    assert value(connection.dsn, "SELECT current_setting('server_version_num')::int / 10000") == major
    assert value(connection.dsn, "SELECT lower('Ä')") == "ä"
    server.stop()
    if bin_dir is not None:
        with pytest.raises(VersionMismatchError, match=f"made by PostgreSQL {major}"):
            manager(data_dir).start()


def test_a_directory_without_programs_is_named(data_dir: Path, manager: MakeManager, tmp_path: Path) -> None:
    with pytest.raises(BinariesNotFoundError, match=str(tmp_path)):
        manager(data_dir, bin_dir=tmp_path).start()


def test_a_program_that_does_not_run_is_named(data_dir: Path, manager: MakeManager, tmp_path: Path) -> None:
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text("#!/bin/sh\necho wrong system >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(BinariesUnusableError, match="wrong system"):
        manager(data_dir, bin_dir=tmp_path).start()


def test_a_missing_wheel_is_explained(data_dir: Path, manager: MakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "no_such_wheel")
    with pytest.raises(BinariesNotFoundError, match="QUEEN_PG_BIN"):
        manager(data_dir).start()
