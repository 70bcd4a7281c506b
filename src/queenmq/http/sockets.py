"""What the kernel is told of a client's connection (send at once, notice a silent end), and what it is asked."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import select
import socket
import sys
import termios
from typing import Protocol

from .limits import Limits

_PROBES = 3
if sys.platform == "darwin":
    _IDLE = socket.TCP_KEEPALIVE
else:
    _IDLE = socket.TCP_KEEPIDLE
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
_END_OF_INPUT: int = getattr(select, "POLLRDHUP", 0)
_SO_NWRITE = 0x1024  # of macOS


class Tunable(Protocol):
    @property
    def family(self) -> int: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def tune(sock: Tunable, limits: Limits) -> None:
    """Set the options of a TCP connection; others have none of them."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # the client may already be gone, which reading will tell
        for level, option, value in _options(limits):
            sock.setsockopt(level, option, value)


def has_closed(transport: asyncio.BaseTransport) -> bool:
    """Whether the client has closed its end, or its sending half, also when the event loop has yet to notice it."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return sock is not None
    if _END_OF_INPUT:  # Linux tells it also while there is something to read
        looking = select.poll()
        looking.register(sock.fileno(), _END_OF_INPUT)
        return bool(looking.poll(0))
    try:
        with socket.socket(fileno=os.dup(sock.fileno())) as copy:
            return not copy.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # it was reset
        return True


def unacknowledged(transport: asyncio.WriteTransport) -> int:
    """Bytes that were written and that the client's system has not acknowledged. It acknowledges none when the client
    has closed, and says so instead, which ends the connection here."""
    waiting, sock = transport.get_write_buffer_size(), transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0 or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return waiting
    try:
        if sys.platform == "darwin":
            return waiting + int(sock.getsockopt(socket.SOL_SOCKET, _SO_NWRITE))
        size = array.array("i", [0])
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, size)
    except OSError:
        return waiting
    return waiting + size[0]


def _options(limits: Limits) -> list[tuple[int, int, int]]:
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    if limits.tcp_keepalive:
        options += [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, _IDLE, limits.tcp_keepalive),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, limits.tcp_keepalive // _PROBES)),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
        ]
    if limits.tcp_user_timeout and _USER_TIMEOUT is not None:
        options.append((socket.IPPROTO_TCP, _USER_TIMEOUT, max(1, round(limits.tcp_user_timeout * 1000))))
    return options
