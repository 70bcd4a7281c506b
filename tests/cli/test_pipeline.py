"""`queen pipeline` without Spark: what it lists, refuses, shows and asks to stop."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from rich.console import Console

from queenmq.cli.exits import Exit
from queenmq.cli.pipeline_progress import Shown, sentence
from queenmq.spark.connecting import call
from queenmq.spark.lake.filesystem import open_lake
from queenmq.spark.pipelines.archive import holder_of
from queenmq.spark.pipelines.base import Arguments, Progress
from queenmq.spark.pipelines.registry import PIPELINES, find
from queenmq.spark.runner import Job, first_state
from queenmq.storage import holds, pipeline_states
from queenmq.storage.pipeline_states import PipelineState
from tests.children import SOURCE
from tests.cli.conftest import DEADLINE, Queen, StartQueen
from tests.server.running import eventually

PACKAGE = Path(__file__).parents[2] / "src" / "queenmq"


def claimed(database: str, name: str = "archive", label: str | None = None) -> PipelineState:
    """A run that says it is alive, though nobody runs it."""
    arguments = Arguments(queue="orders", checkpoint=f"/checkpoints/{label}")
    state = first_state(Job(find(name), arguments, database, label=label, master="local[2]"))
    assert call(database, lambda db: pipeline_states.claim(db, state))
    return state


def tell(database: str, state: PipelineState) -> str | None:
    return call(database, lambda db: pipeline_states.tell(db, state))


def test_every_pipeline_is_listed_without_a_database_and_without_spark(queen: Queen) -> None:
    answer = queen("pipeline", "list")
    assert answer.returncode == Exit.OK
    assert [line.split()[0] for line in answer.stdout.splitlines()[1:]] == [each.name for each in PIPELINES]


def test_every_pipeline_that_is_listed_is_there() -> None:
    for each in PIPELINES:
        assert (PACKAGE / "spark" / "pipelines" / f"{each.name.replace('-', '_')}.py").is_file(), each.name


def test_spark_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, queenmq.cli.app; sys.exit(any(name.split('.')[0] == 'pyspark' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["archiv"], "there is no pipeline 'archiv'; did you mean archive?"),
        (["nonsense"], "there is no pipeline 'nonsense'; there are archive, replay, "),
        (["archive", "--queue", "orders"], "pipeline archive needs --lake; see: queen pipeline run --help"),
        (["window", "--config", "x.yaml"], "pipeline window needs --checkpoint"),
        (["lag", "--out", "x", "--lake", "y"], "pipeline lag has no --lake; it takes --out, --queue"),
        (["skew", "--out", "x", "--partition", "p"], "pipeline skew has no --partition; it takes --out"),
        (["window", "--config", "no.yaml", "--checkpoint", "x"], "the config no.yaml cannot be read: No such file"),
        (
            ["skew", "--out", "x", "--from-time", "2025-01-31T12:00", "--to-time", "2025-01-31T13:00+01:00"],
            "--to-time is 2025-01-31T13:00:00+01:00; it must be later than --from-time, which is 2025-01-31T12:",
        ),
        (
            ["replay", "--lake", "s3://key:secret@bucket/lake"],
            "option --lake is 's3:…'; it must be a path, or a URI such as s3://bucket/lake with nothing but",
        ),
        (["replay", "--lake", "s3:/bucket"], "option --lake is 's3:…'; it must be a path, or a URI such as s3://"),
        (["replay", "--lake", "x", "--from-time", "noon"], "--from-time is 'noon'; it must be a time such as 2025-"),
    ],
)
def test_a_wrong_command_is_one_sentence_before_anything_starts(
    queen: Queen, arguments: list[str], complaint: str
) -> None:
    answer = queen("pipeline", "run", *arguments, DATABASE_URL="postgresql://ann@127.0.0.1:1/shop")
    assert answer.returncode == Exit.USAGE
    (said,) = answer.stderr.splitlines()
    assert said.startswith(f"queen: {complaint}")


def test_without_spark_it_says_what_to_install(database: str, environment: dict[str, str], tmp_path: Path) -> None:
    """A Python that does not find PySpark, as with the base install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'pyspark' else found(name, package)\n"
    )
    command = "import sys; sys.argv = ['queen', *sys.argv[1:]]; from queenmq.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "pipeline", "run", "rollup"],
        env={**environment, "DATABASE_URL": database, "PYTHONPATH": f"{SOURCE}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        Exit.SPARK,
        "queen: Spark is not installed; install it with: pip install 'queenmq[spark]' "
        "(in a clone: pip install '.[spark]')\n",
    )


def test_a_database_without_the_schema_is_one_sentence(queen: Queen, data_dir: Path) -> None:
    for command in (["status"], ["release", "--queue", "orders", "--lake", "x"]):
        answer = queen("pipeline", *command, QUEEN_DATA_DIR=str(data_dir))
        assert answer.returncode == Exit.SCHEMA
        assert answer.stderr.splitlines()[-1].endswith("run: queen db migrate")


def test_states_are_shown(queen: Queen, database: str) -> None:
    assert queen("pipeline", "status", DATABASE_URL=database).stdout == "no pipeline has run yet\n"
    state = claimed(database, label="orders")
    done = replace(claimed(database, "replay"), state="finished", rows=1234567)
    tell(database, done)
    shown = queen("pipeline", "status", DATABASE_URL=database)
    assert [line.split()[:3] for line in shown.stdout.splitlines()[1:]] == [
        ["archive:orders", "running", "0"],
        ["replay", "finished", "1,234,567"],
    ]
    only = queen("pipeline", "status", "archive", "--json", DATABASE_URL=database)
    assert json.loads(only.stdout) == [{**state.to_json(), "alive": True}]
    assert queen("pipeline", "status", "lag", DATABASE_URL=database).stdout == "no run of lag is known\n"


def test_a_run_that_is_not_heard_of_any_more_is_shown_as_gone(queen: Queen, database: str) -> None:
    claimed(database)
    age = "update queen.system_state set updated_at = clock_timestamp() - interval '31 seconds'"
    call(database, lambda db: db.execute(age))
    assert queen("pipeline", "status", DATABASE_URL=database).stdout.splitlines()[1].split()[:2] == ["archive", "gone"]
    assert queen("pipeline", "stop", "archive", DATABASE_URL=database).stdout == "archive is not running\n"


def test_a_misspelt_name_cannot_be_stopped(queen: Queen, database: str) -> None:
    misspelt = queen("pipeline", "stop", "archvie", DATABASE_URL=database)
    assert (misspelt.returncode, misspelt.stdout) == (Exit.USAGE, "")
    assert "there is no pipeline 'archvie'; did you mean archive?" in misspelt.stderr
    for name in ("archive", "archive:orders"):
        never = queen("pipeline", "stop", name, DATABASE_URL=database)
        assert (never.returncode, never.stdout) == (Exit.OK, f"{name} is not running\n")


def test_a_place_that_another_run_has_is_an_exit_code_of_its_own(queen: Queen, database: str) -> None:
    state = claimed(database, label="orders")
    run = ["pipeline", "run", "archive", "--queue", "orders", "--lake", "/data/lake"]
    answer = queen(*run, DATABASE_URL=database)
    assert (answer.returncode, Exit.BUSY.value) == (Exit.BUSY, 75)
    (said,) = answer.stderr.splitlines()
    assert said.startswith(f"queen: pipeline archive:orders is running already, on {state.host} as process {state.pid}")


def test_a_run_that_does_not_stop_in_time_is_named(queen: Queen, database: str) -> None:
    claimed(database)
    late = queen("pipeline", "stop", "archive", "--timeout", "0", DATABASE_URL=database)
    assert late.returncode == Exit.PIPELINE
    assert "queen: archive has not stopped within 0 s" in late.stderr


def test_a_stop_waits_until_all_runs_of_that_name_have_stopped(start_queen: StartQueen, database: str) -> None:
    runs = [claimed(database, label=label) for label in ("orders", "payments")]
    other = claimed(database, "window")
    stopping = start_queen("pipeline", "stop", "archive", DATABASE_URL=database)
    eventually(lambda: [tell(database, run) for run in runs] == ["stopping", "stopping"])
    for run in runs:
        tell(database, replace(run, state="stopped"))
    said, complained = stopping.communicate(timeout=DEADLINE)
    assert (stopping.returncode, said) == (Exit.OK, "archive:orders has stopped\narchive:payments has stopped\n")
    assert complained == "asked archive:orders to stop\nasked archive:payments to stop\n"
    assert tell(database, other) == "running"


def test_what_is_for_clients_is_no_setting_of_a_server(queen: Queen, database: str) -> None:
    given = {"QUEEN_URL": "http://127.0.0.1:1", "QUEEN_TOKEN": "t", "QUEEN_SPARK_JAVA": "bundled"}
    shown = queen("pipeline", "status", DATABASE_URL=database, QUEEN_SPARK_LOG="info", **given)
    assert (shown.returncode, shown.stdout) == (Exit.OK, "no pipeline has run yet\n")
    other = queen("pipeline", "status", DATABASE_URL=database, QUEEN_PORTS="1")
    assert other.stderr.startswith("queen: warning: QUEEN_PORTS is not a setting of this version")


def held(database: str, *queues: str, lake: Path) -> None:
    async def work(db: asyncpg.Connection) -> None:
        for queue in queues:
            await db.execute("insert into queen.messages (queue, payload) values ($1, '{}')", queue)
            await holds.acquire(db, queue, holder_of(open_lake(lake)))

    call(database, work)


def holding(database: str) -> list[str]:
    return sorted(hold.queue for hold in call(database, holds.list_holds))


class TestRelease:
    def test_the_holds_of_an_archive_end(self, queen: Queen, database: str, tmp_path: Path) -> None:
        held(database, "orders-eu", "orders-us", "mails", lake=tmp_path)
        asked = ("pipeline", "release", "--queue", "orders-*", "--lake")
        other = queen(*asked, str(tmp_path / "other"), DATABASE_URL=database)
        assert (other.returncode, other.stdout) == (
            Exit.OK,
            f"no archive into {tmp_path / 'other'} holds orders-*\n",
        )
        assert holding(database) == ["mails", "orders-eu", "orders-us"]
        done = queen(*asked, str(tmp_path), DATABASE_URL=database)
        assert (done.returncode, done.stdout) == (Exit.OK, "orders-eu is released\norders-us is released\n")
        assert holding(database) == ["mails"]

    def test_not_while_the_archive_runs(self, queen: Queen, database: str, tmp_path: Path) -> None:
        held(database, "orders", "mails", lake=tmp_path)
        arguments = Arguments(queue="ord*,cats", lake=str(tmp_path))
        state = first_state(Job(find("archive"), arguments, database, label="ord"))
        assert call(database, lambda db: pipeline_states.claim(db, state))
        refused = queen("pipeline", "release", "--queue", "*", "--lake", str(tmp_path), DATABASE_URL=database)
        assert (refused.returncode, refused.stderr) == (
            Exit.USAGE,
            "queen: archive:ord is running, and would only take its holds again; stop it first with: "
            "queen pipeline stop archive:ord\n",
        )
        assert holding(database) == ["mails", "orders"]
        done = queen("pipeline", "release", "--queue", "mails", "--lake", str(tmp_path), DATABASE_URL=database)
        assert done.stdout == "mails is released\n"
        tell(database, replace(state, state="stopped"))
        done = queen("pipeline", "release", "--queue", "*", "--lake", str(tmp_path), DATABASE_URL=database)
        assert done.stdout == "orders is released\n"


@pytest.mark.parametrize(
    ("progress", "speed", "said"),
    [
        (Progress(12000, lag=51000, batch=7), 3400.0, "12,000 rows, 3,400/s, lag 51,000, 15 s left, batch 7"),
        (Progress(1, lag=7200), 1.0, "1 rows, 1/s, lag 7,200, 2:00:00 left"),
        (Progress(5, lag=0, batch=0), None, "5 rows, lag 0, batch 0"),
        (Progress(0), None, "0 rows"),
    ],
)
def test_progress_is_a_sentence(progress: Progress, speed: float | None, said: str) -> None:
    assert sentence(progress, speed) == said


def test_on_a_terminal_there_is_a_bar() -> None:
    drawn = io.StringIO()
    with Shown("archive:orders", Console(force_terminal=True, width=120, file=drawn)) as shown:
        shown.progress(Progress(300, rows_per_second=100.0, lag=700, batch=2))
        shown._bars.refresh()
        text = drawn.getvalue()
    assert "archive:orders" in text
    assert "300 rows, 100/s, lag 700, 7 s left, batch 2" in text


def test_elsewhere_there_is_a_line_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    with Shown("archive") as shown:
        for rows in range(100):
            shown.progress(Progress(rows))
    assert capfd.readouterr().err == "archive: 0 rows\n"
