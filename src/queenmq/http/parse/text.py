"""Percent-encoded text: path segments and query values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from ..errors import InvalidField

_INTEGER: Final = re.compile(r"\s*([+-]?)0*([0-9]{1,5000})\s*")
_LARGE: Final = 10**18


def segment(field: str, raw: str) -> str:
    """A path segment as its sender meant it. `raw` holds one character per byte."""
    return _text(field, raw.encode("latin-1"))


def query_values(query: bytes) -> dict[bytes, bytes]:
    """The parameters, values still encoded; the last of several with one name counts."""
    values = {}
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if b"%" in name or b"+" in name:
            name = unquote_to_bytes(name.replace(b"+", b" "))
        values[name] = value
    return values


class Query:
    """Typed access to parameters: text is strict about its encoding, booleans and integers never fail."""

    def __init__(self, raw: bytes) -> None:
        self._values: Mapping[bytes, bytes] = query_values(raw)

    @property
    def names(self) -> list[str]:
        return [name.decode(errors="replace") for name in self._values if name]

    def text(self, name: str) -> str:
        """The value; empty when it is not given."""
        return _text(name, self._values.get(name.encode(), b"").replace(b"+", b" "))

    def flag(self, name: str) -> bool:
        return self._lenient(name).lower() in ("true", "1")

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Not given or not an integer: the default. Otherwise the nearest allowed one."""
        found = _INTEGER.fullmatch(self._lenient(name))
        if not found:
            return default
        size = int(found[2]) if len(found[2]) <= 18 else _LARGE
        return max(low, min(high, -size if found[1] == "-" else size))

    def _lenient(self, name: str) -> str:
        value = self._values.get(name.encode(), b"").replace(b"+", b" ")
        return unquote_to_bytes(value).decode(errors="replace")


def _text(field: str, raw: bytes) -> str:
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidField(f"{field} must be valid UTF-8, percent-encoded", field=field) from None
