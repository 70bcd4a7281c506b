"""One pop on its way: what was asked, and how far it has come."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Literal

from ..domain.ids import group_tag, new_auto_lease, new_id, partition_tag
from ..storage import pop as storage
from ..storage.pop import NOW, QUEUE_MODE, Awaited, PopRequest, PopResult
from .deliveries import AUTO_LEASE
from .pop_states import Progress
from .requests import PopAsk
from .waiters import Key


class PopJob:
    __slots__ = (
        "arrived",
        "ask",
        "asked",
        "deadline",
        "future",
        "gone",
        "groups",
        "held",
        "key",
        "lease_id",
        "looks",
        "mode",
        "noted",
        "parked",
        "partition_id",
        "progress",
        "since",
        "start",
        "ticket",
        "timer",
    )
    size = 1
    weight = 0

    def __init__(self, ask: PopAsk, future: asyncio.Future[PopResult], progress: Progress, arrived: float) -> None:
        self.ask = ask
        self.future = future
        self.progress = progress
        self.key = Key(ask.group, ask.queue, ask.partition, ask.namespace, ask.task)
        self.arrived = arrived
        self.since: datetime | None = None  # the same by the database's clock, for a group that starts with what is new
        self.noted = False  # the database knows when it arrived, for later pops of its group
        self.new_lease()
        self.asked = False  # it was asked for under this lease, and the outcome is not known
        self.groups: dict[int, str] = {}  # ids of the group, each with the queue it belongs to
        self.partition_id: int | None = None
        self.deadline = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.parked = False
        self.gone = False  # it was parked, and has left the line
        self.ticket = 0
        self.held = False  # it found nothing, perhaps only because others are just being acknowledged
        self.looks = 0  # how often it has looked again because of that
        self.mode: Literal["all", "new", "timestamp"] | None
        self.start: datetime | None
        self.mode, self.start = storage.subscription(ask.group, ask.subscription_mode, ask.subscription_from)
        if ask.partition is not None and ask.group != QUEUE_MODE:
            self.mode = None  # a pop from one partition decides for that partition only

    def lanes(self) -> int:
        return 0

    @property
    def undated(self) -> bool:
        """Its group starts with what is new since it arrived, and when that was by the database's clock is unknown."""
        return self.start is NOW and self.since is None

    @property
    def early(self) -> bool:
        """Its group starts with what is new, not all that it names is there, and that is not noted yet."""
        return self.start is NOW and not self.noted and (not self.groups or self.ask.queue is None)

    def awaited(self, now: float) -> Awaited:
        ask = self.ask
        age = max(0.0, now - self.arrived)
        return Awaited(ask.queue, ask.partition, ask.namespace, ask.task, ask.group, self.since, age)

    def date(self, clock: datetime, asked: float) -> None:
        """The database's clock said this after it was asked. What was answered before the pop arrived is never new."""
        self.since = clock - timedelta(seconds=max(0.0, asked - self.arrived))

    def new_lease(self) -> None:
        self.lease_id = new_auto_lease() if self.ask.auto_ack else new_id()

    def request(self, now: float) -> PopRequest:
        ask = self.ask
        tag = None if ask.partition is None else partition_tag(ask.queue or "", ask.partition)
        return PopRequest(
            list(self.groups),
            self.partition_id,
            ask.batch,
            ask.partitions,
            start=self.since or self.start,
            lease_id=self.lease_id,
            tag=tag,
            group_tags=[group_tag(queue, ask.group) for queue in self.groups.values()],
            hold=AUTO_LEASE if ask.auto_ack else None,
            age=max(0.0, now - self.arrived) if self.undated else None,
        )
