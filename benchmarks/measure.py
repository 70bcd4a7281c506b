"""CPU time of one PostgreSQL backend, and rounds that interleave the cases so that a noisy moment hits all of them."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

Work = Callable[[], Awaitable[int]]


class BackendClock:
    """Microseconds that a connection's backend has spent on a CPU."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._path = Path(f"/proc/{connection.get_server_pid()}/schedstat")
        if not self._path.exists():
            raise SystemExit("The benchmarks read /proc/<backend>/schedstat: they need Linux and a local PostgreSQL.")

    def now(self) -> float:
        return int(self._path.read_text().split()[0]) / 1000


@dataclass(slots=True)
class Case:
    """One piece of work of the backend with that clock. `before` prepares a round unmeasured; `work` returns how many
    units it did."""

    name: str
    clock: BackendClock
    work: Work
    before: Callable[[], Awaitable[None]] | None = None
    costs: list[float] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """Median microseconds per unit."""
        return statistics.median(self.costs)


async def run(cases: Sequence[Case], rounds: int, progress: Callable[[str], None]) -> None:
    """Run every case once per round. The first round warms plans and caches and is not counted."""
    for number in range(rounds + 1):
        progress(f"round {number} of {rounds}")
        for case in cases:
            if case.before is not None:
                await case.before()
            start = case.clock.now()
            units = await case.work()
            if number:
                case.costs.append((case.clock.now() - start) / units)
