"""What the benchmarks say of their figures: the target that counts, the verdict, and the record of earlier runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import tables
from benchmarks.coordination import rows as coordination
from benchmarks.coordination import table as coordination_table
from benchmarks.http.lines import HEAD, line
from benchmarks.http.rows import ROWS
from benchmarks.http.table import Options, Report, chosen, record
from benchmarks.lab import Cpu
from benchmarks.load.window import Figures
from benchmarks.processes import cpu_seconds, resident_bytes, tree
from benchmarks.tables import Line, Measured

BY_NAME = {row.name: row for row in ROWS}
BEGIN, END = tables.marks("http")
CPU = Cpu(server=4.0, postgres=6.0)


def verdict(name: str, figures: Figures, workers: int = 1) -> tuple[bool | None, str]:
    made = line(BY_NAME[name], workers, figures, CPU)
    return made.met, made.cells[HEAD.index("ratio")]


@pytest.mark.parametrize(
    ("name", "workers", "messages", "expected"),
    [
        ("push100", 1, 1_000_000, (True, "0.83")),  # 10 µs of 12
        ("push100", 1, 500_000, (False, "1.67")),
        ("push100", 2, 714_300, (True, "1.00")),
        ("drain", 1, 1_250_000, (True, "1.00")),
        ("push100-spread", 1, 10, (None, "")),
    ],
)
def test_cpu_per_message_is_held_against_the_target(
    name: str, workers: int, messages: int, expected: tuple[bool | None, str]
) -> None:
    assert verdict(name, Figures(messages, 5.0, 1.0, 2.0, 0.5), workers) == expected


def test_other_rows_have_their_own_measure() -> None:
    def figures(p50: float, p99: float, **extra: float) -> Figures:
        return Figures(100, 5.0, p50, p99, 0.5, {name.replace("_", " "): value for name, value in extra.items()})

    assert verdict("idle", figures(0.6, 9, commit=0.2))[0] is True
    assert verdict("idle", figures(0.8, 9, commit=0.2))[0] is False
    health = {"KB per connection": 8.0, "wake p50 ms": 1.0, "wake p99 ms": 2.0}
    assert verdict("parked", Figures(9, 5.0, 1.0, 99.0, 0.1, health))[0] is True
    assert verdict("parked", Figures(9, 5.0, 1.0, 101.0, 0.1, health))[0] is False
    assert verdict("long", figures(1, 2, rate_1=100.0, rate_2=10.0, rate_3=91.0)) == (True, "1.01")
    assert verdict("long", figures(1, 2, rate_1=100.0, rate_2=99.0, rate_3=89.0))[0] is False


def test_the_long_run_comes_only_when_asked() -> None:
    assert "long" not in [row.name for row in chosen(Options())]
    assert "long" in [row.name for row in chosen(Options(long=True))]
    assert [row.name for row in chosen(Options(only=["drain"]))] == ["drain"]
    with pytest.raises(SystemExit, match="nonsense: the rows are push100"):
        chosen(Options(only=["nonsense"]))


def row(work: str, workers: int, rate: str) -> Line:
    return Line(work, (work, str(workers), rate, *[""] * (len(HEAD) - 3)))


def test_a_row_measured_again_takes_its_place_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    record(path, Report([row("a", 1, "10"), row("a", 2, "20"), row("b", 1, "30")], [], "2 cores.", ["Alone: 1"]), "all")
    record(path, Report([row("a", 2, "21"), row("c", 1, "40")], [], "4 cores.", ["Alone: 2"]), "some")
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "4 cores. `some`" in text
    cells = [[cell.strip() for cell in one.split("|")[1:4]] for one in text.splitlines() if one.startswith("| ")]
    assert cells == [
        ["work", "workers", "msgs/s"],
        ["a", "1", "10"],
        ["a", "2", "21"],
        ["b", "1", "30"],
        ["c", "1", "40"],
    ]
    assert text.count("- Alone") == 1
    assert "- Alone: 2" in text


def test_the_record_of_the_project_can_be_written(tmp_path: Path) -> None:
    copy = tmp_path / "RESULTS.md"
    copy.write_text(command.RESULTS.read_text("utf-8"), "utf-8")
    record(copy, Report([row("a", 1, "10")], [], "2 cores.", []), "all")
    seal = coordinated("seal", 7.0)
    coordination_table.record(copy, tables.Report([seal], [], "3 cores."), "some")
    text = copy.read_text("utf-8")
    assert "| a | 1 | 10 |" in text
    assert "3 cores. `some`" in text
    assert text.index("<!-- coordination: begin -->") < text.index("| a packet sealed and opened | 7.0 µs |")


def coordinated(name: str, value: float) -> Line:
    (found,) = coordination_table.chosen(tables.Options(only=[name]))
    return found.line(Measured(value, "beside"))


@pytest.mark.parametrize(
    ("name", "value", "cells", "met"),
    [
        ("wake-server", 50.0, ("p99 50.0 ms", "p99 ≤ 50.0 ms", "1.00", "met"), True),
        ("wake-server", 50.1, ("p99 50.1 ms", "p99 ≤ 50.0 ms", "1.00", "MISSED"), False),
        ("push", 1.02, ("1.02", "≤ 1.05", "0.97", "met"), True),
        ("push-saved", 0.5, ("50%", "≥ 50%", "1.00", "met"), True),
        ("contended-saved", 0.29, ("29%", "≥ 30%", "0.97", "MISSED"), False),
        ("packets", 5_000 / 45_000, ("0.111", "≤ 0.111", "1.00", "met"), True),
    ],
)
def test_a_figure_of_coordination_is_held_against_its_target(
    name: str, value: float, cells: tuple[str, ...], met: bool
) -> None:
    made = coordinated(name, value)
    assert made.cells[1:-1] == cells
    assert made.met is met
    assert len(made.cells) == len(tables.HEAD)


def test_rows_are_chosen_within_one_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert coordination_table.chosen(tables.Options()) == coordination.ROWS
    with pytest.raises(SystemExit, match="flow: the rows are wake,"):
        coordination_table.chosen(tables.Options(only=["flow"]))
    assert command.parse(["coordination", "--only", "wake, seal"]).only == ["wake", "seal"]
    with pytest.raises(SystemExit):
        command.parse(["--only", "wake"])
    assert "--only goes with http, coordination or spark" in capsys.readouterr().err


def test_cpu_of_children_counts_also_when_they_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print('done', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        before = cpu_seconds(process.pid)
        assert process.stdout.readline() == b"done\n"
        assert cpu_seconds(process.pid) >= before + 0.2
        assert process.pid in tree(os.getpid())
        assert resident_bytes(process.pid) > 1024 * 1024
        process.stdin.write(b"\n")
        process.stdin.close()
