"""Where in a JSON text something stands, as the path of a field: `items[1].queue`.

For bodies that no decoder takes apart, because something in them is not JSON, not Unicode or too deep. They are read
from their beginning and not to their end: a place far behind stays without a name, because it would take too long to
find.
"""

from __future__ import annotations

import re
from typing import Final

_READ: Final = 1024 * 1024
_MOST_TOKENS: Final = 200_000
_MOST_PARTS: Final = 6
_LONGEST_KEY: Final = 60
_PAIR: Final = 12
"""Bytes of two escapes."""

_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},:]', re.DOTALL)
_SURROGATES: Final = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F])|.)", re.DOTALL)
_IN_LISTS: Final = re.compile(r"(?:\[\d+\])+$")

_Path = list[str | int | None]
"""The key in every object and the index in every array around a place; None where no key is read yet."""


def field_at(body: bytes, offset: int) -> str | None:
    """The field that a byte belongs to; None when it belongs to none, or stands too far behind."""
    return None if offset > _READ else _named(_walk(body[:offset], offset))


def field_deeper_than(body: bytes, depth: int) -> str | None:
    """The first field that is nested deeper; None when it is none, or stands too far behind."""
    path = _walk(body[:_READ], depth)
    return _IN_LISTS.sub("", _named(path) or "") or None if len(path) > depth else None


def first_not_unicode(body: bytes) -> tuple[int, str] | None:
    """The first byte that is not UTF-8, or escape that is half of a surrogate pair: where it is, and what. What was cut
    in two by reading no further does not count."""
    found: list[tuple[int, str]] = []
    start = body[:_READ]
    try:
        start.decode()
    except UnicodeDecodeError as error:
        found.append((error.start, f"the byte 0x{start[error.start]:02x} is not UTF-8"))
    if b"\\ud" in start or b"\\uD" in start:
        for match in _SURROGATES.finditer(start):
            if match[1]:
                found.append((match.start(), "there is half of a surrogate pair"))
                break
    first = min(found, default=None)
    return None if first is None or first[0] > _READ - _PAIR else first


def _walk(text: bytes, depth: int) -> _Path:
    """The path at the end of the text, or where it is deeper than this."""
    path: _Path = []
    key = ""
    for count, match in enumerate(_TOKEN.finditer(text)):
        if count == _MOST_TOKENS:
            return []
        token = match[0]
        if token[0] == 0x22:
            key = token[1:-1].decode(errors="replace")[:_LONGEST_KEY]
        elif token == b"{" or token == b"[":
            path.append(None if token == b"{" else 0)
            if len(path) > depth:
                return path
        elif path:
            last = path[-1]
            if token == b"}" or token == b"]":
                path.pop()
            elif isinstance(last, int):
                path[-1] = last + 1
            else:
                path[-1] = key if token == b":" else None
    return path


def _named(path: _Path) -> str | None:
    """What stands inside a payload is its sender's affair: it is named as a whole."""
    name = ""
    for part in path[:_MOST_PARTS]:
        if part is None:
            break
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
        if part in ("payload", "data"):
            break
    return name or None
