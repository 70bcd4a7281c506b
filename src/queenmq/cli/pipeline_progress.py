"""How far a pipeline is, on stderr: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars

from queenmq.cli.console import err, report
from queenmq.spark.pipelines.base import Progress

_LINE_SECONDS: Final = 5.0
_SMOOTHING: Final = 0.3


class Shown(AbstractContextManager["Shown"]):
    """Shows what a runner tells. Rows done and rows still to read make the bar; their speed makes the time left."""

    def __init__(self, title: str, console: Console = err) -> None:
        self._title = title
        self._console = console
        self._speed: float | None = None
        self._last_line = -_LINE_SECONDS
        self._last: Progress | None = None
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task(title, total=None, said="starting Spark")

    def __enter__(self) -> Shown:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def progress(self, progress: Progress) -> None:
        self._speed = _smoothed(self._speed, progress.rows_per_second)
        total = None if progress.lag is None else progress.rows + progress.lag
        said = sentence(progress, self._speed)
        self._bars.update(self._task, completed=progress.rows, total=total, said=said)
        due = time.monotonic() - self._last_line >= _LINE_SECONDS
        if not self._console.is_terminal and due and progress != self._last:
            self._last_line = time.monotonic()
            report(f"{self._title}: {said}")
        self._last = progress

    def say(self, sentence: str) -> None:
        self._bars.update(self._task, said="")
        report(sentence)


def sentence(progress: Progress, speed: float | None) -> str:
    """For example: 12,000 rows, 3,400/s, lag 51,000, 15 s left, batch 7."""
    parts = [f"{progress.rows:,} rows"]
    if speed:
        parts.append(f"{speed:,.0f}/s")
    if progress.lag is not None:
        parts.append(f"lag {progress.lag:,}")
    if speed and progress.lag:
        parts.append(f"{_duration(progress.lag / speed)} left")
    if progress.batch is not None:
        parts.append(f"batch {progress.batch}")
    return ", ".join(parts)


def _smoothed(before: float | None, speed: float | None) -> float | None:
    """An idle moment says nothing about how fast the next rows will be."""
    if not speed:
        return before
    return speed if before is None else before + _SMOOTHING * (speed - before)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
