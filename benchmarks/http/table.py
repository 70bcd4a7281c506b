"""Measures the chosen rows and shows or records them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from .. import tables
from ..lab import Cpu, Lab, open_lab
from ..load.connection import BadAnswer
from ..load.process import run
from ..load.window import Moment
from ..tables import Line
from .lines import HEAD, line
from .rows import GENERATOR, ROWS, Row, against_nothing


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
    tables.check_names(options.only, [row.name for row in ROWS])
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
    return Report(lines, failures, tables.machine(version), generator)


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


def show(console: Console, report: Report) -> None:
    notes = [one.note for one in report.lines if one.note]
    tables.show(console, HEAD, report.lines, [*report.generator, *notes, report.machine, *report.failures])


def record(path: Path, report: Report, command: str) -> None:
    notes = [*report.generator, *(one.note for one in report.lines if one.note)]
    cells = [one.cells for one in report.lines]
    tables.record(path, "http", f"{report.machine} `{command}`", (HEAD, *cells), notes, key_cells=2)
