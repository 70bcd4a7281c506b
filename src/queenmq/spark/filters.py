"""Filters that the database can answer: on queue, partition, partition_id, seq and created_at.

Each narrows the plan of a batch exactly, so Spark need not look at the rows again. Whatever else a query asks for is
left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ..domain.ids import is_uuid
from .planning import TICK, Bounds

_NAMES: Final = ("queue", "partition", "partition_id")
_NEVER_NULL: Final = {
    "queue",
    "partition",
    "partition_id",
    "seq",
    "message_id",
    "transaction_id",
    "payload",
    "encrypted",
    "created_at",
}


def narrowed(bounds: Bounds, filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """The bounds with every filter that can be pushed, and those that cannot."""
    left = []
    for each in filters:
        found = _one(bounds, each)
        if found is None:
            left.append(each)
        else:
            bounds = found
    return bounds, left


def _one(bounds: Bounds, each: Filter) -> Bounds | None:
    attribute: Sequence[str] = getattr(each, "attribute", ())
    if len(attribute) != 1:
        return None
    name = attribute[0]
    if isinstance(each, IsNotNull):
        return bounds if name in _NEVER_NULL else None
    value = getattr(each, "value", None)
    if name in _NAMES:
        return _named(bounds, name, each, value)
    limits = _LIMITS.get(type(each))
    if limits is None or value is None:
        return None
    if name == "seq" and isinstance(value, int):
        return _seq(bounds, *limits(value, 1))
    if name == "created_at" and isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        try:
            return _time(bounds, *limits(moment, TICK))
        except OverflowError:  # the first or last moment of all: Spark compares
            return None
    return None


_LIMITS: Final[dict[type[Filter], Callable[[Any, Any], tuple[Any, Any]]]] = {
    EqualTo: lambda value, _: (value, value),
    EqualNullSafe: lambda value, _: (value, value),
    GreaterThan: lambda value, tick: (value + tick, None),
    GreaterThanOrEqual: lambda value, _: (value, None),
    LessThan: lambda value, tick: (None, value - tick),
    LessThanOrEqual: lambda value, _: (None, value),
}
"""For each comparison the first and the last value that pass it."""


def _named(bounds: Bounds, name: str, each: Filter, value: Any) -> Bounds | None:
    if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
        wanted: tuple[str, ...] = (value,)
    elif isinstance(each, In) and all(isinstance(one, str) for one in value):
        wanted = tuple(value)
    else:
        return None
    if name == "queue":
        return replace(bounds, queues=_both(bounds.queues, wanted))
    if name == "partition":
        return replace(bounds, partitions=_both(bounds.partitions, wanted))
    return replace(bounds, uids=_both(bounds.uids, tuple(_uuids(wanted))))


def _both(before: tuple[str, ...] | None, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """What both allow; no name of ours has a NUL, which PostgreSQL would refuse."""
    known = None if before is None else set(before)
    return tuple(one for one in wanted if "\0" not in one and (known is None or one in known))


def _uuids(values: Iterable[str]) -> Iterator[str]:
    """Only ids as they are delivered can be equal to one."""
    return (value for value in values if is_uuid(value) and value == value.lower())


def _seq(bounds: Bounds, first: int | None, last: int | None) -> Bounds:
    lo = bounds.lo if first is None else max(bounds.lo, first - 1)
    hi = bounds.hi if last is None else last if bounds.hi is None else min(bounds.hi, last)
    return replace(bounds, lo=min(lo, 2**62), hi=None if hi is None else max(hi, 0))


def _time(bounds: Bounds, first: datetime | None, last: datetime | None) -> Bounds:
    since = max(filter(None, (bounds.since, first)), default=None)
    until = min(filter(None, (bounds.until, last)), default=None)
    return replace(bounds, since=since, until=until)
