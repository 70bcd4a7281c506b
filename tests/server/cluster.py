"""Several servers on one database, and between them a network that does to packets what it is told to.

A server answers to the address it was spoken to from. So each has, for each of the others, an address of its own at
which it finds that one: what it sends there comes to the other from the address at which that one finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import random
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import count, permutations
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from benchmarks.processes import tree
from queenmq.cluster import messages
from queenmq.cluster.packets import MAX_DATAGRAM, Kind, Opener, Packet, Sealer
from tests.server.running import Client, Server, eventually

SECRET = bytes(range(32))
QUICK = {"QUEEN_SYNC_HEARTBEAT_MS": "100", "QUEEN_SYNC_DEAD_THRESHOLD_MS": "1000"}
_KEPT = 50_000
_TICK = 0.02

M = TypeVar("M", bound=messages.Message)


class Link:
    """From one server to another. `loss` and `doubled` are shares of the packets, `late` the seconds by which any of
    them may be late, so that others overtake it; `without`: kinds that never arrive."""

    def __init__(self, outlet: socket.socket, port: int) -> None:
        self.seen: deque[bytes] = deque(maxlen=_KEPT)
        self.passed: deque[Packet] = deque(maxlen=_KEPT)
        self.sent = 0
        self._outlet = outlet
        self._address = ("127.0.0.1", port)
        self.heal()

    def heal(self) -> None:
        self.blocked = False
        self.loss = self.doubled = self.late = 0.0
        self.without: frozenset[Kind] = frozenset()

    def told(self, *kinds: type[M]) -> list[M]:
        """The messages of these kinds that were let through, those that were let through twice too."""
        read = [messages.decode(packet.kind, packet.payload) for packet in list(self.passed)]
        return [message for message in read if isinstance(message, kinds)]

    def send(self, datagram: bytes) -> None:
        with contextlib.suppress(OSError):
            self._outlet.sendto(datagram, self._address)
            self.sent += 1

    def replay(self) -> int:
        """Send everything again that was ever sent here, whether it arrived or not."""
        recorded = list(self.seen)
        for datagram in recorded:
            self.send(datagram)
        return len(recorded)

    def forge(self, choice: random.Random) -> None:
        """What somebody can send who does not know the secret."""
        genuine = choice.choice(list(self.seen)) if self.seen else b""
        flipped = bytearray(genuine or b"\1")
        flipped[choice.randrange(len(flipped))] ^= 1 << choice.randrange(8)
        guessed = Sealer(choice.randbytes(32), "a", 2**50).seal(Kind.MESSAGE_AVAILABLE, b"\x80")
        for datagram in (bytes(flipped), guessed, genuine[:91], genuine + b"\0", choice.randbytes(200), b""):
            self.send(datagram[:MAX_DATAGRAM])
        self.send(choice.randbytes(4 * MAX_DATAGRAM))


class Network:
    """A link for each direction, in a thread of its own."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        pairs = list(permutations(ports, 2))
        self._faces = {pair: _face() for pair in pairs}
        self.links = {(one, other): Link(self._faces[other, one], ports[other]) for one, other in pairs}
        self._choice = random.Random()
        self._opener = Opener(SECRET)
        self._selector = selectors.DefaultSelector()
        self._late: list[tuple[float, int, Link, bytes, Packet]] = []
        self._numbers = count()
        self._closed = False
        for pair, face in self._faces.items():
            self._selector.register(face, selectors.EVENT_READ, self.links[pair])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def peers(self, name: str) -> str:
        """Where this server finds the others."""
        return ",".join(f"127.0.0.1:{face.getsockname()[1]}" for (one, _), face in self._faces.items() if one == name)

    def link(self, one: str, other: str) -> Link:
        return self.links[one, other]

    def sent_to(self, name: str) -> int:
        return sum(link.sent for (_, other), link in self.links.items() if other == name)

    def block(self, *names: str) -> None:
        """Nothing passes between these."""
        for pair, link in self.links.items():
            link.blocked = link.blocked or set(pair) <= set(names)

    def disturb(self, loss: float, doubled: float, late: float) -> None:
        for link in self.links.values():
            link.loss, link.doubled, link.late = loss, doubled, late

    def heal(self) -> None:
        for link in self.links.values():
            link.heal()

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._selector.close()
        for face in self._faces.values():
            face.close()

    def _run(self) -> None:
        while not self._closed:
            now = time.monotonic()
            pause = min(_TICK, max(0.0, self._late[0][0] - now)) if self._late else _TICK
            for key, _ in self._selector.select(pause):
                with contextlib.suppress(OSError):
                    self._take(key.fileobj.recv(65_536), key.data)  # type: ignore[union-attr]
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, link, datagram, packet = heapq.heappop(self._late)
                self._pass(link, datagram, packet)

    def _take(self, datagram: bytes, link: Link) -> None:
        link.seen.append(datagram)
        packet = self._opener.open(datagram)
        assert isinstance(packet, Packet), packet
        if link.blocked or packet.kind in link.without or self._choice.random() < link.loss:
            return
        for _ in range(2 if self._choice.random() < link.doubled else 1):
            if link.late and self._choice.random() < 0.5:
                due = time.monotonic() + self._choice.uniform(0, link.late)
                heapq.heappush(self._late, (due, next(self._numbers), link, datagram, packet))
            else:
                self._pass(link, datagram, packet)

    def _pass(self, link: Link, datagram: bytes, packet: Packet) -> None:
        link.send(datagram)
        link.passed.append(packet)


class Cluster:
    """Servers by name. `environment`: variables of all of them."""

    def __init__(
        self,
        directory: Path,
        dsn: str,
        *names: str,
        workers: int = 2,
        environment: Mapping[str, str] = QUICK,
    ) -> None:
        self.dsn = dsn
        self.names = names
        self.servers: dict[str, Server] = {}
        self._directory = directory
        self._workers = workers
        self._environment = environment
        self._ports = {name: _free_port() for name in names}
        self._numbers = count()
        self._sent_before = dict.fromkeys(names, 0)
        self._started: list[Server] = []
        self.network = Network(self._ports)
        try:
            for name in names:
                self.start(name)
            for name in names:
                self[name].wait_ready()
        except BaseException:
            self.end()
            raise

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def start(self, name: str) -> Server:
        directory = self._directory / f"{name}-{next(self._numbers)}"
        directory.mkdir()
        self._sent_before[name] = self.network.sent_to(name)
        own = {
            "DATABASE_URL": self.dsn,
            "QUEEN_SERVER_ID": name,
            "QUEEN_SYNC_SECRET": SECRET.hex(),
            "QUEEN_UDP_PEERS": self.network.peers(name),
            "QUEEN_UDP_NOTIFY_PORT": str(self._ports[name]),
        }
        server = Server(directory, "--workers", str(self._workers), **own, **self._environment)
        self.servers[name] = server
        self._started.append(server)
        return server

    def kill(self, name: str) -> None:
        """All its processes, the supervisor first: it would replace the others."""
        server = self[name]
        server.disconnect()
        for pid in tree(server.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.process.wait()

    def stats(self, name: str, client: Client | None = None) -> dict[str, Any]:
        """What this server shares, as the worker behind the client tells it, or any worker."""
        own = client or Client("127.0.0.1", self[name].port)
        status, body = own.get("/internal/api/shared-state/stats")
        if client is None:
            own.close()
        assert status == 200
        return dict(body)

    def alive(self, name: str) -> int:
        """How many others this server takes for alive."""
        return int(self.stats(name)["server_health"]["servers_alive"])

    def meet(self) -> None:
        """Everybody knows that everybody is there."""
        for name in self.names:
            eventually(lambda name=name: self.alive(name) == len(self.names) - 1)  # type: ignore[misc]

    def heard(self, name: str, *clients: Client) -> None:
        """The server has read everything that was let through to it, and the workers behind the clients know of it:
        what the gateway has told them comes before its answer."""
        sent = self.network.sent_to(name) - self._sent_before[name]
        for client in clients:
            eventually(lambda client=client: self.stats(name, client)["transport"]["received"] >= sent)  # type: ignore[misc]

    def fetch(self, query: str, *arguments: object) -> list[Any]:
        """Of the database; not to be called inside an event loop."""

        async def fetched() -> list[Any]:
            connection = await asyncpg.connect(self.dsn)
            try:
                return list(await connection.fetch(query, *arguments))
            finally:
                await connection.close()

        return asyncio.run(fetched())

    def errors(self) -> list[dict[str, Any]]:
        """What the servers have logged as an error, also those that have ended."""
        return [line for server in self._started for line in server.log if line["level"] in ("error", "critical")]

    def end(self) -> None:
        for server in self._started:
            server.end()
        self.network.close()


def _face() -> socket.socket:
    face = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    face.bind(("127.0.0.1", 0))
    face.setblocking(False)
    return face


def _free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as taken:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken.bind(("::", 0))
        return int(taken.getsockname()[1])
