"""The targets for slow tests collect them: pytest leaves a folder out without a word when it is named beside another
that contains it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def collected(target: str) -> str:
    """The names of the tests that a target runs."""
    makefile = (ROOT / "Makefile").read_text()
    variables = dict(re.findall(r"^(\w+) := (.*)$", makefile, re.MULTILINE))
    found = re.search(rf"^{target}:.*\n\t.*? -m pytest (.*) \$\(PYTEST_ARGS\)$", makefile, re.MULTILINE)
    assert found is not None, target
    arguments = re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], found[1])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-qq",
        "-p",
        "no:cacheprovider",
        *shlex.split(arguments),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("test-cluster", ["tests/spark/cluster/test_clusters.py", "tests/spark/cluster/test_speculation.py"]),
        ("test-no-java", ["tests/spark/test_java.py", "tests/spark/cluster/test_clusters.py"]),
        (
            "faultlab",
            ["tests/proof/test_end_to_end.py", "tests/proof/spark/test_writer_killed.py", "test_state_machine"],
        ),
    ],
)
def test_slow_tests_are_in_their_target(target: str, wanted: list[str]) -> None:
    names = collected(target)
    assert [each for each in wanted if each not in names] == []
