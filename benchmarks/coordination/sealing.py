"""The time that one packet takes to be sealed and opened, as the gateway does it."""

from __future__ import annotations

import time

from queenmq.cluster import messages
from queenmq.cluster.clock import SharedClock
from queenmq.cluster.messages import MessageAvailable
from queenmq.cluster.packets import Kind, Opener, Packet, Sealer

from ..load.connection import BadAnswer

_SECRET = bytes(range(32))


def seal_and_open(packets: int, best_of: int = 5) -> float:
    """Microseconds for one packet, in the best of so many rounds."""
    now = int(time.time() * 1000)
    sealer = Sealer(_SECRET, "queen-1.example:6632", now, clock=SharedClock(now).micros)
    opener = Opener(_SECRET)
    kind, payload = messages.encode(MessageAvailable("orders", "customer-4711", now))
    if not isinstance(opener.open(sealer.seal(kind, payload)), Packet):
        raise BadAnswer("a packet was not opened")
    return min(_round(sealer, opener, (kind, payload), packets) for _ in range(best_of))


def _round(sealer: Sealer, opener: Opener, content: tuple[Kind, bytes], packets: int) -> float:
    seal, open_ = sealer.seal, opener.open
    start = time.perf_counter()
    for _ in range(packets):
        open_(seal(*content))
    return 1e6 * (time.perf_counter() - start) / packets
