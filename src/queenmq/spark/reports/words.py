"""Numbers, sizes and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

NOTHING: Final = "\u2013"
_SIZES: Final = ("B", "kB", "MB", "GB", "TB")
_SPANS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def count(number: float) -> str:
    return f"{number:,.0f}"


def rate(per_second: float) -> str:
    return f"{per_second:,.3g}" if per_second < 100 else f"{per_second:,.0f}"


def share(part: float) -> str:
    return f"{100 * part:.1f} %"


def size(octets: float) -> str:
    for unit in _SIZES:
        if octets < 1000 or unit == _SIZES[-1]:
            return f"{octets:,.0f} {unit}" if unit == "B" else f"{octets:,.1f} {unit}"
        octets /= 1000
    raise AssertionError


def span(seconds: float) -> str:
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"


def moment(value: datetime | None) -> str:
    """In UTC."""
    return NOTHING if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def short(text: str, longest: int = 44) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
