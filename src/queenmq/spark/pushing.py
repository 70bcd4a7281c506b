"""How the parcels of a task are pushed: one after the other, while the next ones are made ready.

A push that meets a server or database which is away or overloaded is repeated for a while. Every message has its
transactionId, so nothing is stored twice, whatever became of the attempts before.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, Protocol

from ..domain.segments import Parcel
from .errors import WriteRefused

_AHEAD: Final = 10  # parcels: what Spark hands over at once, at the usual size of a push
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_log: Final = logging.getLogger("queenmq.spark")


@dataclass(frozen=True, slots=True)
class Tally:
    """Messages that were stored, and those that were there already."""

    queued: int = 0
    duplicates: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.queued + other.queued, self.duplicates + other.duplicates)


class MessageRefused(WriteRefused):
    """One message of a parcel; which row of the task that is, is for others to say."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position


class Pusher(Protocol):
    """A way to the queue. All calls come from one thread."""

    def push(self, parcel: Parcel) -> Tally:
        """When it returns, every message is stored. Raises WriteRefused; MessageRefused where one message is why."""
        ...

    def close(self) -> None: ...


def push_all(parcels: Iterable[Parcel], pusher: Pusher, task: int) -> Tally:
    """A parcel is pushed when the one before it is stored, and none after one that failed: that keeps the order in each
    partition, in this attempt and together with the next."""
    tally, waiting, failed, rows = Tally(), deque[Future[Tally]](), threading.Event(), 0

    def push(parcel: Parcel, first: int) -> Tally:
        if failed.is_set():
            raise WriteRefused("an earlier push of this task has failed")
        try:
            return pusher.push(parcel)
        except BaseException as error:
            failed.set()
            if isinstance(error, MessageRefused):
                raise WriteRefused(f"row {first + error.position} of task {task}: {error.message}") from None
            raise

    with ThreadPoolExecutor(1, thread_name_prefix="queen-push") as thread:
        try:
            for parcel in parcels:
                waiting.append(thread.submit(push, parcel, rows))
                rows += len(parcel.items)
                if len(waiting) > _AHEAD:
                    tally += waiting.popleft().result()
            return sum((future.result() for future in waiting), tally)
        finally:
            thread.submit(pusher.close).result()


class Patience:
    """The pauses between the attempts of one push, and their end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._pause = _FIRST_PAUSE

    def wait(self, why: str, after: float | None = None) -> None:
        """Until the next attempt; `after` seconds or more where the other side said so. WriteRefused at the end."""
        now = monotonic()
        if self._until is None:
            self._until = now + self._seconds
            _log.warning("a push is repeated for up to %g s: %s", self._seconds, why)
        if now >= self._until:
            raise WriteRefused(f"a push was given up after {self._seconds:g} s (maxRetrySeconds): {why}")
        pause = max(self._pause * random.uniform(0.5, 1.0), after or 0.0)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        sleep(min(pause, self._until - now))
