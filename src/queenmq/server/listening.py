"""The sockets the server listens on.

They are bound before anything is started, so that a taken port costs no start of a database, and listen when the
workers are ready, so that a client is refused rather than kept waiting until then.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

BACKLOG = 4096
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ListenError(Exception):
    """The address cannot be listened on; the message is a sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Sockets of one port: a name such as `localhost` may stand for several addresses."""

    sockets: tuple[socket.socket, ...]
    host: str
    port: int

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        host = _ANYWHERE.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def listen(self) -> None:
        for each in self.sockets:
            try:
                each.listen(BACKLOG)
            except OSError as error:  # two programs may have bound it before one of them listens
                raise _explained(error, self.host, self.port) from error

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def bind(host: str, port: int) -> Listening:
    """Bind every address the host stands for. Port 0 takes a free one."""
    host = host.removeprefix("[").removesuffix("]")
    bound: list[socket.socket] = []
    unusable: OSError | None = None
    try:
        for family, address in _addresses(host, port):
            try:
                bound.append(_bound(family, (address, port or _port_of(bound))))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                unusable = error  # `localhost` on a machine without IPv6
        if unusable is not None and not bound:
            raise unusable
    except OSError as error:
        for each in bound:
            each.close()
        raise _explained(error, host, port) from error
    return Listening(tuple(bound), host, _port_of(bound))


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bound(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` alone means every network, also those of IPv4; any other address is what it says.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        made.setblocking(False)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def _port_of(bound: list[socket.socket]) -> int:
    return int(bound[0].getsockname()[1]) if bound else 0


def _explained(error: OSError, host: str, port: int) -> ListenError:
    if isinstance(error, socket.gaierror):
        return ListenError(f"The host {host!r} cannot be resolved: {error.strerror}. {_CHOOSE_HOST}")
    if error.errno == errno.EADDRINUSE:
        return ListenError(f"Port {port} on {host} is in use by another program. Stop it, or {_CHOOSE_PORT}")
    if error.errno == errno.EADDRNOTAVAIL:
        return ListenError(f"{host} is not an address of this machine. {_CHOOSE_HOST}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ListenError(
            f"This user may not listen on port {port} of {host}. Start with more rights, or {_CHOOSE_PORT}"
        )
    return ListenError(f"Cannot listen on port {port} of {host}: {error.strerror or error}.")


_CHOOSE_HOST = "Set --host or QUEEN_HOST to an address of this machine, or to 0.0.0.0 for all of them."
_CHOOSE_PORT = "choose another port with --port or PORT."
