"""Compressed request bodies, unpacked a little at a time: a few bytes can become very many. A body that would become a
huge one is stopped at the limit."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from .refusals import Refused, bad_request, body_too_large

_GZIP = 16 + zlib.MAX_WBITS
_MAX_MEMBERS = 64
_STEP = 1024
"""Bytes that are unpacked at once: they become a megabyte at most."""


def inflate(data: bytes, limit: int, out: bytearray) -> Iterator[None]:
    """Unpack into `out`, one step at a time. Raises Refused for what is too large, corrupt or cut short."""
    start, size, members = 0, len(data), 0
    while start < size:
        # A gzip file may be several in a row. Each costs more to begin than it costs to send.
        if members == _MAX_MEMBERS:
            raise _corrupt(f"it has more than {_MAX_MEMBERS} members")
        members += 1
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            if start == size:
                raise _corrupt("it ends too early")
            piece = data[start : start + _STEP]
            try:
                out += member.decompress(piece, limit - len(out) + 1)
            except zlib.error:
                raise _corrupt("its data is damaged") from None
            if len(out) > limit:
                raise body_too_large(limit)
            start += len(piece) - len(member.unused_data)
            yield


def _corrupt(why: str) -> Refused:
    return bad_request(f"The request body is not valid gzip: {why}.")
