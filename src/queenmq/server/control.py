"""What the supervisor and a worker say to each other, over the socket between them.

The supervisor sends the worker's plan, and then connections: one byte each, with the connection's file descriptor
beside it. The worker sends notices, one line of JSON each. When one process ends, the other reads the stream's end.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec

from queenmq.server.settings import Settings

CONNECTION = b"c"
_LENGTH = struct.Struct("!I")


class Plan(msgspec.Struct, frozen=True):
    """Everything a worker is told. It goes over the socket because a command line shows its secrets to everybody."""

    number: int
    supervisor: int
    """The supervisor's process id."""
    dsn: str
    settings: Settings
    inbox: int = -1
    """The file descriptor of what its siblings tell it, when it has siblings."""
    outboxes: dict[int, int] = {}
    """For each sibling, the file descriptor of that one's inbox."""
    server_id: str = ""
    gateway: int | None = None
    """Which of the siblings speaks to other servers."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The worker can take connections."""


class Load(msgspec.Struct, tag="load", frozen=True):
    """How many connections it has received in its life, and how many it has now. Sent before it reads from any of
    those it received, so that one not counted here is still untouched."""

    received: int
    open: int


class Leaving(msgspec.Struct, tag="leaving", frozen=True):
    """It finishes what it has begun and ends. Connections that arrive after this are dropped unread."""


Notice = Ready | Load | Leaving

_encoder = msgspec.json.Encoder(enc_hook=str)
_plans = msgspec.json.Decoder(Plan, dec_hook=lambda kind, text: kind(text))
_notices: msgspec.json.Decoder[Notice] = msgspec.json.Decoder(Ready | Load | Leaving)


def send_plan(control: socket.socket, plan: Plan) -> None:
    body = _encoder.encode(plan)
    control.sendall(_LENGTH.pack(len(body)) + body)


def receive_plan(control: socket.socket) -> Plan:
    (length,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
    return _plans.decode(_exactly(control, length))


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = control.recv(size - len(data))
        if not part:
            raise EOFError("the supervisor has ended")
        data += part
    return data


def line(notice: Notice) -> bytes:
    return _encoder.encode(notice) + b"\n"


class NoticeReader:
    """Cuts what arrives into notices."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Notice]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for each in lines:
            yield _notices.decode(each)
