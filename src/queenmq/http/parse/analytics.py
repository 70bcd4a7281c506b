"""What is asked of the analytics: a range of time, the width of its points, and which queues."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ...storage.analytics import WIDTHS, Filter
from ...storage.metrics import Bucket
from ...wire.names import InvalidValue, check_name
from ..limits import Limits
from .spelling import Names
from .text import Query
from .times import moment

MAX_POINTS: Final = 10_000
_NAMES: Final = Names(("from", "interval", "namespace", "queue", "task", "to"))
_DEFAULT_RANGE: Final = timedelta(hours=24)
# Far enough from the ends of what a time can be for buckets around them.
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AnalyticsAsk:
    """Points of one interval over [since, until)."""

    interval: Bucket
    since: datetime
    until: datetime
    which: Filter


def parse_analytics(raw: bytes, limits: Limits, now: datetime) -> AnalyticsAsk:
    """Without a range, the last 24 hours. Raises InvalidValue."""
    query = Query(raw)
    _NAMES.check(query.names)
    interval = _interval(query)
    until = _time(query, "to") or now
    since = _time(query, "from") or until - _DEFAULT_RANGE
    if since >= until:
        raise InvalidValue("from", since.isoformat(), f"a time before to ({until.isoformat()})")
    if (until - since) / WIDTHS[interval] > MAX_POINTS:
        given = f"{(until - since) / WIDTHS[interval]:.0f}"
        allowed = f"a time at most {MAX_POINTS} {interval}s before to, or with a longer interval"
        raise InvalidValue("from", f"{given} {interval}s before", allowed)
    names = (_name(query, field, limits) for field in ("queue", "namespace", "task"))
    return AnalyticsAsk(interval, since, until, Filter(*names))


def _interval(query: Query) -> Bucket:
    text = query.text("interval") or "hour"
    if text not in WIDTHS:
        raise InvalidValue("interval", text, "minute, hour or day")
    return text


def _time(query: Query, field: str) -> datetime | None:
    text = query.text(field)
    if not text:
        return None
    found = moment(field, text)
    if not _FIRST <= found <= _LAST:
        raise InvalidValue(field, text, "a time from 1970 to 9999")
    return found


def _name(query: Query, field: str, limits: Limits) -> str | None:
    value = query.text(field)
    check_name(field, value, empty=True, longest=limits.max_name_length)
    return value or None
