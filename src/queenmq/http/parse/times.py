"""Times in queries: ISO 8601, in UTC when they do not say where."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from ...wire.names import InvalidValue

_LOST_PLUS: Final = re.compile(r" (?=\d\d:?\d\d$)")


def moment(field: str, text: str) -> datetime:
    try:
        # a + that was not encoded has become a space
        found = datetime.fromisoformat(_LOST_PLUS.sub("+", text))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidValue(field, text, "an ISO 8601 time") from None
