"""What the kernel is told of a client's connection (send at once, notice a silent end), and what it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import Protocol

from .limits import Limits

_PROBES = 3
if sys.platform == "darwin":
    _IDLE = socket.TCP_KEEPALIVE
else:
    _IDLE = socket.TCP_KEEPIDLE
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


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
    if sock is None:
        return False
    try:
        with socket.socket(fileno=os.dup(sock.fileno())) as copy:
            return not copy.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # it was reset
        return True


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
