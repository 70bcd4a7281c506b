"""Packets for news of one queue, when ten servers are there and one of them waits for it.

The servers are gateways in this process, each with one worker, on ports of the loopback. Every other one has consumers
for a queue of its own, and one of them for the queue that is pushed to as well. The first may be `blind`: it hears that
the others are alive and have consumers, but not for what, and so tells everybody.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from queenmq.cluster.datagrams import Address, Datagrams
from queenmq.cluster.gateway import Gateway, Identity
from queenmq.cluster.packets import Kind
from queenmq.cluster.siblings import Siblings

from ..load.connection import BadAnswer

QUEUE: Final = "orders"
_SECRET: Final = bytes(range(32))
_BEAT: Final = 0.1
_SILENCE: Final = 0.5  # seconds after which nothing is said again
_PATIENCE: Final = 20.0
_TOGETHER: Final = 10  # pushes; many more at one moment would be held back
_KIND: Final = 1  # its place in a packet


class _Wire(Datagrams):
    """Counts what goes out, and lets come in what its server is to hear."""

    def __init__(self, own: socket.socket, heard: Callable[[bytes, Address], None], *, blind: bool) -> None:
        super().__init__(own, self._take)
        self._pass = heard
        self._blind = blind
        self.kinds: Counter[int] = Counter()

    def send(self, datagram: bytes, address: Address) -> None:
        self.kinds[datagram[_KIND]] += 1
        super().send(datagram, address)

    def _take(self, datagram: bytes, source: Address) -> None:
        if not (self._blind and datagram[_KIND] == Kind.CONSUMER_REGISTERED):
            self._pass(datagram, source)


class _Worker:
    """Hears, and does nothing with it."""

    def pushed(self, queue: str, partition: str) -> None: ...

    def freed(self, queue: str, partition: str, group: str) -> None: ...

    def told(self, kind: int, payload: bytes) -> None: ...

    def attended(self, name: str, *, present: bool) -> None: ...

    def greeted(self, sibling: int) -> None: ...


class _Host:
    """A gateway and its one worker, `bus`."""

    def __init__(self, number: int, own: socket.socket, peers: Sequence[Address], *, blind: bool) -> None:
        inboxes = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        self.bus = Siblings(0, inboxes[0][0], {1: inboxes[1][1]})
        identity = Identity(f"bench-{number}", _SECRET, 1, int(time.time() * 1000), {})
        wires: list[_Wire] = []

        def wire(heard: Callable[[bytes, Address], None]) -> _Wire:
            wires.append(_Wire(own, heard, blind=blind))
            return wires[0]

        siblings = Siblings(1, inboxes[1][0], {0: inboxes[0][1]})
        self._gateway = Gateway(identity, peers, siblings, datagrams=wire, number=1, heartbeat=_BEAT, dead_after=60)
        self._wire = wires[0]
        self._gateway.open()
        self.bus.listen(_Worker())

    @property
    def told(self) -> int:
        """Packets with news of messages, so far."""
        return self._wire.kinds[Kind.MESSAGE_AVAILABLE]

    @property
    def stats(self) -> dict[str, Any]:
        return self._gateway.stats()

    def close(self) -> None:
        self._gateway.close()
        self.bus.close()


async def notifications(servers: int, pushes: int, *, blind: bool) -> int:
    """Packets that the first server sends for so many pushes, each to another partition."""
    sockets = [_bound() for _ in range(servers)]
    peers = [each.getsockname() for each in sockets]
    hosts = [_Host(number, own, peers, blind=blind and number == 0) for number, own in enumerate(sockets)]
    try:
        first, *others = hosts
        for number, host in enumerate(others):
            host.bus.arrived(f"own-{number}")
        others[-1].bus.arrived(QUEUE)
        await _met(first, servers - 1, known=0 if blind else servers)
        await _push(first, pushes)
        _check(first.stats, pushes, blind=blind)
        return first.told
    finally:
        for host in hosts:
            host.close()


def _bound() -> socket.socket:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.setblocking(False)
    own.bind(("127.0.0.1", 0))
    return own


async def _met(first: _Host, others: int, known: int) -> None:
    """It knows who is there and for what they wait, and its worker knows that somebody does."""

    def ready() -> bool:
        stats = first.stats
        alive, queues = stats["server_health"]["servers_alive"], stats["consumer_presence"]["queues_tracked"]
        return (alive, queues) == (others, known) and bool(first.bus.stats()["waited_for"]["1"])

    await _until(ready)
    beats = first.stats["server_health"]["heartbeats_received"]
    await _until(lambda: first.stats["server_health"]["heartbeats_received"] >= beats + 2 * others)


async def _push(first: _Host, pushes: int) -> None:
    for number in range(pushes):
        first.bus.pushed([(QUEUE, f"p{number}")])
        if number % _TOGETHER == _TOGETHER - 1:
            await asyncio.sleep(0.01)
    told, since = -1, time.monotonic()
    while time.monotonic() < since + _SILENCE:
        if told != first.told:
            told, since = first.told, time.monotonic()
        await asyncio.sleep(0.01)


def _check(stats: dict[str, Any], pushes: int, *, blind: bool) -> None:
    """Every push was told, in the way that was to be measured."""
    presence = stats["consumer_presence"]
    told = presence["notifications_broadcast" if blind else "notifications_targeted"]
    if told != pushes:
        raise BadAnswer(f"{told} of {pushes} pushes told {'to everybody' if blind else 'to the one'}: {presence}")


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise BadAnswer("the servers do not get to know each other")
        await asyncio.sleep(0.01)
