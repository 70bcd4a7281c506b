"""The targets for tests collect what they promise: pytest leaves a folder out without a word when it is named beside
another that contains it, and `make check` leaves out only what CONTRIBUTING.md says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", "")
LEFT_OUT = (
    "tests/api/test_hostile.py",
    "tests/cli/test_clients_page.py",
    "tests/cli/test_db.py",
    "tests/cli/test_pipeline.py",
    "tests/cli/test_serve.py",
    "tests/embedded/",
    "tests/engine/test_every_reply_lost.py",
    "tests/proof/",
    "tests/server/test_cluster.py",
    "tests/server/test_siblings.py",
    "tests/server/test_supervisor.py",
    "tests/server/test_supervisor_start.py",
    "tests/server/test_supervisor_stop.py",
    "tests/spark/",
    "tests/storage/test_explain.py",
    "tests/storage/test_pgbouncer.py",
    "tests/storage/test_state_machine.py",
    "tests/storage/test_stress.py",
    "tests/storage/test_wide_migration.py",
    "tests/test_isolation.py",
    "tests/test_makefile.py",
)


def collected(target: str) -> str:
    """The names of the tests that a target runs."""
    variables = dict(re.findall(r"^(\w+) := (.*)$", MAKEFILE, re.MULTILINE))
    recipe = rf"^{target}:.*\n\t@((?:\w+=\w+ )*)\S+ -m pytest (.*) \$\(PYTEST_ARGS\)$"
    found = re.search(recipe, MAKEFILE, re.MULTILINE)
    assert found is not None, target
    settings = dict(each.split("=") for each in found[1].split())
    arguments = re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], found[2])
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *shlex.split(arguments)],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_daily_check_leaves_out_only_what_it_says() -> None:
    everything, daily = (
        {line.partition("[")[0] for line in collected(target).splitlines() if "::" in line}
        for target in ("test", "check")
    )
    left = {name.partition("::")[0] for name in everything - daily}
    assert {name for name in left if not name.startswith(LEFT_OUT)} == set()
    assert {each for each in LEFT_OUT if any(name.startswith(each) for name in daily)} == set()
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert {each for each in LEFT_OUT if f"`{each.removeprefix('tests/').rstrip('/')}`" not in page} == set()


def test_a_daily_check_runs_some_parameters_of_each_test() -> None:
    sets = Counter(line.partition("[")[0] for line in collected("check").splitlines() if "::" in line)
    assert max(sets.values()) == 2


def test_the_targets_of_tests_lint_first_and_are_listed() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("check", "test"):
        assert re.search(rf"^{target}: lint ## ", MAKEFILE, re.MULTILINE)
        assert f"make {target} " in shown


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
