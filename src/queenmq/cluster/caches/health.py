"""Which servers are alive: those whose last heartbeat is recent.

A server that falls silent is dead until it is heard again, and forgotten after a day, so that servers which get a
different name each time do not add up. Another session means that it was restarted, and what it told before is void.
"""

from __future__ import annotations

import time
from collections.abc import Callable, KeysView
from datetime import UTC, datetime
from enum import Enum
from typing import Final

_FORGOTTEN_AFTER: Final = 24 * 60 * 60.0  # seconds of silence


class Heard(Enum):
    FIRST = "from a server not heard before"
    BACK = "from a server that was dead"
    RESTARTED = "from a server that began again, whether it was dead in between or not"
    AGAIN = "from a server that is alive"


class _Server:
    __slots__ = ("alive", "heard", "heard_wall", "session")

    def __init__(self, session: int, heard: float, heard_wall: float) -> None:
        self.session = session
        self.heard = heard
        self.heard_wall = heard_wall
        self.alive = True


class Health:
    """Times are seconds of the caller's clock, which only rises. `wall` is the time of day, for people to read."""

    def __init__(self, dead_after: float, *, wall: Callable[[], float] = time.time) -> None:
        self._dead_after = dead_after
        self._wall = wall
        self._servers: dict[str, _Server] = {}
        self._heartbeats = self._restarts = 0

    def heard(self, server: str, session: int, at: float) -> Heard:
        """A heartbeat."""
        self._heartbeats += 1
        known = self._servers.get(server)
        self._servers[server] = _Server(session, at, self._wall())
        if known is None:
            return Heard.FIRST
        if known.session != session:
            self._restarts += 1
            return Heard.RESTARTED
        return Heard.AGAIN if known.alive else Heard.BACK

    def expired(self, now: float) -> list[str]:
        """Servers that are dead since the last time this was asked. To be asked regularly: nobody dies otherwise."""
        died = []
        for name, server in list(self._servers.items()):
            silence = now - server.heard
            if server.alive and silence >= self._dead_after:
                server.alive = False
                died.append(name)
            elif not server.alive and silence >= _FORGOTTEN_AFTER:
                del self._servers[name]
        return died

    def alive(self, server: str) -> bool:
        known = self._servers.get(server)
        return known is not None and known.alive

    @property
    def servers(self) -> KeysView[str]:
        """Alive or dead."""
        return self._servers.keys()

    @property
    def last_heartbeat(self) -> dict[str, str]:
        return {name: _iso(server.heard_wall) for name, server in self._servers.items()}

    def stats(self) -> dict[str, int | dict[str, str]]:
        alive = sum(server.alive for server in self._servers.values())
        return {
            "servers_tracked": len(self._servers),
            "servers_alive": alive,
            "servers_dead": len(self._servers) - alive,
            "heartbeats_received": self._heartbeats,
            "restarts_detected": self._restarts,
            "last_heartbeat": self.last_heartbeat,
        }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
