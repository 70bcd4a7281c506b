"""The other servers as they are configured: names, the addresses behind them, and who answers from there.

Names are looked up again now and then, sooner while one of them is not heard, so that a server that moved is found.
Which server stands behind an address is learned from what comes from there. One of the addresses may be our own, when
every server has the same list: once we have heard ourselves from there, nothing is sent there any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from .datagrams import Address

_SELDOM: Final = 30.0
_OFTEN: Final = 2.0

_log = logging.getLogger(__name__)


class Peers:
    """`resolve` gives the addresses of a host and port, or raises OSError."""

    def __init__(
        self, configured: Sequence[tuple[str, int]], resolve: Callable[[str, int], Awaitable[list[Address]]]
    ) -> None:
        self._found: dict[tuple[str, int], list[Address]] = {each: [] for each in configured}
        self._resolve = resolve
        self._unknown: set[tuple[str, int]] = set()
        self._servers: dict[str, Address] = {}
        self._own: set[Address] = set()

    def addresses(self) -> list[Address]:
        """Everywhere another server may be."""
        every = [address for found in self._found.values() for address in found]
        return [each for each in dict.fromkeys((*every, *self._servers.values())) if each not in self._own]

    def address(self, server: str) -> Address | None:
        return self._servers.get(server)

    def strangers(self) -> list[Address]:
        """Where nobody has been heard yet."""
        known = set(self._servers.values())
        return [each for each in self.addresses() if each not in known]

    def heard(self, server: str, address: Address) -> None:
        """A packet of this server, whose signature is right and which is no recording, came from there."""
        if self._servers.get(server) != address:
            self._servers = {name: at for name, at in self._servers.items() if at != address}
            self._servers[server] = address

    def forget(self, server: str) -> None:
        self._servers.pop(server, None)

    def ours(self, address: Address) -> None:
        """We have heard ourselves from there."""
        self._own.add(address)

    async def look_up(self) -> None:
        """Find the addresses of all names. A name that is not found keeps the addresses it had."""
        for name in self._found:
            try:
                self._found[name] = await self._resolve(*name)
            except OSError as error:
                if name not in self._unknown:
                    _log.warning("the server %s:%d of QUEEN_UDP_PEERS is not found: %s", *name, error)
                self._unknown.add(name)
            else:
                self._unknown.discard(name)
        self._own &= {address for found in self._found.values() for address in found}

    async def keep_looking(self, silent: Callable[[], Iterable[object]]) -> None:
        """Until cancelled; `silent`: those who should be heard and are not."""
        while True:
            await asyncio.sleep(_OFTEN if any(True for _ in silent()) else _SELDOM)
            await self.look_up()
