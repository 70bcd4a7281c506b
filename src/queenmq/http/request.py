"""One request as it is read from a connection, and the rules its head must keep.

The parser refuses most malformed requests. The rules here are those it leaves to its user, and those whose breach lets
one request hide inside another: they are checked again, whatever the parser's version makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import httptools

from .caller import Caller
from .inflate import inflate
from .limits import Limits
from .refusals import (
    MAX_HEADERS,
    bad_request,
    body_too_large,
    expectation_failed,
    headers_too_large,
    unknown_encoding,
)
from .room import COUNTED_FROM, Room, Share

Headers = list[tuple[bytes, bytes]]
_NOTABLE = frozenset(
    [b"authorization", b"content-encoding", b"content-length", b"expect", b"host", b"transfer-encoding"]
)
_SMALL_PIECE = 1024
_OF_THE_PACKED_BODY = (b"content-encoding", b"content-length")


class Request:
    """Filled by the parser's callbacks. `length` is None while unknown and for chunked bodies."""

    __slots__ = (
        "_limit",
        "_parts",
        "_share",
        "authorization",
        "caller",
        "expects_continue",
        "headers",
        "keep_alive",
        "length",
        "method",
        "packed",
        "read",
        "room",
        "undecided",
        "url",
        "version",
    )

    def __init__(self) -> None:
        self.url = b""
        self.headers: Headers = []
        self.method = b""
        self.version = ""
        self.keep_alive = False
        self.authorization: bytes | None = None
        self.caller: Caller | None = None
        """Who sends it, when that was found out before the body came."""
        self.undecided = False
        """Who sends it takes time to find out."""
        self.expects_continue = False
        self.length: int | None = None
        self.read = 0
        """Bytes of the body that have arrived, as they were sent."""
        self.packed = False
        """The body has to be unpacked."""
        self.room: Room | None = None
        """Where a large body is counted."""
        self._parts: list[bytes | bytearray] | None = None
        self._share: Share | None = None
        self._limit = 0

    def check_head(self, limits: Limits) -> None:
        """Raises Refused when the head breaks a rule, or announces a body that will not be read."""
        self._limit = limits.max_body_bytes
        if len(self.headers) > MAX_HEADERS:
            raise headers_too_large(limits.max_header_bytes)
        notable: dict[bytes, bytes] = {}
        for name, value in self.headers:
            if name in _NOTABLE:
                if name in notable:
                    raise bad_request(f"The header {name.decode()} is given twice.")
                notable[name] = value
        self._check_version(b"host" in notable)
        self._check_framing(notable)
        self.authorization = notable.get(b"authorization")
        if b"expect" in notable:
            self._check_expectation(notable[b"expect"])
        if b"content-encoding" in notable:
            self._check_encoding(notable[b"content-encoding"])

    def _check_version(self, has_host: bool) -> None:
        if self.version == "1.1":
            if not has_host:
                raise bad_request("The header host is missing.")
        elif self.version == "1.0":
            # Whether an HTTP/1.0 client understands a kept connection is a guess, so none is kept.
            self.keep_alive = False
        else:
            raise bad_request(f"HTTP/{self.version} is not spoken here; use HTTP/1.1.")

    def _check_framing(self, notable: dict[bytes, bytes]) -> None:
        coding = notable.get(b"transfer-encoding")
        length = notable.get(b"content-length")
        if coding is None:
            self.length = 0 if length is None else _length(length)
            if self.length > self._limit:
                raise body_too_large(self._limit)
        elif length is not None:
            raise bad_request("The headers content-length and transfer-encoding exclude each other.")
        elif coding.strip().lower() != b"chunked" or self.version == "1.0":
            raise bad_request("The header transfer-encoding must be chunked, and only HTTP/1.1 has it.")
        else:
            # The parser's callback goes on adding trailers to the list it was given; they are not headers.
            self.headers = self.headers.copy()

    def _check_expectation(self, expectation: bytes) -> None:
        if expectation.strip().lower() != b"100-continue":
            raise expectation_failed()
        self.expects_continue = self.version == "1.1" and self.length != 0

    def _check_encoding(self, encoding: bytes) -> None:
        name = encoding.strip().lower()
        if name in (b"gzip", b"x-gzip"):
            if self.length != 0:
                self.packed = True
                # Starlette's routes get the body as it is read here.
                self.headers = [header for header in self.headers if header[0] not in _OF_THE_PACKED_BODY]
        elif name not in (b"", b"identity"):
            raise unknown_encoding(name)

    def limit_body(self, limit: int) -> None:
        """Allow less than usual. Raises Refused when more is announced."""
        self._limit = min(self._limit, limit)
        if self.length is not None and self.length > self._limit:
            raise body_too_large(self._limit)

    def add(self, piece: bytes) -> None:
        """Take a piece of the body. Raises Refused as soon as it is too large."""
        self.read += len(piece)
        if self.read > self._limit:
            raise body_too_large(self._limit)
        if self.read > COUNTED_FROM and self.room is not None:
            self._count(self.room, len(piece))
        parts = self._parts
        if parts is None:
            self._parts = [piece]
        elif len(piece) >= _SMALL_PIECE:
            parts.append(piece)
        elif isinstance(last := parts[-1], bytearray):
            last += piece
        else:
            # Small pieces each kept for itself would take many times their size.
            parts.append(bytearray(piece))

    def _count(self, room: Room, size: int) -> None:
        if self._share is None:
            self._share = Share(room)
            size = self.read
        self._share.grow(size)

    def unpack(self) -> Iterator[None]:
        """Step by step. Raises Refused when the body is too large or damaged. Bodies stay packed until they are
        handled: what a client has sent is the most that it can make the server keep."""
        body = bytearray()
        yield from inflate(self.take_body(), self._limit, body)
        self._parts = [body]
        self.packed = False

    def take_body(self) -> bytes:
        """The body, once: the request does not keep it."""
        parts, self._parts = self._parts, None
        self._share = None
        if parts is None:
            return b""
        first = parts[0]
        return first if len(parts) == 1 and isinstance(first, bytes) else b"".join(parts)

    def target(self) -> tuple[bytes, bytes]:
        """Path and query, as they were sent. Raises Refused for a URL that has none."""
        try:
            url = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            raise bad_request("The URL is not valid.") from None
        return url.path or b"/", url.query or b""

    def check_size(self, limit: int) -> None:
        """Raises Refused when URL and headers are too large together."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > limit:
            raise headers_too_large(limit)

    def without_upgrade(self) -> bytes:
        """The head again, without its offer to speak another protocol."""
        lines = [b"%b %b HTTP/%b" % (self.method, self.url, self.version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(token for token in value.split(b",") if token.strip().lower() == b"close")
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])


def _length(value: bytes) -> int:
    digits = value.strip()
    if not digits.isdigit():
        raise bad_request("The header content-length is not a number.")
    if len(digits) > 18:
        raise bad_request("The header content-length is out of range.")
    return int(digits)
