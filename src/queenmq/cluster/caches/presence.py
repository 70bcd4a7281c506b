"""Which servers have consumers for which queue, as they told us: only these need to hear of its messages.

What a server tells may be lost. Its heartbeat says for how many queues it has consumers; as long as we do not hold as
many of it, our picture of it is not complete, and it should hear of every queue.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Final

ANY: Final = ""
"""In place of a queue's name: the consumer names a namespace and task, so any queue may be meant."""
MOST: Final = 100_000
_NOBODY: Final[frozenset[str]] = frozenset()


class Presence:
    """`register`, `deregister` and `forget` return the names of queues, ANY among them, for which the first server has
    come or the last one has gone."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._pairs = 0
        self._servers: dict[str, frozenset[str]] = {}  # by queue
        self._queues: dict[str, set[str]] = {}  # by server
        self._told: dict[str, int] = {}
        self._cut: set[str] = set()  # servers of which something was not remembered
        self._registrations = self._deregistrations = self._not_remembered = 0

    def register(self, queue: str, server: str) -> list[str]:
        held = self._queues.get(server, _NOBODY)
        if queue in held:
            return []
        if self._pairs >= self._most:
            self._not_remembered += 1
            self._cut.add(server)
            return []
        self._queues.setdefault(server, set()).add(queue)
        self._pairs += 1
        self._registrations += 1
        before = self._servers.get(queue, _NOBODY)
        self._servers[queue] = before | {server}
        return [] if before else [queue]

    def deregister(self, queue: str, server: str) -> list[str]:
        held = self._queues.get(server)
        if held is None or queue not in held:
            return []
        held.remove(queue)
        if not held:
            del self._queues[server]
        self._deregistrations += 1
        return self._leave(queue, server)

    def told(self, server: str, queues: int) -> None:
        """For how many queues the server has consumers, by its heartbeat; -1: it does not say."""
        self._told[server] = queues
        if queues == self._held(server):
            self._cut.discard(server)

    def forget(self, server: str) -> list[str]:
        """The server is dead, or began again."""
        self._told.pop(server, None)
        self._cut.discard(server)
        return [name for queue in self._queues.pop(server, _NOBODY) for name in self._leave(queue, server)]

    def servers(self, queue: str) -> frozenset[str]:
        named = self._servers.get(queue, _NOBODY)
        anywhere = self._servers.get(ANY)
        return named if anywhere is None else named | anywhere

    def complete(self, server: str) -> bool:
        """Whether `servers` tells all about this server. If not, it may have consumers for any queue."""
        return self._told.get(server) == self._held(server) and server not in self._cut

    @property
    def queues(self) -> KeysView[str]:
        """Those for which any server has consumers, ANY among them."""
        return self._servers.keys()

    def stats(self) -> dict[str, int]:
        return {
            "queues_tracked": len(self._servers),
            "servers_tracked": len(self._queues.keys() | self._told.keys() | self._cut),
            "registrations": self._registrations,
            "deregistrations": self._deregistrations,
            "not_remembered": self._not_remembered,
        }

    def _held(self, server: str) -> int:
        return len(self._queues.get(server, _NOBODY))

    def _leave(self, queue: str, server: str) -> list[str]:
        self._pairs -= 1
        left = self._servers[queue] - {server}
        if left:
            self._servers[queue] = left
            return []
        del self._servers[queue]
        return [queue]
