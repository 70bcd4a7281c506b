"""Which messages a read covers, and how they are divided among tasks.

A plan is three arrays: for each partition, the messages (lo, hi]. It is divided by message count, so that many small
partitions share a task and one huge partition is read by several.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from .. import sql
from ..domain.segments import array
from .options import ReadOptions, Where, is_pattern

if TYPE_CHECKING:
    import numpy.typing as npt
    from adbc_driver_postgresql import dbapi

    Ints = npt.NDArray[np.int64]

log = logging.getLogger("queenmq.spark")
SMALLEST_SPLIT: Final = 10_000
"""Messages below which another task costs more than it saves."""
_STREAM_SPLITS: Final = 8
_EXAMPLES: Final = 3
TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The messages (lo, hi] of each partition, by ascending partition."""

    pids: Ints
    los: Ints
    his: Ints

    @property
    def messages(self) -> int:
        return int((self.his - self.los).sum())

    def nonempty(self) -> Ranges:
        return self.only(self.his > self.los)

    def only(self, mask: npt.NDArray[np.bool_]) -> Ranges:
        return self if mask.all() else Ranges(self.pids[mask], self.los[mask], self.his[mask])

    def encoded(self) -> bytes:
        return np.concatenate([self.pids, self.los, self.his]).astype("<i8").tobytes()

    @staticmethod
    def decoded(text: bytes) -> Ranges:
        pids, los, his = np.split(np.frombuffer(text, dtype="<i8").astype(np.int64), 3)
        return Ranges(pids, los, his)

    def between(self, los: Ints | None = None, his: Ints | None = None) -> Ranges:
        """Cut to what also lies in (los, his]."""
        low = self.los if los is None else np.maximum(self.los, los)
        high = self.his if his is None else np.minimum(self.his, his)
        return Ranges(self.pids, low, np.maximum(low, high))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What filters leave of a read: names, numbers (lo, hi], and times (both included)."""

    queues: tuple[str, ...] | None = None
    partitions: tuple[str, ...] | None = None
    uids: tuple[str, ...] | None = None
    lo: int = 0
    hi: int | None = None
    since: datetime | None = None
    until: datetime | None = None


def names_and_patterns(queues: Sequence[str]) -> tuple[list[str], list[str]]:
    """Plain names, and LIKE patterns for those with * and ?; no name stands for every queue."""
    letters = {"%": r"\%", "_": r"\_", "\\": r"\\", "*": "%", "?": "_"}
    wild = [name for name in queues or ["*"] if is_pattern(name)]
    plain = [name for name in queues if not is_pattern(name)]
    return plain, ["".join(letters.get(letter, letter) for letter in name) for name in wild]


def texts(values: Iterable[str] | None) -> str | None:
    """The text of a PostgreSQL array of texts; None stays None."""
    if values is None:
        return None
    quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def matching(cursor: dbapi.Cursor, options: ReadOptions, bounds: Bounds = Bounds()) -> Ranges:  # noqa: B008 - frozen
    """Everything stored in the partitions that the options match."""
    names = _common(options.partitions, bounds.partitions)
    plain, patterns = names_and_patterns(options.queues)
    cursor.execute(
        sql.query("spark_partitions"),
        parameters=(
            texts(plain),
            texts(patterns),
            options.namespace,
            options.task,
            texts(names),
            texts(bounds.uids),
            texts(bounds.queues),
        ),
    )
    table = cursor.fetch_arrow_table()
    pids, trimmed, last = (column.to_numpy().astype(np.int64) for column in table.columns)
    return Ranges(pids, trimmed, last)


def warn_of_unknown(cursor: dbapi.Cursor, queues: Sequence[str], what_then: str) -> None:
    """A queue comes into being with its first message, so a name that none has is no error; it may be a mistake."""
    names = [name for name in queues if not is_pattern(name)]
    cursor.execute(sql.query("spark_unknown_queues"), parameters=(texts(names),))
    unknown = [repr(name) for (name,) in cursor.fetchall()]
    if unknown:
        log.warning("there is no queue %s: %s", " and no queue ".join(unknown), what_then)


def batch_plan(cursor: dbapi.Cursor, options: ReadOptions, bounds: Bounds) -> Ranges:
    """What a batch reads."""
    stored = matching(cursor, options, bounds)
    found = stored.between(starting_at(cursor, stored, options.starting), ending_at(cursor, stored, options.ending))
    found = found.between(np.full(len(found.pids), bounds.lo, dtype=np.int64))
    if bounds.hi is not None:
        found = found.between(his=np.full(len(found.pids), bounds.hi, dtype=np.int64))
    found = found.nonempty()
    if bounds.since is not None:
        found = found.between(seqs_at(cursor, found.pids, bounds.since - TICK))
    if bounds.until is not None:
        found = found.between(his=seqs_at(cursor, found.pids, bounds.until))
    return found.nonempty()


def starting_at(cursor: dbapi.Cursor, stored: Ranges, where: Where) -> Ints:
    """For each partition the message before the first one to read."""
    if where.word == "latest":
        return stored.his
    if where.word == "time":
        assert where.time is not None
        return np.maximum(stored.los, seqs_at(cursor, stored.pids, where.time - TICK))
    if where.word == "map":
        return np.maximum(stored.los, _mapped(cursor, stored, where, otherwise=stored.los))
    return stored.los


def ending_at(cursor: dbapi.Cursor, stored: Ranges, where: Where) -> Ints:
    """For each partition the last message to read."""
    if where.word == "time":
        assert where.time is not None
        return seqs_at(cursor, stored.pids, where.time - TICK)
    if where.word == "map":
        return np.minimum(stored.his, _mapped(cursor, stored, where, otherwise=stored.his))
    return stored.his


def seqs_at(cursor: dbapi.Cursor, pids: Ints, moment: datetime) -> Ints:
    """For each partition the newest message created at or before a moment."""
    if not len(pids):
        return pids
    cursor.execute(sql.query("spark_seqs_at"), parameters=(array(pids), moment.isoformat()))
    found: Ints = cursor.fetch_arrow_table().column(0).to_numpy().astype(np.int64)
    return found


def stream_splits(messages: int) -> int:
    """Of a micro-batch that may be planned again on another machine: who writes it derives ids from the task, so the
    cores of the machine must not matter."""
    return max(1, min(_STREAM_SPLITS, messages // SMALLEST_SPLIT))


def divided(ranges: Ranges, splits: int | None) -> list[Ranges]:
    """The plan of each task; they differ by one message at most."""
    ranges = ranges.nonempty()
    total = ranges.messages
    if not total:
        return []
    parts = min(splits or default_splits(total), total)
    ends = np.cumsum(ranges.his - ranges.los)
    cuts = [total * part // parts for part in range(parts + 1)]
    return [_slice(ranges, ends, first, last) for first, last in pairwise(cuts)]


def default_splits(messages: int) -> int:
    """Twice as many as there are cores, so that one that is late does not hold up all; fewer for small reads."""
    return max(1, min(max(4, 2 * (os.cpu_count() or 1)), messages // SMALLEST_SPLIT))


def _slice(ranges: Ranges, ends: Ints, first: int, last: int) -> Ranges:
    """The messages (first, last] of a plan, counted through all its partitions."""
    begin = int(np.searchsorted(ends, first, side="right"))
    end = int(np.searchsorted(ends, last, side="left")) + 1
    pids, los, his = (column[begin:end].copy() for column in (ranges.pids, ranges.los, ranges.his))
    starts = ends[begin:end] - (his - los)
    his[-1] = los[-1] + last - starts[-1]
    los[0] += max(first - starts[0], 0)
    return Ranges(pids, los, his)


def _mapped(cursor: dbapi.Cursor, stored: Ranges, where: Where, otherwise: Ints) -> Ints:
    """The message before the one that is named for each partition."""
    queues, partitions, seqs = zip(*where.seqs, strict=True) if where.seqs else ((), (), ())
    cursor.execute(sql.query("spark_numbers"), parameters=(texts(queues), texts(partitions)))
    table = cursor.fetch_arrow_table()
    pids, numbers = (column.to_pylist() for column in table.columns)
    _warn_of_missing(where.seqs, set(numbers))
    found = otherwise.copy()
    for pid, number in zip(pids, numbers, strict=True):
        place = int(np.searchsorted(stored.pids, pid))
        if place < len(stored.pids) and stored.pids[place] == pid:
            found[place] = max(seqs[number - 1] - 1, 0)
    return found


def _warn_of_missing(seqs: Sequence[tuple[str, str, int]], there: set[int]) -> None:
    """A position for what does not exist may be a misspelt name, and then more is read than was meant."""
    missing = [f"{q!r}/{p!r}" for number, (q, p, _) in enumerate(seqs, 1) if number not in there]
    if missing:
        more = f" and {len(missing) - _EXAMPLES} more" if len(missing) > _EXAMPLES else ""
        shown = ", ".join(missing[:_EXAMPLES])
        log.warning("offsets were given for partitions that do not exist, and have no effect: %s%s", shown, more)


def _common(first: Sequence[str], second: Sequence[str] | None) -> list[str] | None:
    if second is None:
        return list(first) or None
    known = set(first)
    return [name for name in second if not first or name in known]
