"""Compaction: directories with many small files get few large ones, in one commit.

An archive that commits every few seconds leaves a file each time. Rewriting them changes nothing for who reads the
manifest: an entry takes the small files out and puts the large ones in. The small ones stay on disk for a while, as
somebody may be reading them, and are deleted by a later compaction.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from .claims import Claims
from .commit import Nothing, Writer
from .direct import Merged
from .filesystem import Files, open_lake
from .layout import staging
from .manifest import COMPACTION, Conflict, DataFile, Log
from .reading import check_intact, selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES: Final = 128 << 20
SMALL_BYTES: Final = 16 << 20
GRACE_SECONDS: Final = 900.0
_AT_ONCE: Final = 4 << 30
"""Bytes that one commit rewrites at most; the rest is for the next one."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did. `swept` files were removed by an earlier one and are deleted."""

    directories: int = 0
    files_before: int = 0
    files_after: int = 0
    swept: int = 0


def compact(
    spark: SparkSession,
    lake: str | os.PathLike[str],
    *,
    queues: Sequence[str] = (),
    min_files: int = 8,
    target_bytes: int = TARGET_BYTES,
    grace_seconds: float = GRACE_SECONDS,
    database_url: str | None = None,
) -> Compacted:
    """Rewrite the directories that have at least `min_files` small files, until there are none. Where a lake is not in
    a file system, the database of its archive is needed: DATABASE_URL, or one that is given."""
    done = Compacted()
    limits = Limits(max(min_files, 2), target_bytes, min(SMALL_BYTES, target_bytes // 2), grace_seconds)
    database = database_url or os.environ.get("DATABASE_URL")
    compactor = Compactor(open_lake(lake, Claims(database) if database else None), "by hand")
    while step := compactor.step(spark, limits, queues):
        done = Compacted(*(a + b for a, b in zip(_counts(done), _counts(step), strict=True)))
    return done


@dataclass(frozen=True, slots=True)
class Limits:
    """A directory is rewritten when it has `min_files` files below `small_bytes`."""

    min_files: int = 32
    target_bytes: int = TARGET_BYTES
    small_bytes: int = SMALL_BYTES
    grace_seconds: float = GRACE_SECONDS


class Compactor:
    """Compacts for one user of the lake: an archive, or somebody by hand. Of two for the same user, the one that
    started later goes on."""

    def __init__(self, files: Files, user: str) -> None:
        self._files = files
        self._name = COMPACTION + user

    def tidy(self) -> None:
        """Take back what an earlier run left half done."""
        if self._files.find(staging(self._name)):
            Writer(self._files, self._name)

    def step(
        self, spark: SparkSession, limits: Limits, queues: Sequence[str] = (), log: Log | None = None
    ) -> Compacted | None:
        """One commit; None when there is nothing to do."""
        log = log or Log(self._files)
        log.refresh()
        chosen = candidates(selected(log.state.files.values(), queues), limits)
        due = _due(log, limits.grace_seconds)
        if not chosen and not due:
            return None
        for path in due:
            self._files.delete(path)
        return self._rewritten(spark, limits, log, chosen, due)

    def _rewritten(
        self, spark: SparkSession, limits: Limits, log: Log, chosen: list[DataFile], due: list[str]
    ) -> Compacted | None:
        writer = Writer(self._files, self._name, log)
        check_intact(self._files, chosen)
        source = Merged(spark, self._files, chosen) if chosen else Nothing()
        number = log.state.committed(self._name) + 1
        try:
            added = writer.write(number, source, remove=[file.path for file in chosen], swept=due)
        except Conflict:
            return None
        directories = {(file.queue, file.date, file.hour) for file in chosen}
        return Compacted(len(directories), len(chosen), len(added or ()), len(due))


def candidates(files: Iterable[DataFile], limits: Limits) -> list[DataFile]:
    """Of each directory with too many small files as many as become one of the wanted size; the fullest first."""
    places: dict[tuple[str, str, int], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.bytes < limits.small_bytes:
            places[file.queue, file.date, file.hour].append(file)
    full = sorted((small for small in places.values() if len(small) >= limits.min_files), key=len, reverse=True)
    chosen: list[DataFile] = []
    room = _AT_ONCE
    for small in full:
        taken = _fitting(small, limits.target_bytes)
        room -= sum(file.bytes for file in taken)
        if chosen and room < 0:
            break
        chosen += taken
    return chosen


def _fitting(small: list[DataFile], target_bytes: int) -> list[DataFile]:
    """The smallest ones, at least two."""
    ordered = sorted(small, key=lambda file: (file.bytes, file.path))
    sizes = accumulate(file.bytes for file in ordered)
    count = sum(size <= target_bytes for size in sizes)
    return ordered[: max(count, 2)]


def _due(log: Log, grace_seconds: float) -> list[str]:
    until = log.now() - timedelta(seconds=grace_seconds)
    return sorted(path for path, at in log.state.removed.items() if at <= until)


def _counts(done: Compacted) -> tuple[int, int, int, int]:
    return done.directories, done.files_before, done.files_after, done.swept
