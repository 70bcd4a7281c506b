"""From the figures of a run to a line of the table: what was measured, what was allowed, and the ratio of the two."""

from __future__ import annotations

from dataclasses import dataclass

from ..lab import Cpu
from ..load.window import Figures
from ..tables import Line, verdict
from .rows import Row

ABOVE_COMMIT_MS = 0.5
HEALTH_MS = 100.0
LAST_TO_FIRST = 0.9
_NOT_PER_MESSAGE = {"idle", "pops500", "parked"}
"""Rows whose processes do more than what is counted: bare commits, acks, 10,000 parked polls."""
HEAD = (
    "work",
    "workers",
    "msgs/s",
    "p50 ms",
    "p99 ms",
    "server µs",
    "PostgreSQL µs",
    "total µs",
    "target",
    "ratio",
    "",
    "generator",
)


@dataclass(frozen=True, slots=True)
class _Goal:
    text: str
    measured: float
    target: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.target if self.at_least else self.measured <= self.target


def line(row: Row, workers: int, figures: Figures, cpu: Cpu) -> Line:
    server, postgres = (1e6 * seconds / max(1, figures.messages) for seconds in (cpu.server, cpu.postgres))
    goal = _goal(row, workers, figures, server + postgres)
    per_message = row.name not in _NOT_PER_MESSAGE
    cells = (
        row.work,
        str(workers),
        f"{figures.rate:,.0f}" if per_message else "",
        f"{figures.p50:.2f}",
        f"{figures.p99:.2f}",
        *((f"{server:.1f}", f"{postgres:.1f}", f"{server + postgres:.1f}") if per_message else ("", "", "")),
        "" if goal is None else goal.text,
        "" if goal is None else f"{goal.measured / goal.target:.2f}",
        verdict(None if goal is None else goal.met),
        f"{figures.generator_cpu / figures.seconds:.0%}",
    )
    return Line(row.name, cells, None if goal is None else goal.met, _note(row, workers, figures))


def _goal(row: Row, workers: int, figures: Figures, total: float) -> _Goal | None:
    extra = figures.extra
    if workers in row.targets:
        return _Goal(f"≤ {row.targets[workers]:g} µs", total, row.targets[workers])
    if row.name == "idle":
        return _Goal(f"p50 ≤ commit + {ABOVE_COMMIT_MS} ms", figures.p50, extra["commit"] + ABOVE_COMMIT_MS)
    if row.name == "parked":
        return _Goal(f"p99 ≤ {HEALTH_MS:g} ms", figures.p99, HEALTH_MS)
    if row.name == "long":
        return _Goal(f"last / first minute ≥ {LAST_TO_FIRST}", last_to_first(extra), LAST_TO_FIRST, at_least=True)
    return None


def last_to_first(extra: dict[str, float]) -> float:
    rates = [rate for name, rate in extra.items() if name.startswith("rate ")]
    return rates[-1] / rates[0]


def _note(row: Row, workers: int, figures: Figures) -> str:
    extra = figures.extra
    if row.name == "idle":
        return f"Idle push: p50 {figures.p50:.2f} ms; a bare commit between two pushes: p50 {extra['commit']:.2f} ms."
    if row.name == "pops500":
        return (
            f"500 pops: {extra['sequential ms']:.0f} ms one after another,"
            f" {extra['concurrent ms']:.0f} ms at one moment: {extra['ratio']:.1f} times as fast."
            " Latencies are those of the pops at one moment."
        )
    if row.name == "parked":
        return (
            f"Parked polls: {extra['KB per connection']:.1f} KB of memory each;"
            f" a push wakes its one poll in {extra['wake p50 ms']:.1f} ms (p50),"
            f" {extra['wake p99 ms']:.1f} ms (p99)."
        )
    if row.name == "long":
        rates = ", ".join(f"{rate:,.0f}" for name, rate in extra.items() if name.startswith("rate "))
        return f"10 minutes, messages per second in each minute: {rates}; last / first {last_to_first(extra):.2f}."
    if "messages per pop" in extra:
        return f"Row {row.name} with {workers} worker(s): {extra['messages per pop']:.1f} messages per pop."
    return ""
