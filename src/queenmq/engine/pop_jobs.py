"""One pop on its way: what was asked, and how far it has come."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Literal

from ..domain.ids import new_id, partition_tag
from ..storage import pop as storage
from ..storage.pop import QUEUE_MODE, PopRequest, PopResult
from .pop_states import Progress
from .requests import PopAsk
from .waiters import Key


class PopJob:
    __slots__ = (
        "ask",
        "asked",
        "deadline",
        "future",
        "gone",
        "groups",
        "key",
        "lease_id",
        "mode",
        "parked",
        "partition_id",
        "progress",
        "start",
        "ticket",
        "timer",
    )
    size = 1
    weight = 0

    def __init__(self, ask: PopAsk, future: asyncio.Future[PopResult], progress: Progress) -> None:
        self.ask = ask
        self.future = future
        self.progress = progress
        self.key = Key(ask.group, ask.queue, ask.partition, ask.namespace, ask.task)
        self.lease_id = new_id()
        self.asked = False  # it was asked for under this lease, and the outcome is not known
        self.groups: dict[int, str] = {}  # ids of the group, each with the queue it belongs to
        self.partition_id: int | None = None
        self.deadline = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.parked = False
        self.gone = False  # it was parked, and has left the line
        self.ticket = 0
        self.mode: Literal["all", "new", "timestamp"] | None
        self.start: datetime | None
        self.mode, self.start = storage.subscription(ask.group, ask.subscription_mode, ask.subscription_from)
        if ask.partition is not None and ask.group != QUEUE_MODE:
            self.mode = None  # a pop from one partition decides for that partition only

    def lanes(self) -> int:
        return 0

    def request(self) -> PopRequest:
        ask = self.ask
        tag = None if ask.partition is None else partition_tag(ask.queue or "", ask.partition)
        return PopRequest(
            list(self.groups),
            self.partition_id,
            ask.batch,
            ask.partitions,
            ask.auto_ack,
            self.start,
            lease_id=self.lease_id,
            tag=tag,
        )
