"""The datagram that servers exchange: a header of 92 bytes and a MessagePack payload, signed, 1400 bytes at most.

    version 1 · type 1 · payload length 2 · signature 32 · sender 32 · session 16 · sequence 8 · payload

Numbers are big-endian, the sender is ASCII filled with zero bytes, the session 16 hexadecimal digits. The signature is
an HMAC-SHA256 over everything else but the length, which the size of the datagram has to confirm.

Whoever does not know the secret can neither make a packet nor change one. What he can do is to send one again that he
has seen; `Senders` is for that.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from enum import Enum, IntEnum
from struct import Struct
from typing import Final, NamedTuple

VERSION: Final = 1
MAX_DATAGRAM: Final = 1400
MAX_SENDER: Final = 31
SECRET_BYTES: Final = 32

_HEADER: Final = Struct(">BBH32s32s16sQ")
_KIND: Final = slice(0, 2)
_SIGNATURE: Final = slice(4, 36)
_SIGNED_FROM: Final = 36
MAX_PAYLOAD: Final = MAX_DATAGRAM - _HEADER.size
MAX_SEQUENCE: Final = 2**64 - 1

_is_name: Final = re.compile(rb"[!-~]{1,%d}" % MAX_SENDER).fullmatch
_is_session: Final = re.compile(rb"[0-9a-f]{16}").fullmatch


class Kind(IntEnum):
    MESSAGE_AVAILABLE = 1
    PARTITION_FREE = 2
    HEARTBEAT = 3
    QUEUE_CONFIG_SET = 10
    QUEUE_CONFIG_DELETE = 11
    CONSUMER_REGISTERED = 20
    CONSUMER_DEREGISTERED = 21
    PARTITION_DELETED = 25
    LEASE_HINT_ACQUIRED = 30
    LEASE_HINT_RELEASED = 31


class Drop(Enum):
    """Why a datagram was not taken."""

    SIZE = "its size is not that of a packet"
    SIGNATURE = "the signature is wrong"
    VERSION = "the version is unknown"
    KIND = "the type is unknown"
    HEADER = "sender or session are malformed"


class Packet(NamedTuple):
    kind: Kind
    sender: str
    session: int
    """When the sender began, in milliseconds; a later one replaces an earlier one."""
    sequence: int
    payload: bytes


class PayloadTooLarge(ValueError):
    pass


_KINDS: Final = {kind.value: kind for kind in Kind}


class Sealer:
    """Makes the packets of one sender in one session, with ascending sequence numbers. With a `clock`, which gives
    microseconds, a number also tells when its packet was sent; it runs ahead only while the clock does not rise."""

    def __init__(self, secret: bytes, sender: str, session: int, clock: Callable[[], int] | None = None) -> None:
        self._secret = _checked(secret)
        self._sender = sender.encode().ljust(MAX_SENDER + 1, b"\0")
        self._session = b"%016x" % session
        if not _is_name(sender.encode()) or not _is_session(self._session):
            raise ValueError(f"not a sender and its session: {sender!r}, {session!r}")
        self._sequence = 0
        self._clock = clock

    def seal(self, kind: Kind, payload: bytes) -> bytes:
        """Raises PayloadTooLarge, and then no sequence number is used up."""
        if len(payload) > MAX_PAYLOAD:
            raise PayloadTooLarge(f"{len(payload)} bytes; {MAX_PAYLOAD} are possible")
        self._sequence = self._next()
        head = _HEADER.pack(VERSION, kind, len(payload), b"", self._sender, self._session, self._sequence)
        signature = _sign(self._secret, head, payload)
        return b"".join((head[: _SIGNATURE.start], signature, head[_SIGNED_FROM:], payload))

    def _next(self) -> int:
        following = self._sequence + 1
        return following if self._clock is None else max(following, self._clock())


class Opener:
    """Takes packets of anybody who knows the secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = _checked(secret)

    def open(self, datagram: bytes) -> Packet | Drop:
        """Nothing in it is believed before the signature is."""
        if not _HEADER.size <= len(datagram) <= MAX_DATAGRAM:
            return Drop.SIZE
        head, payload = datagram[: _HEADER.size], datagram[_HEADER.size :]
        if not hmac.compare_digest(_sign(self._secret, head, payload), head[_SIGNATURE]):
            return Drop.SIGNATURE
        version, number, length, _, sender, session, sequence = _HEADER.unpack(head)
        if version != VERSION:
            return Drop.VERSION
        if length != len(payload):
            return Drop.SIZE
        kind = _KINDS.get(number)
        if kind is None:
            return Drop.KIND
        name = sender.rstrip(b"\0")
        if not _is_name(name) or not _is_session(session):
            return Drop.HEADER
        return Packet(kind, name.decode(), int(session, 16), sequence, payload)


def _sign(secret: bytes, head: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, head[_KIND] + head[_SIGNED_FROM:] + payload, "sha256")


def _checked(secret: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes, not {SECRET_BYTES}")
    return secret
