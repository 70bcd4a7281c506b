"""The measured part of a run: where it begins and ends, and what was done in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from .clients import Run

Moment = Literal["begin", "end"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave. Latencies are in milliseconds, `generator_cpu` in seconds."""

    messages: int
    seconds: float
    p50: float
    p99: float
    generator_cpu: float
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def percentile(values: list[float], part: float) -> float:
    """0.5 is the median. Of nothing it is not a number."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


class Window:
    """`said` is told when the measured part begins and ends, so that others can read their clocks at the same time."""

    def __init__(self, said: Callable[[Moment], None], progress: Callable[[str], None]) -> None:
        self._said = said
        self.progress = progress
        self._run: Run | None = None
        self._count: Callable[[], int] = int
        self._start = (0.0, 0.0, 0)
        self._end = (0.0, 0.0, 0)

    @property
    def ended(self) -> bool:
        return self._end[0] > 0

    @property
    def begun(self) -> bool:
        return self._start[0] > 0

    def begin(self, run: Run, count: Callable[[], int]) -> None:
        """`count` says how many messages are done so far."""
        self._run, self._count = run, count
        self._said("begin")
        run.measuring = True
        self._start = self._now()

    def end(self) -> None:
        self._end = self._now()
        if self._run is not None:
            self._run.measuring = False
        self._said("end")

    def _now(self) -> tuple[float, float, int]:
        return time.perf_counter(), time.process_time(), self._count()

    def figures(self, extra: dict[str, float] | None = None) -> Figures:
        if self._run is None or not self.ended:
            raise RuntimeError("the run was never measured")
        seconds, cpu, messages = (after - before for after, before in zip(self._end, self._start, strict=True))
        latencies = [1000 * value for value in self._run.latencies]
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        return Figures(int(messages), seconds, p50, p99, cpu, extra or {})
