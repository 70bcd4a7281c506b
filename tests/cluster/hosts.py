"""Servers in one process: each a gateway on a port of its own, and workers that note what they hear."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from queenmq.cluster import local, messages
from queenmq.cluster.datagrams import Address, Datagrams
from queenmq.cluster.gateway import Gateway, Identity
from queenmq.cluster.local import Local
from queenmq.cluster.packets import Kind, Opener, Packet
from queenmq.cluster.siblings import Siblings
from tests.engine.saying import until

SECRET = bytes(range(32))
BEAT = 0.05
DEAD = 1.0


class Worker:
    """What a worker hears from its siblings, one of which is the gateway."""

    def __init__(self) -> None:
        self.pushes: list[tuple[str, str]] = []
        self.frees: list[tuple[str, str, str]] = []
        self.messages: list[messages.Message] = []
        self.notices: list[tuple[Local, Any]] = []

    def pushed(self, queue: str, partition: str) -> None:
        self.pushes.append((queue, partition))

    def freed(self, queue: str, partition: str, group: str) -> None:
        self.frees.append((queue, partition, group))

    def told(self, kind: int, payload: bytes) -> None:
        if kind < Local.SERVER_SEEN:
            self.messages.append(messages.decode(Kind(kind), payload))
        else:
            self.notices.append((Local(kind), local.decode(Local(kind), payload)))

    def attended(self, name: str, *, present: bool) -> None: ...

    def greeted(self, sibling: int) -> None: ...

    def servers(self) -> set[str]:
        """Who is alive, as it was told."""
        alive: set[str] = set()
        for kind, notice in self.notices:
            if kind is Local.SERVER_SEEN:
                alive.add(notice.server_id)
            elif kind is Local.SERVER_DEAD:
                alive.discard(notice.server_id)
        return alive


class Wire(Datagrams):
    """A network that loses what it is told to, and remembers what went over it. `deaf`: nothing comes in."""

    def __init__(self, own: socket.socket, heard: Callable[[bytes, Address], None]) -> None:
        super().__init__(own, self._take)
        self._pass = heard
        self.loses: Callable[[Packet], bool] = lambda packet: False
        self.deaf = False
        self.packets: list[tuple[Packet, Address]] = []
        self.reached: Counter[Address] = Counter()
        self.datagrams: list[bytes] = []
        self._opener = Opener(SECRET)

    def send(self, datagram: bytes, address: Address) -> None:
        packet = self._opener.open(datagram)
        assert isinstance(packet, Packet)
        self.packets.append((packet, address))
        self.datagrams.append(datagram)
        if not self.loses(packet):
            self.reached[address] += 1
            super().send(datagram, address)

    def _take(self, datagram: bytes, source: Address) -> None:
        if not self.deaf:
            self._pass(datagram, source)

    def count(self, kind: Kind) -> int:
        return sum(packet.kind is kind for packet, _ in self.packets)


class Host:
    def __init__(
        self,
        name: str,
        own: socket.socket,
        peers: Sequence[tuple[str, int]],
        *,
        session: int = 1,
        workers: int = 1,
        floors: dict[str, int] | None = None,
        now_ms: int | None = None,
        secret: bytes = SECRET,
    ) -> None:
        self.name = name
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers + 1)]
        sides = [
            Siblings(number, pair[0], {other: each[1].dup() for other, each in enumerate(pairs) if other != number})
            for number, pair in enumerate(pairs)
        ]
        for pair in pairs:
            pair[1].close()
        self.workers = [Worker() for _ in range(workers)]
        self.buses = sides[:workers]
        now = int(time.time() * 1000) if now_ms is None else now_ms
        identity = Identity(name, secret, session, now, floors or {})
        made: list[Wire] = []

        def wire(heard: Callable[[bytes, Address], None]) -> Wire:
            made.append(Wire(own, heard))
            return made[0]

        self.gateway = Gateway(
            identity, peers, sides[workers], datagrams=wire, number=workers, heartbeat=BEAT, dead_after=DEAD
        )
        self.wire = made[0]
        self.gateway.open()
        for bus, worker in zip(self.buses, self.workers, strict=True):
            bus.listen(worker)

    @property
    def worker(self) -> Worker:
        return self.workers[0]

    @property
    def bus(self) -> Siblings:
        return self.buses[0]

    @property
    def stats(self) -> dict[str, Any]:
        return self.gateway.stats()

    def tell(self, message: messages.Message, *name: str, concerning: str | None = None) -> None:
        kind, payload = messages.encode(message)
        self.bus.tell(kind, name, payload, concerning=concerning)

    def close(self) -> None:
        self.gateway.close()
        for bus in self.buses:
            bus.close()


class Net:
    """Hosts that know of each other by their ports."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._started: list[Host] = []
        self._wires: list[Wire] = []

    def ports(self, *names: str) -> list[tuple[str, int]]:
        for name in names:
            if name not in self._sockets:
                own = self._sockets[name] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                own.setblocking(False)
                own.bind(("127.0.0.1", 0))
        return [self._sockets[name].getsockname() for name in names]

    def start(self, name: str, peers: Sequence[str], **options: Any) -> Host:
        self.ports(name)
        host = self.hosts[name] = Host(name, self._sockets[name].dup(), self.ports(*peers), **options)
        self._started.append(host)
        self._wires.append(host.wire)
        return host

    def stop(self, name: str) -> None:
        self.hosts.pop(name).close()
        self._started = [host for host in self._started if host.name != name]

    def close(self) -> None:
        for host in self._started:
            host.close()
        for own in self._sockets.values():
            own.close()

    async def silence(self, host: Host) -> None:
        """Everything that was sent to this host, which was never restarted, has arrived."""
        (address,) = self.ports(host.name)
        await until(lambda: host.wire.received == sum(wire.reached[address] for wire in self._wires))

    async def met(self) -> None:
        """Everybody knows that everybody is there, and what they wait for."""
        names = set(self.hosts)
        for host in self.hosts.values():
            others = names - {host.name}
            await until(lambda host=host, others=others: host.worker.servers() == others)  # type: ignore[misc]
            await until(partial(_settled, host))


def _settled(host: Host) -> bool:
    audience = host.gateway._audience
    return not audience.vague and not audience.unheard and not any(one.unsent for one in host.bus._siblings.values())
