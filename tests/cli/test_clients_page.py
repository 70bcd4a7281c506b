"""The program of docs/clients.md does what the page says, with the client that a new user gets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from queenmq.cli.exits import Exit
from tests.cli.conftest import DEADLINE, Queen, StartQueen
from tests.cli.test_serve import wait_until_said
from tests.proof.test_official_clients import VERSIONS, Unreachable, install

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))


def test_the_program_and_the_query_of_the_page(
    queen: Queen, start_queen: StartQueen, data_dir: Path, tmp_path: Path
) -> None:
    try:
        python = install(VERSIONS[-1], tmp_path / "client")
    except Unreachable as error:
        print(error)
        pytest.skip(f"the package registry is unreachable: {error}")
    url = wait_until_said(start_queen("serve", "--port", "0", QUEEN_DATA_DIR=str(data_dir)), "  URL ").split()[-1]

    program = BLOCKS["python"].replace("http://localhost:6632", url)
    assert url in program
    done = subprocess.run(
        [python, "-I", "-c", program], env={}, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("bill", "["))]
    assert said[:4] == [f"bill {{'total': {total}}}" for total in (12, -1, -1, 30)]
    assert "'data': {'orders': 3}" in said[4]

    dead = queen("db", "psql", "-Atc", BLOCKS["sql"], QUEEN_DATA_DIR=str(data_dir))
    assert (dead.returncode, dead.stdout) == (Exit.OK, 'sales|customer-42|billing|negative total|{"total":-1}\n')
