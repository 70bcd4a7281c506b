"""Measures the chosen rows and shows or records them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .. import tables
from ..lab import open_lab
from ..load.connection import BadAnswer
from ..tables import HEAD, Line, Options, Report
from .measures import Bench, Unavailable
from .rows import ROWS


def measure(options: Options, console: Console) -> Report:
    tables.check_names(options.only, [row.name for row in ROWS])
    lines: list[Line] = []
    failures: list[str] = []
    with open_lab(tcp=True) as (lab, version), console.status("") as status:
        bench = Bench(lab, status.update, options.scale)
        for row in ROWS:
            if options.only and row.name not in options.only:
                continue
            try:
                lines.append(row.line(row.measure(bench)))
            except (BadAnswer, Unavailable) as error:
                failures.append(f"{row.name}: {error}")
                console.print(failures[-1], style="red", markup=False)
            else:
                console.print(f"{row.name}: {', '.join(lines[-1].cells[1:])}", soft_wrap=True, highlight=False)
        if "spark" in vars(bench):
            bench.spark.stop()
    return Report(lines, failures, tables.machine(version))


def show(console: Console, report: Report) -> None:
    tables.show(console, HEAD, report.lines, [report.machine, *report.failures])


def record(path: Path, report: Report, command: str) -> None:
    cells = [one.cells for one in report.lines]
    tables.record(path, "spark", f"{report.machine} `{command}`", (HEAD, *cells), [], key_cells=1)
