"""Whom we have heard, and up to where: what was sent before is not taken again.

Within a session sequence numbers only rise, so a duplicate, a packet that was overtaken and a replay are all the same:
not above the last one. Sessions of a sender rise too. One that is higher belongs to a sender that has been restarted,
and is believed at once; a lower one can only be a recording. What is known of a sender is never forgotten while we run:
forgetting would make its recordings good again. Only who knows the secret can add to it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from .packets import Packet

MOST: Final = 10_000


class Heard(Enum):
    NEXT = "the next one of its session"
    RESTARTED = "the first one of a new session"
    FIRST = "the first one of a sender"
    REPEATED = "not above the last one of its session"
    OUTDATED = "of an earlier session"
    CROWDED = "of one sender too many"

    @property
    def fresh(self) -> bool:
        return self in _FRESH


_FRESH: Final = frozenset((Heard.NEXT, Heard.RESTARTED, Heard.FIRST))


class Senders:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._last: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def hear(self, packet: Packet) -> Heard:
        """A packet whose signature is right. It may be acted upon when the answer is `fresh`."""
        now = (packet.session, packet.sequence)
        last = self._last.get(packet.sender)
        if last is None:
            if len(self._last) >= self._most:
                return Heard.CROWDED
            self._last[packet.sender] = now
            return Heard.FIRST
        if now <= last:
            return Heard.OUTDATED if packet.session < last[0] else Heard.REPEATED
        self._last[packet.sender] = now
        return Heard.NEXT if packet.session == last[0] else Heard.RESTARTED
