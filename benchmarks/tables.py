"""What the tables of the benchmarks share: a line and its verdict, how they look, and their place in RESULTS.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console
from rich.table import Table

_WIDTH = 140
HEAD = ("work", "measured", "target", "ratio", "", "beside")
"""The columns of a table of rows."""
_Bench = TypeVar("_Bench")


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `met` is None without a target."""

    name: str
    cells: tuple[str, ...]
    met: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """`value` is held against the target; `beside` says what it comes from."""

    value: float
    beside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which rows, and how much of the work of each."""

    only: Sequence[str] = ()
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    lines: list[Line]
    failures: list[str]
    machine: str


def verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "MISSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[_Bench]):
    """One figure and its target. `shown` is how a value reads, and `figure` what it is, where that is not clear."""

    name: str
    work: str
    measure: Callable[[_Bench], Measured]
    target: float
    shown: str
    figure: str = ""
    at_least: bool = False

    def line(self, measured: Measured) -> Line:
        met = measured.value >= self.target if self.at_least else measured.value <= self.target
        figure = f"{self.figure} " if self.figure else ""
        cells = (
            self.work,
            figure + self.shown.format(measured.value),
            f"{figure}{'≥' if self.at_least else '≤'} {self.shown.format(self.target)}",
            f"{measured.value / self.target:.2f}",
            verdict(met),
            measured.beside,
        )
        return Line(self.name, cells, met)


def machine(version: str) -> str:
    return (
        f"{os.cpu_count()} cores shared by server, PostgreSQL and load generator, {platform.machine()},"
        f" Python {platform.python_version()}, PostgreSQL {version} with fsync on, {datetime.now(UTC):%Y-%m-%d}."
    )


def check_names(wanted: Iterable[str], names: Sequence[str]) -> None:
    """Raises SystemExit for a row that there is not."""
    unknown = set(wanted) - set(names)
    if unknown:
        raise SystemExit(f"--only: {', '.join(sorted(unknown))}: the rows are {', '.join(names)}.")


def show(console: Console, head: Sequence[str], lines: Iterable[Line], beneath: Iterable[str]) -> None:
    table = Table("row", *head[1:])
    for one in lines:
        table.add_row(one.name, *one.cells[1:], style="red" if one.met is False else None)
    Console(width=max(console.width, _WIDTH)).print(table)
    for text in beneath:
        console.print(text, markup=False, soft_wrap=True)


def marks(kind: str) -> tuple[str, str]:
    """Between these a kind of benchmark has its table."""
    return f"<!-- {kind}: begin -->", f"<!-- {kind}: end -->"


def record(
    path: Path, kind: str, head: str, table: Sequence[Sequence[str]], notes: Sequence[str], *, key_cells: int
) -> None:
    """Put the lines into the table: measured again, a line takes the place of the one before. `table` begins with the
    names of its columns; a line is known by its first `key_cells` cells, a note by what is before its colon."""
    begin, end = marks(kind)
    before, rest = path.read_text("utf-8").split(begin)
    inside, after = rest.split(end)
    kept = [one for one in inside.splitlines() if one.startswith(("| ", "- "))][1:]
    columns, *lines = [_markdown(cells) for cells in table]
    merged = _merged([one for one in kept if one.startswith("| ")], lines, key_cells)
    beneath = _merged([one for one in kept if one.startswith("- ")], [f"- {text}" for text in notes], 0)
    text = [begin, head, "", columns, "|" + "---|" * len(table[0]), *merged]
    path.write_text(before + "\n".join([*text, *(["", *beneath] if beneath else []), end]) + after, "utf-8")


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _merged(old: list[str], fresh: list[str], key_cells: int) -> list[str]:
    """`old` with the lines of `fresh` in the places of those with the same beginning, the others behind."""

    def key(text: str) -> str:
        return "|".join(text.split("|")[: key_cells + 1]) if key_cells else text.split(":")[0]

    found = {key(text): text for text in [*old, *fresh]}
    return list(found.values())
