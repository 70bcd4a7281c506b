"""Exit codes are part of the interface: documented, distinct, and never a traceback for what can be expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenmq import __version__
from queenmq.cli.exits import Exit
from tests.cli.conftest import Queen

DOCS = Path(__file__).parents[2] / "docs"


def test_the_exit_codes_are_documented() -> None:
    rows = [line for line in (DOCS / "cli.md").read_text().splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert rows == [f"| {code.value} | {code.meaning} |" for code in Exit]


def test_the_version_is_shown(queen: Queen) -> None:
    answer = queen("--version")
    assert (answer.returncode, answer.stdout) == (Exit.OK, f"queen {__version__}\n")


@pytest.mark.parametrize("arguments", [["nonsense"], ["config", "--nonsense"], ["db", "nonsense"]])
def test_a_wrong_command_line_is_a_usage_error(queen: Queen, arguments: list[str]) -> None:
    answer = queen(*arguments)
    assert answer.returncode == Exit.USAGE
    assert "nonsense" in answer.stderr


@pytest.mark.parametrize("arguments", [["db", "migrate"], ["db", "status"], ["db", "check"]])
def test_an_unreachable_database_is_one_sentence(queen: Queen, arguments: list[str]) -> None:
    answer = queen(*arguments, DATABASE_URL="postgresql://ann:hunter2@127.0.0.1:1/shop")
    assert answer.returncode == Exit.UNREACHABLE
    (sentence,) = answer.stderr.splitlines()
    assert sentence.startswith("queen: ")
    assert "127.0.0.1" in sentence
    assert "hunter2" not in answer.stderr
    assert answer.stdout == ""


def test_a_data_directory_that_is_not_ours_is_one_sentence(queen: Queen, data_dir: Path) -> None:
    (data_dir / "postgres").mkdir(parents=True)
    (data_dir / "postgres" / "PG_VERSION").write_text("9.6\n")
    answer = queen("db", "status", QUEEN_DATA_DIR=str(data_dir))
    assert answer.returncode == Exit.EMBEDDED
    assert "Traceback" not in answer.stderr
