"""What the engine counts, per operation and per state of a pop, for `/internal/api/engine/stats`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class OperationStats:
    """One operation of one worker. Seconds are the sum over its flushes."""

    requests: int = 0
    items: int = 0
    flushes: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    retries: int = 0
    isolated: int = 0
    failed: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    def shown(self) -> dict[str, Any]:
        shown = asdict(self)
        for name in ("seconds", "longest_seconds"):
            shown[name] = round(shown[name], 6)
        shown["requests_per_flush"] = round(self.requests / self.flushes, 2) if self.flushes else 0
        return shown
