"""The other servers as those to be told something: where they are, who is alive, and what each waits for.

It waits among the siblings for what the other servers wait for. A living server of which we do not know for sure what
it waits for is told everything, and so is, until it would count as dead, whoever has not been heard yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from .caches.health import Health
from .caches.health import Heard as Seen
from .caches.presence import Presence
from .datagrams import Address
from .peers import Peers
from .siblings import Siblings

_VAGUE: Final = 10.0  # seconds after which what is known of a server that does not fit together is forgotten


class Audience:
    def __init__(self, peers: Peers, siblings: Siblings, dead_after: float) -> None:
        self.peers = peers
        self.health = Health(dead_after)
        self.presence = Presence()
        self._siblings = siblings
        self._dead_after = dead_after
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.vague: dict[str, float] = {}

    # Whom to tell

    def waiting_for(self, name: str) -> list[Address]:
        return self._at(self.presence.servers(name) | self.vague.keys()) + self._strangers()

    def living(self) -> list[Address]:
        return self._at(self.alive()) + self._strangers()

    def alive(self) -> list[str]:
        return [each for each in self.health.servers if self.health.alive(each)]

    def _at(self, servers: Iterable[str]) -> list[Address]:
        return [address for each in servers if (address := self.peers.address(each)) is not None]

    def _strangers(self) -> list[Address]:
        return self.peers.strangers() if self._loop.time() - self._began < self._dead_after else []

    def silent(self) -> list[object]:
        """Who should be heard, and is not."""
        return [*(self.health.servers - set(self.alive())), *self.peers.strangers()]

    # What they say of themselves

    def beat(self, server: str, session: int, queues: int) -> Seen:
        """It is alive, and waits for so many things."""
        seen = self.health.heard(server, session, self._loop.time())
        self.presence.told(server, queues)
        self._judge(server)
        return seen

    def registered(self, name: str, server: str) -> None:
        for begun in self.presence.register(name, server):
            self._siblings.arrived(begun)
        self._judge(server)

    def deregistered(self, name: str, server: str) -> None:
        self._ended(self.presence.deregister(name, server))
        self._judge(server)

    def forget(self, server: str) -> None:
        """It is dead or began again: what it waited for is void."""
        self._ended(self.presence.forget(server))
        self._judge(server)

    def take_stock(self) -> list[str]:
        """Who has died since the last time."""
        now = self._loop.time()
        lost = self.health.expired(now)
        for server in lost:
            self.forget(server)
            self.peers.forget(server)
        for server, since in list(self.vague.items()):
            if now - since > _VAGUE:  # it has told what we missed, and we hold what it has left
                self.forget(server)
                self.vague[server] = now
        return lost

    def _ended(self, names: Iterable[str]) -> None:
        for name in names:
            self._siblings.left(name)

    def _judge(self, server: str) -> None:
        vague = self.health.alive(server) and not self.presence.complete(server)
        if vague and server not in self.vague:
            self.vague[server] = self._loop.time()
            self._siblings.arrived(None)
        elif not vague and server in self.vague:
            del self.vague[server]
            self._siblings.left(None)

    def stats(self) -> dict[str, Any]:
        return {"consumer_presence": self.presence.stats(), "server_health": self.health.stats()}
