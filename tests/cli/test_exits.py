"""Exit codes are part of the interface: documented, distinct, and never a traceback for what can be expected."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import pytest

from queenmq import __version__
from queenmq.cli.exits import Exit
from tests.children import QUEEN
from tests.cli.conftest import DEADLINE, Queen, StartQueen

DOCS = Path(__file__).parents[2] / "docs"


def test_the_exit_codes_are_documented() -> None:
    rows = [line for line in (DOCS / "cli.md").read_text().splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert rows == [f"| {code.value} | {code.meaning} |" for code in Exit]


def test_the_version_is_shown(queen: Queen) -> None:
    answer = queen("--version")
    assert (answer.returncode, answer.stdout) == (Exit.OK, f"queen {__version__}\n")


def test_without_a_stdout_there_is_nobody_to_tell(environment: dict[str, str]) -> None:
    command = ["sh", "-c", 'exec "$0" config >&-', str(QUEEN)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (Exit.OK, "")


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


@pytest.mark.parametrize("arguments", [["db", "migrate"], ["db", "check"], ["db", "psql"], ["serve", "--port", "0"]])
def test_a_parameter_of_other_programs_in_the_url_is_one_sentence(queen: Queen, arguments: list[str]) -> None:
    answer = queen(*arguments, DATABASE_URL="postgresql://ann:hunter2@127.0.0.1:1/shop?schema=public")
    assert answer.returncode == Exit.USAGE
    (sentence,) = answer.stderr.splitlines()
    assert sentence.endswith("its parameter 'schema' is not one that is known here; leave it out.")
    assert "hunter2" not in sentence


def test_a_data_directory_that_is_not_ours_is_one_sentence(queen: Queen, data_dir: Path) -> None:
    (data_dir / "postgres").mkdir(parents=True)
    (data_dir / "postgres" / "PG_VERSION").write_text("9.6\n")
    answer = queen("db", "status", QUEEN_DATA_DIR=str(data_dir))
    assert answer.returncode == Exit.EMBEDDED
    assert "Traceback" not in answer.stderr


def test_ctrl_c_ends_a_command_without_a_traceback(start_queen: StartQueen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE)
        port = silent.getsockname()[1]
        command = start_queen("db", "status", DATABASE_URL=f"postgresql://ann@127.0.0.1:{port}/shop")
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)  # it has asked, and waits for an answer
            command.send_signal(signal.SIGINT)
            said, complained = command.communicate(timeout=DEADLINE)
    assert (command.returncode, said) == (Exit.INTERRUPTED, "")
    assert "Traceback" not in complained
