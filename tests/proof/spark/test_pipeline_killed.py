"""`queen pipeline run` as people run it: a process with its own Spark, that is stopped from another process.

With PROOF_SCALE above 1 its Java is killed before that, several times; each time it goes on in a new one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from queenmq.cli.exits import Exit
from queenmq.spark.connecting import call
from queenmq.storage import pipeline_states
from queenmq.storage.pipeline_states import PipelineState
from tests import children
from tests.amounts import SCALE
from tests.children import QUEEN
from tests.server.running import eventually

PATIENCE = 200
KILLS = 0 if SCALE <= 1 else 3
_PUSH = "insert into queen.messages (queue, partition, payload) select 'orders', 'p', '{}' from generate_series(1, 10)"


@dataclass(frozen=True)
class Archive:
    """A running archive, and its database."""

    process: subprocess.Popen[str]
    database: str

    def push(self) -> None:
        call(self.database, lambda db: db.execute(_PUSH))

    @property
    def states(self) -> list[PipelineState]:
        return [seen.state for seen in call(self.database, pipeline_states.listed)]

    def wait_for_rows(self, count: int) -> PipelineState:
        def reached() -> list[PipelineState]:
            assert self.process.poll() is None, "it has ended"
            return [state for state in self.states if state.rows >= count]

        return eventually(reached, PATIENCE)[0]

    @property
    def java(self) -> int:
        """The process id of its Java."""
        command = ["ps", "-A", "-o", "pid=,ppid=,comm="]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()]
        [pid] = [int(pid) for pid, parent, name in rows if int(parent) == self.process.pid and name == "java"]
        return pid


@pytest.fixture
def archive(database: str, tmp_path: Path) -> Iterator[Archive]:
    command = ["pipeline", "run", "archive", "--queue", "orders", "--lake", str(tmp_path / "lake"), "--trigger", "0.5"]
    settings = {"DATABASE_URL": database, "SPARK_DRIVER_MEMORY": "1g", "HOME": str(tmp_path)}
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "JAVA_HOME", "QUEEN_SPARK_JAVA") if name in os.environ
    }
    call(database, lambda db: db.execute(_PUSH))
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [QUEEN, *command, "--master", "local[2]"], env=kept | settings, stdout=said, stderr=said, text=True
        )
    yield Archive(process, database)
    process.kill()
    process.wait()


@pytest.mark.timeout(300 + 200 * KILLS)
def test_an_archive_outlives_its_java_and_stops_when_asked(archive: Archive, tmp_path: Path) -> None:
    for kill in range(KILLS):
        archive.wait_for_rows(10 * (kill + 1))
        os.kill(archive.java, signal.SIGKILL)
        archive.push()
    rows = 10 * (KILLS + 1)
    state = archive.wait_for_rows(rows)
    assert (state.id, state.state, state.rows) == ("archive:orders", "running", rows)
    assert state.restarts >= KILLS, "more when the machine is so busy that Spark does not find its workers in time"
    environment = children.environment(tmp_path, DATABASE_URL=archive.database)
    command = [str(QUEEN), "pipeline", "stop", "archive"]
    stop = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (stop.returncode, stop.stdout) == (Exit.OK, "archive:orders has stopped\n")
    assert archive.process.wait(PATIENCE) == Exit.OK
    assert [state.state for state in archive.states] == ["stopped"]
    said = (tmp_path / "said").read_text()
    assert said.endswith(f"archive:orders has been stopped: {rows} rows\n")
    assert said.count("starting it again") == state.restarts
