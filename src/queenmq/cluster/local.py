"""What only the processes of one server say to each other, beside the kinds that servers exchange."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec


class Local(IntEnum):
    """Numbers that no packet has: a packet's kind is one byte."""

    SERVER_SEEN = 1000
    SERVER_DEAD = 1001
    REFRESH = 1002
    CLOCK = 1003
    STATS_WANTED = 1004
    STATS = 1005
    QUEUES = 1006


class Server(msgspec.Struct, array_like=True):
    """Of SERVER_SEEN and SERVER_DEAD: another server is there, or was not heard for too long."""

    server_id: str


class Clock(msgspec.Struct, array_like=True):
    """The database's time, in milliseconds."""

    now_ms: int


class StatsWanted(msgspec.Struct, array_like=True):
    """Worker `by` asks everybody, as its question number `question`."""

    by: int
    question: int


class Stats(msgspec.Struct, array_like=True):
    """The answer of process `of`."""

    of: int
    question: int
    stats: dict[str, Any]


class Queues(msgspec.Struct, array_like=True):
    """A part of an answer: queues of one kind, as their hashes one after the other."""

    question: int
    kind: str
    hashes: bytes


_encoder = msgspec.msgpack.Encoder()
_DECODERS: dict[Local, msgspec.msgpack.Decoder[Any]] = {
    Local.SERVER_SEEN: msgspec.msgpack.Decoder(Server),
    Local.SERVER_DEAD: msgspec.msgpack.Decoder(Server),
    Local.CLOCK: msgspec.msgpack.Decoder(Clock),
    Local.STATS_WANTED: msgspec.msgpack.Decoder(StatsWanted),
    Local.STATS: msgspec.msgpack.Decoder(Stats),
    Local.QUEUES: msgspec.msgpack.Decoder(Queues),
}


def encode(notice: Server | Clock | StatsWanted | Stats | Queues | None) -> bytes:
    return b"" if notice is None else _encoder.encode(notice)


def decode(kind: Local, payload: bytes) -> Any:
    """Raises msgspec.DecodeError."""
    decoder = _DECODERS.get(kind)
    return None if decoder is None else decoder.decode(payload)
