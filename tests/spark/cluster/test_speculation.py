"""Two attempts of one task write at the same time, and every row is stored once and in order."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Database
from .processes import Cluster, SparkProcess, python, run
from .speculating import EACH, TASKS

SPECULATING = Path(__file__).with_name("speculating.py")


@pytest.fixture
def two_hosts(standalone: Cluster, tmp_path: Path) -> Iterator[str]:
    """A cluster with another worker, whose host has another name: Spark never tries a slow task again on its host."""
    room = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path))
    there = ("--host", "localhost", "--port", "0", "--webui-port", "0")
    worker = SparkProcess(tmp_path, "worker2", "worker.Worker", *there, *room, standalone.master)
    try:
        worker.wait_for(r"(Successfully registered with master)")
        yield standalone.master
    finally:
        worker.end()


@pytest.mark.timeout(600)
async def test_attempts_that_write_side_by_side(database_with_password: Database, two_hosts: str, empty: Path) -> None:
    command = python(SPECULATING, two_hosts, "speculated")
    done = run(command, empty, DATABASE_URL=database_with_password.url, PYSPARK_PYTHON=sys.executable)
    assert done.stdout.splitlines() == ["batch ['0', '1']", "stream ['0', '1']"], "both attempts have gone on"
    for way in ("batch", "stream"):
        await check(database_with_password, f"speculated-{way}")
    duplicates = re.findall(r"wrote 1,600 messages: [0-9,]+ queued, ([0-9,]+) duplicates", done.stderr)
    assert len(duplicates) == 2
    assert "0" not in duplicates, "the attempt that Spark took has met rows which the other one had stored"


async def check(database: Database, queue: str) -> None:
    found: dict[str, list[int]] = {}
    for partition, _, payload in await database.rows(queue):
        found.setdefault(partition, []).append(json.loads(payload)["n"])
    assert {partition: len(numbers) for partition, numbers in found.items()} == {str(n): EACH for n in range(TASKS)}
    assert all(numbers == sorted(set(numbers)) for numbers in found.values())
