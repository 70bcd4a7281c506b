"""The shape of an error: its sentence without what differs from one message to the next.

What varies is replaced by a placeholder, so that errors which mean the same are counted together. It also keeps names,
addresses and other data of users out of a report.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 300
_READ: Final = 2000
_PLACEHOLDERS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE | re.ASCII), placeholder)
    for pattern, placeholder in (
        (r"\bhttps?://[^\s\"'<>]+", "<url>"),
        (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", "<email>"),
        (r'"[^"]*"', "<text>"),
        (r"(?<!\w)'[^']*'(?!\w)", "<text>"),  # not the apostrophe of a word
        (r"`[^`]*`", "<text>"),
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
        (r"\b\d{4}-\d\d-\d\d([t ]\d\d:\d\d(:\d\d([.,]\d+)?)?\s?(z|[+-]\d\d:?\d\d)?)?", "<time>"),
        (r"\b\d+(\.\d+){3}(:\d+)?\b", "<address>"),
        (r"\b0x[0-9a-f]+\b", "<hex>"),
        (r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b", "<hex>"),
        (r"\d+([.,]\d+)*", "<n>"),
        (r"\s+", " "),
    )
)


def shape(error: str | None) -> str:
    """The same for errors that differ in numbers, ids, times, addresses and quoted texts only."""
    text = (error or "")[:_READ]
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    text = text.strip()
    return text[: LONGEST - 1] + "…" if len(text) > LONGEST else text or "(no error given)"
