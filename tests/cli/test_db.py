"""`queen db` looks after the embedded database when none is configured, and says clearly what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenmq.cli.exits import Exit
from tests.cli.conftest import Queen


@pytest.fixture
def local(data_dir: Path) -> dict[str, str]:
    """The settings of a server with an embedded PostgreSQL of its own."""
    return {"QUEEN_DATA_DIR": str(data_dir)}


def states(table: str) -> set[str]:
    return {line.split()[2] for line in table.splitlines()[1:-1]}


def test_a_new_database_is_migrated_once(queen: Queen, local: dict[str, str]) -> None:
    assert states(queen("db", "status", **local).stdout) == {"pending"}
    unmigrated = queen("db", "check", **local)
    assert unmigrated.returncode == Exit.PROBLEMS
    assert "queen: migrations: 0001_schema: is pending" in unmigrated.stderr

    first = queen("db", "migrate", **local)
    assert (first.returncode, first.stdout.split()[0]) == (Exit.OK, "applied")
    second = queen("db", "migrate", **local)
    assert (second.returncode, second.stdout) == (Exit.OK, "nothing to apply\n")

    assert states(queen("db", "status", **local).stdout) == {"applied"}
    healthy = queen("db", "check", **local)
    assert (healthy.returncode, healthy.stdout) == (Exit.OK, "ok\n")


def test_psql_reaches_the_database_and_passes_its_arguments_on(queen: Queen, local: dict[str, str]) -> None:
    answer = queen("db", "psql", "--no-align", "-tc", "SELECT 6 * 7", **local)
    assert (answer.returncode, answer.stdout) == (Exit.OK, "42\n")
    failing = queen("db", "psql", "-c", "SELECT 1/0", **local)
    assert failing.returncode == Exit.DATABASE
    assert "division by zero" in failing.stderr


def test_a_schema_of_a_newer_version_is_left_alone(queen: Queen, local: dict[str, str]) -> None:
    queen("db", "migrate", **local)
    newer = (
        "INSERT INTO queen.schema_migrations (number, name, checksum, version, requires)"
        " VALUES (9999, '9999_future', 'x', 9999, 9998)"
    )
    assert queen("db", "psql", "-c", newer, **local).returncode == Exit.OK
    for command in (["db", "migrate"], ["serve", "--port", "0"]):
        answer = queen(*command, **local)
        assert answer.returncode == Exit.SCHEMA
        assert "9999_future" in answer.stderr.splitlines()[-1]
        assert "version 9998 or newer" in answer.stderr.splitlines()[-1]
        assert "Traceback" not in answer.stderr
    assert "incompatible" in states(queen("db", "status", **local).stdout)
