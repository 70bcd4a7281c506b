"""Measures the chosen rows and shows or records them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..load.connection import BadAnswer
from ..load.process import run
from ..load.window import Moment
from .lab import Cpu, Lab, open_lab
from .lines import HEAD, Line, line
from .rows import GENERATOR, ROWS, Row, against_nothing

WIDTH = 140
BEGIN, END = "<!-- http: begin -->", "<!-- http: end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    only: Sequence[str] = ()
    seconds: float = 4.0
    workers: Sequence[int] = (1, 2)
    long: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    lines: list[Line]
    failures: list[str]
    machine: str
    generator: list[str]


def chosen(options: Options) -> list[Row]:
    unknown = set(options.only) - {row.name for row in ROWS}
    if unknown:
        raise SystemExit(f"--only: {', '.join(sorted(unknown))}: the rows are {', '.join(row.name for row in ROWS)}.")
    if options.only:
        return [row for row in ROWS if row.name in options.only]
    return [row for row in ROWS if options.long or not row.only_when_asked]


def measure(options: Options, console: Console) -> Report:
    rows = chosen(options)
    lines: list[Line] = []
    failures: list[str] = []
    with console.status("measuring the load generator") as status:
        generator = [_alone(work, job, status.update) for work, job in GENERATOR]
        status.update("starting PostgreSQL")
        with open_lab() as (lab, version):
            for row in rows:
                for workers in [number for number in row.workers if number in options.workers]:
                    text = f"{row.name}, {workers} worker{'s' if workers > 1 else ''}"
                    status.update(text)
                    try:
                        lines.append(_measure(lab, row, workers, options.seconds, _prefixed(status.update, text)))
                    except BadAnswer as error:
                        failures.append(f"{text}: {error}")
                        console.print(failures[-1], style="red", markup=False)
                    else:
                        console.print(_short(text, lines[-1]), soft_wrap=True, highlight=False)
    return Report(lines, failures, machine(version), generator)


def _measure(lab: Lab, row: Row, workers: int, seconds: float, progress: Callable[[str], None]) -> Line:
    readings: dict[Moment, Cpu] = {}
    with lab.server(workers) as server:
        figures = run(row.job(server, seconds), lambda moment: readings.update({moment: lab.cpu(server)}), progress)
    return line(row, workers, figures, readings["end"].since(readings["begin"]))


def _alone(work: str, job: object, progress: Callable[[str], None]) -> str:
    figures = run(against_nothing(job), lambda moment: None, progress)  # type: ignore[arg-type]
    return (
        f"Generator and a server that does nothing on one core, {work}: {figures.rate:,.0f} messages/s,"
        f" {1e6 * figures.generator_cpu / figures.messages:.1f} µs per message for both."
    )


def _prefixed(update: Callable[[str], None], text: str) -> Callable[[str], None]:
    return lambda progress: update(f"{text}: {progress}")


def _short(text: str, one: Line) -> str:
    shown = [f"{name} {cell}" for name, cell in zip(HEAD[2:], one.cells[2:], strict=True) if cell]
    return f"{text}: {', '.join(shown)}. {one.note}"


def machine(version: str) -> str:
    return (
        f"{os.cpu_count()} cores shared by server, PostgreSQL and load generator, {platform.machine()},"
        f" Python {platform.python_version()}, PostgreSQL {version} with fsync on, {datetime.now(UTC):%Y-%m-%d}."
    )


def show(console: Console, report: Report) -> None:
    table = Table("row", *HEAD[1:])
    for one in report.lines:
        table.add_row(one.name, *one.cells[1:], style="red" if one.met is False else None)
    Console(width=max(console.width, WIDTH)).print(table)
    for text in [*report.generator, *(one.note for one in report.lines if one.note), report.machine, *report.failures]:
        console.print(text, markup=False, soft_wrap=True)


def record(path: Path, report: Report, command: str) -> None:
    """Put the lines into the table: measured again, a line takes the place of the one before."""
    before, rest = path.read_text("utf-8").split(BEGIN)
    inside, after = rest.split(END)
    kept = [one for one in inside.splitlines() if one.startswith(("| ", "- "))][1:]
    table = _merged([one for one in kept if one.startswith("| ")], [_markdown(one.cells) for one in report.lines], 2)
    notes = _merged(
        [one for one in kept if one.startswith("- ")],
        [f"- {text}" for text in [*report.generator, *(one.note for one in report.lines if one.note)]],
        0,
    )
    head = [f"{report.machine} `{command}`", "", _markdown(HEAD), "|" + "---|" * len(HEAD)]
    text = "\n".join([BEGIN, *head, *table, "", *notes, END])
    path.write_text(before + text + after, "utf-8")


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _merged(old: list[str], fresh: list[str], key_cells: int) -> list[str]:
    """`old` with the lines of `fresh` in the places of those with the same beginning, the others behind."""

    def key(text: str) -> str:
        return "|".join(text.split("|")[: key_cells + 1]) if key_cells else text.split(":")[0]

    found = {key(text): text for text in [*old, *fresh]}
    return list(found.values())
