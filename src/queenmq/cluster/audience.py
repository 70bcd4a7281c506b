"""The other servers as those to be told something: where they are, who is alive, and what each waits for.

It waits among the siblings for what the other servers wait for. A living server of which we do not know for sure what
it waits for is told everything. So is an address from which no heartbeat has come yet, until a server there would count
as dead. As long as there is one of either kind, the gateway asks the workers for the news of every queue.
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
        self.vague: dict[str, float] = {}
        self.unheard: list[Address] = []
        self._found: dict[Address, float] = {}

    # Whom to tell

    def consumers_of(self, name: str) -> list[Address]:
        """The servers that said that they wait for it."""
        return self._at(self.presence.servers(name))

    def waiting_for(self, name: str) -> list[Address]:
        """The same, and all that may wait for it."""
        return list(dict.fromkeys((*self._at(self.presence.servers(name) | self.vague.keys()), *self.unheard)))

    def living(self) -> list[Address]:
        return list(dict.fromkeys((*self._at(self.alive()), *self.unheard)))

    def alive(self) -> list[str]:
        return [each for each in self.health.servers if self.health.alive(each)]

    def _at(self, servers: Iterable[str]) -> list[Address]:
        return [address for each in servers if (address := self.peers.address(each)) is not None]

    def silent(self) -> list[object]:
        """Who should be heard, and is not."""
        return [*(self.health.servers - set(self.alive())), *self.peers.strangers()]

    # What they say of themselves

    def beat(self, server: str, session: int, queues: int) -> Seen:
        """It is alive, and waits for so many things."""
        now = self._loop.time()
        seen = self.health.heard(server, session, now)
        self.presence.told(server, queues)
        self._judge(server)
        if seen is Seen.FIRST:
            self._note_unheard(now)
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
        """Who has died since the last time. To be asked at every heartbeat."""
        now = self._loop.time()
        lost = self.health.expired(now)
        for server in lost:
            self.forget(server)
            self.peers.forget(server)
        for server, since in list(self.vague.items()):
            if now - since > _VAGUE:  # it has told what we missed, and we hold what it has left
                self.forget(server)
                self.vague[server] = now
        self._note_unheard(now)
        return lost

    def _note_unheard(self, now: float) -> None:
        """The addresses that were found a short time ago and from which no heartbeat has come. An address that is known
        keeps the time when it was found, so that a server that died is not told everything once more."""
        self._found = {address: self._found.get(address, now) for address in self.peers.addresses()}
        heard = set(self._at(self.health.servers))
        recent = [address for address, found in self._found.items() if now - found < self._dead_after]
        before, self.unheard = self.unheard, [address for address in recent if address not in heard]
        if self.unheard and not before:
            self._siblings.arrived(None)
        elif before and not self.unheard:
            self._siblings.left(None)

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
