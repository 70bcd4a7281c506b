"""A stand-in for a StreamingQuery: batches that a test commits, one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class FakeQuery:
    """Each poll plays the next step; a step may commit a batch, or raise what ends the query."""

    def __init__(self, *steps: Callable[[FakeQuery], None]) -> None:
        self.steps = list(steps)
        self.recentProgress: list[Any] = []
        self.isActive = True
        self.stopped_after: int | None = None
        self.status = {"isTriggerActive": True}

    def awaitTermination(self, timeout: Any = None) -> bool:
        if self.isActive and self.steps:
            self.steps.pop(0)(self)
        return not self.isActive

    def stop(self) -> None:
        self.isActive = False
        if self.stopped_after is None:
            self.stopped_after = len(self.recentProgress)


def batch(
    number: int, rows: int, position: int, *, latest: int | None = None, delivered: int | None = None
) -> Callable[[FakeQuery], None]:
    """A batch of so many messages, which the source may deliver as fewer rows."""

    def commit(query: FakeQuery) -> None:
        query.recentProgress.append(
            {
                "batchId": number,
                "timestamp": f"2025-01-31T12:00:{len(query.recentProgress):02}.000Z",
                "numInputRows": delivered or rows,
                "processedRowsPerSecond": float(delivered or rows),
                "sources": [
                    {
                        "startOffset": json.dumps({"epoch": number - 1, "position": position - rows})
                        if number
                        else None,
                        "endOffset": json.dumps({"epoch": number, "position": position}),
                        "latestOffset": json.dumps({"epoch": number + 1, "position": latest or position}),
                    }
                ],
            }
        )

    return commit


def idle(query: FakeQuery) -> None:
    """What Spark reports while nothing comes: the same place, under the number of the batch that will be next."""
    last = query.recentProgress[-1]
    number = last["batchId"] + (last["numInputRows"] > 0)
    again = {**last, "batchId": number, "numInputRows": 0, "processedRowsPerSecond": 0.0}
    again["timestamp"] = f"2025-01-31T12:00:{len(query.recentProgress):02}.500Z"
    query.recentProgress.append(again)


def end(query: FakeQuery) -> None:
    query.isActive = False


def fail(error: Exception) -> Callable[[FakeQuery], None]:
    def raised(query: FakeQuery) -> None:
        query.isActive = False
        raise error

    return raised
