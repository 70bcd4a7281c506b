"""Compressed request bodies, decompressed piece by piece as they arrive, so that a small body that would become a huge
one is stopped at the limit."""

from __future__ import annotations

import zlib

from .refusals import Refused, bad_request, body_too_large

_GZIP = 16 + zlib.MAX_WBITS
_MAX_MEMBERS = 64


class Inflater:
    """Feed it the compressed body. Raises Refused for what is too large, corrupt or cut short."""

    __slots__ = ("_left", "_limit", "_member", "_members")

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit
        self._member = zlib.decompressobj(_GZIP)
        self._members = 1

    def feed(self, data: bytes) -> bytes:
        out = [self._inflate(data)]
        while unused := self._member.unused_data:
            # A gzip file may be several in a row. Each costs more to begin than it costs to send.
            if self._members == _MAX_MEMBERS:
                raise _corrupt(f"it has more than {_MAX_MEMBERS} members")
            self._members += 1
            self._member = zlib.decompressobj(_GZIP)
            out.append(self._inflate(unused))
        return b"".join(out)

    def _inflate(self, data: bytes) -> bytes:
        try:
            out = self._member.decompress(data, self._left + 1)
        except zlib.error:
            raise _corrupt("its data is damaged") from None
        self._left -= len(out)
        if self._left < 0:
            raise body_too_large(self._limit)
        return out

    def finish(self) -> None:
        if not self._member.eof:
            raise _corrupt("it ends too early")


def _corrupt(why: str) -> Refused:
    return bad_request(f"The request body is not valid gzip: {why}.")
