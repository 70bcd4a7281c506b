"""Measures the chosen rows and shows or records them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .. import tables
from ..lab import Lab, open_lab
from ..load.connection import BadAnswer
from ..tables import HEAD, Line, Options, Report, Row
from .measures import Bench
from .rows import ROWS


def chosen(options: Options) -> list[Row[Bench]]:
    tables.check_names(options.only, [row.name for row in ROWS])
    return [row for row in ROWS if not options.only or row.name in options.only]


def measure(options: Options, console: Console) -> Report:
    rows = chosen(options)
    lines: list[Line] = []
    failures: list[str] = []
    with open_lab(count_statements=True) as (lab, version):
        for row in rows:
            try:
                lines.append(_measure(lab, row, options.scale, console))
            except BadAnswer as error:
                failures.append(f"{row.name}: {error}")
                console.print(failures[-1], style="red", markup=False)
            else:
                console.print(_short(lines[-1]), soft_wrap=True, highlight=False)
    return Report(lines, failures, tables.machine(version))


def _measure(lab: Lab, row: Row[Bench], scale: float, console: Console) -> Line:
    with console.status(row.name) as status:
        bench = Bench(lab, lambda text: status.update(f"{row.name}: {text}"), scale)
        return row.line(row.measure(bench))


def _short(one: Line) -> str:
    _, measured, target, _, verdict, beside = one.cells
    return f"{one.name}: {measured} ({target}: {verdict}); {beside}"


def show(console: Console, report: Report) -> None:
    tables.show(console, HEAD, report.lines, [report.machine, *report.failures])


def record(path: Path, report: Report, command: str) -> None:
    cells = [one.cells for one in report.lines]
    tables.record(path, "coordination", f"{report.machine} `{command}`", (HEAD, *cells), [], key_cells=1)
