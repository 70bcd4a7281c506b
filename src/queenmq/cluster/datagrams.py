"""The UDP socket of a server: one port for all it says and hears, on every network the host is in."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from .packets import MAX_DATAGRAM

Address = tuple[str, int]

_AT_ONCE: Final = 256
_LARGE: Final = MAX_DATAGRAM + 1  # what is larger than a packet may be is cut, and then refused by its size
_MAPPED: Final = "::ffff:"

_log = logging.getLogger(__name__)


def bind(port: int, receive_buffer: int) -> socket.socket:
    """IPv6 and IPv4 where the system has both. Raises OSError, as when the port is taken."""
    found = _dual(port) if socket.has_dualstack_ipv6() else None
    if found is None:
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            found.bind(("0.0.0.0", port))
        except OSError:
            found.close()
            raise
    found.setblocking(False)
    _enlarge(found, receive_buffer)
    return found


def _dual(port: int) -> socket.socket | None:
    try:
        found = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("::", port))
    except OSError:
        found.close()
        return None
    return found


def _enlarge(found: socket.socket, wanted: int) -> None:
    with suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
    got = found.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    if sys.platform == "linux":
        got //= 2  # Linux doubles what it is asked for, and shows that
    if got < wanted:
        name = "net.core.rmem_max" if sys.platform == "linux" else "kern.ipc.maxsockbuf"
        _log.warning(
            "the receive buffer for other servers' packets is %d bytes, less than QUEEN_SYNC_RECV_BUFFER_MB; "
            "`sysctl -w %s=%d` makes this system allow as much",
            got,
            name,
            wanted,
        )


class Datagrams:
    """`heard` gets each datagram and where it came from. It owns the socket."""

    def __init__(self, own: socket.socket, heard: Callable[[bytes, Address], None]) -> None:
        self._socket = own
        self._heard = heard
        self._six = own.family == socket.AF_INET6
        self._loop = asyncio.get_running_loop()
        self.sent = self.received = self.bytes_sent = self.bytes_received = self.unsent = 0

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def open(self) -> None:
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def send(self, datagram: bytes, address: Address) -> None:
        """Now or never."""
        try:
            self._socket.sendto(datagram, address)
        except OSError:
            self.unsent += 1
        else:
            self.sent += 1
            self.bytes_sent += len(datagram)

    async def resolve(self, host: str, port: int) -> list[Address]:
        """The addresses of a name, as this socket writes them. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        addresses = [self._address(family, at) for family, _, _, _, at in found]
        return list(dict.fromkeys([each for each in addresses if each is not None]))

    def _address(self, family: int, at: tuple[Any, ...]) -> Address | None:
        if family == socket.AF_INET:
            return (_MAPPED + at[0] if self._six else at[0], at[1])
        return (at[0], at[1]) if self._six else None

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                datagram, source = self._socket.recvfrom(_LARGE)
            except BlockingIOError:
                return
            except OSError:
                continue  # what an earlier datagram of ours met, such as a port that is closed
            self.received += 1
            self.bytes_received += len(datagram)
            self._heard(datagram, (source[0], source[1]))
