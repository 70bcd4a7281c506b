"""What the engine is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..storage.pop import QUEUE_MODE
from ..wire.requests import AckEntry, PushEntry


@dataclass(slots=True)
class PopAsk:
    """One pop: from a queue, from one of its partitions, or from every queue of a namespace and task."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    wait: float = 0.0
    """Seconds to wait for messages; 0 answers at once."""
    auto_ack: bool = False
    subscription_mode: Literal["all", "new"] = "all"
    subscription_from: datetime | Literal["now"] | None = None
    confirmed: bool = False
    """With auto_ack: the caller tells the broker when the answer was delivered, or that it was not. Otherwise it counts
    as delivered with its result."""


@dataclass(slots=True)
class TransactionAsk:
    """Operations in the client's order: lists of messages, and acks."""

    operations: Sequence[list[PushEntry] | AckEntry]
    required_leases: Sequence[str] = ()
    producer_sub: str | None = None
