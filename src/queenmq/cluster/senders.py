"""Whom we have heard, and up to where: what was sent before is not taken again.

Within a session sequence numbers only rise, so a duplicate, a packet that was overtaken and a replay are all the same:
not above the last one. Sessions of a sender rise too. One that is higher belongs to a sender that has been restarted,
and is believed at once; a lower one can only be a recording. What is known of a sender is never forgotten while we run:
forgetting would make its recordings good again. Only who knows the secret can add to it.

Of whom we have not heard there is nothing to compare with. So the first packet of a sender or session must not be of an
earlier session than the database knew when we began, and its number, a time, must be near ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from .packets import Packet

MOST: Final = 10_000
WINDOW: Final = 60_000_000
"""Microseconds by which the first packet of a session may be away from our clock, either way."""
_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Heard(Enum):
    NEXT = "the next one of its session"
    RESTARTED = "the first one of a new session"
    FIRST = "the first one of a sender"
    REPEATED = "not above the last one of its session"
    OUTDATED = "of an earlier session"
    STALE = "recorded, or its clock is far off"
    CROWDED = "of one sender too many"

    @property
    def fresh(self) -> bool:
        return self in _FRESH


_FRESH: Final = frozenset((Heard.NEXT, Heard.RESTARTED, Heard.FIRST))


class Senders:
    """`floors`: the latest session of each sender that was known when we began. `now`: the clock, in microseconds, that
    all senders take their sequence numbers from; None, when they do not."""

    def __init__(
        self,
        most: int = MOST,
        *,
        floors: Mapping[str, int] = _NONE,
        now: Callable[[], int] | None = None,
        window: int = WINDOW,
    ) -> None:
        self._most = most
        self._floors = floors
        self._now = now
        self._window = window
        self._last: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def hear(self, packet: Packet) -> Heard:
        """A packet whose signature is right. It may be acted upon when the answer is `fresh`."""
        last = self._last.get(packet.sender)
        if last is None:
            heard = self._hear_first(packet)
        elif packet.session == last[0]:
            heard = Heard.NEXT if packet.sequence > last[1] else Heard.REPEATED
        elif packet.session < last[0]:
            heard = Heard.OUTDATED
        else:
            heard = Heard.RESTARTED if self._is_timely(packet) else Heard.STALE
        if heard.fresh:
            self._last[packet.sender] = (packet.session, packet.sequence)
        return heard

    def _hear_first(self, packet: Packet) -> Heard:
        if packet.session < self._floors.get(packet.sender, 0):
            return Heard.OUTDATED
        if not self._is_timely(packet):
            return Heard.STALE
        return Heard.FIRST if len(self._last) < self._most else Heard.CROWDED

    def _is_timely(self, packet: Packet) -> bool:
        return self._now is None or abs(packet.sequence - self._now()) <= self._window
