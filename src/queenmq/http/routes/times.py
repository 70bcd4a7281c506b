"""Times as answers show them."""

from __future__ import annotations

from datetime import UTC, datetime


def milliseconds(moment: datetime) -> str:
    """UTC with milliseconds, as everywhere but in the messages of a pop."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")[:23] + "Z"
