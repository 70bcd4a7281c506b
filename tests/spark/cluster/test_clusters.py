"""The source on executors of their own: both of them read, what they need reaches them, and no one else sees it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

from tests.test_packaging import build_wheel

from .conftest import EACH, PARTITIONS, Database
from .processes import Cluster, python, run, spark_submit

PROBE = Path(__file__).with_name("probe.py")
EXAMPLE = Path(__file__).parents[3] / "examples" / "spark_count.py"
EXPECTED = [[partition, number, str(number)] for partition in PARTITIONS for number in range(1, EACH + 1)]
COUNTS = [f"{partition}: {EACH} messages, the last is {EACH}" for partition in PARTITIONS]


def probed(master: str, copy: str, database: Database, directory: Path) -> dict[str, Any]:
    done = run(
        python(PROBE, master, "orders", copy), directory, DATABASE_URL=database.url, PYSPARK_PYTHON=sys.executable
    )
    assert database.password not in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def check(answer: dict[str, Any], database: Database) -> None:
    assert answer["rows"] == EXPECTED
    assert answer["splits"] == 8
    assert set(answer["readers"]) == {"0", "1"}, "both executors have read"
    assert answer["hashes"] == [hashlib.sha256(database.url.encode()).hexdigest()], "executors can connect"
    assert database.password not in answer["commands"], "nobody sees it who lists processes"
    assert database.password not in str(answer["settings"])


async def copied(database: Database, queue: str) -> list[list[object]]:
    rows = await database.rows(queue)
    assert {(partition, seq) for partition, seq, _ in rows} == {(row[0], row[1]) for row in EXPECTED}
    return sorted([partition, int(payload), payload] for partition, _, payload in rows)


async def test_on_a_cluster_inside_the_driver(database_with_password: Database, empty: Path) -> None:
    answer = probed("local-cluster[2,1,1024]", "copy-of-local", database_with_password, empty)
    check(answer, database_with_password)
    assert await copied(database_with_password, "copy-of-local") == EXPECTED


async def test_on_a_standalone_cluster(database_with_password: Database, standalone: Cluster, empty: Path) -> None:
    answer = probed(standalone.master, "copy-of-standalone", database_with_password, empty)
    check(answer, database_with_password)
    assert await copied(database_with_password, "copy-of-standalone") == EXPECTED
    assert "org.apache.spark" in standalone.said
    assert database_with_password.password not in standalone.said


def test_submitting_the_example(database_with_password: Database, standalone: Cluster, empty: Path) -> None:
    submitted(standalone, database_with_password, empty, sys.executable)


def test_submitting_it_with_the_package_to_executors_that_lack_it(
    database_with_password: Database, standalone: Cluster, empty: Path, tmp_path: Path
) -> None:
    build_wheel(tmp_path)
    (wheel,) = tmp_path.glob("queenmq-*.whl")
    archive = wheel.rename(tmp_path / "queenmq.zip")
    python = python_without_queenmq(tmp_path / "bare")
    submitted(standalone, database_with_password, empty, python, "--py-files", str(archive))


def submitted(cluster: Cluster, database: Database, directory: Path, python: str, *more: str) -> None:
    command = spark_submit(cluster.master, "--executor-memory", "512m", *more, str(EXAMPLE), "orders")
    done = run(command, directory, DATABASE_URL=database.url, PYSPARK_PYTHON=python)
    assert done.stdout.splitlines()[-len(COUNTS) :] == COUNTS
    assert database.password not in done.stderr
    assert database.password not in cluster.said


def python_without_queenmq(directory: Path) -> str:
    """A Python with every dependency. Paths in a .pth file are not searched for further ones, as ours is installed."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = str(directory / "bin" / "python")
    lacking = subprocess.run([python, "-c", "import pyspark, queenmq"], capture_output=True, text=True, check=False)
    assert "No module named 'queenmq'" in lacking.stderr
    return python


def test_the_example_on_this_machine_alone(database_with_password: Database, empty: Path) -> None:
    done = run(python(EXAMPLE, "orders"), empty, DATABASE_URL=database_with_password.url)
    assert done.stdout.splitlines() == COUNTS
    noise = [line for line in done.stderr.splitlines() if "jdk.incubator.vector" not in line]
    assert noise == [], "a start says nothing"
    assert list(empty.iterdir()) == [], "and leaves nothing behind"
