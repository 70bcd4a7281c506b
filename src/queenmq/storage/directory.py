"""What a process remembers of the database's names: partitions by (queue, partition), groups by (queue, group).

Entries are hints. A stale one makes the database refuse the call, and the caller forgets it and asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from .. import sql
from ..domain.segments import Place
from .pool import Executor, undeadlocked

MAX_ENTRIES: Final = 100_000


class GroupPlace(NamedTuple):
    queue_id: int
    group_id: int
    decided: bool


class Directory:
    """Bounded maps, oldest entry out first."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max = max_entries
        self._partitions: dict[tuple[str, str], Place] = {}
        self._groups: dict[tuple[str, str], GroupPlace] = {}

    async def partitions(self, db: Executor, names: Sequence[tuple[str, str]]) -> list[Place]:
        """The places of these partitions; the ones that do not exist are made."""
        missing = [name for name in dict.fromkeys(names) if name not in self._partitions]
        known = self._partitions
        if missing:
            known = {**{name: known[name] for name in set(names) if name in known}, **await self._resolve(db, missing)}
        return [known[name] for name in names]

    async def find(self, db: Executor, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Place]:
        """The places of those partitions that exist."""
        known = {name: self._partitions[name] for name in set(names) if name in self._partitions}
        missing = [name for name in dict.fromkeys(names) if name not in known]
        if missing:
            found = _places(missing, await db.fetch(sql.query("find_partitions"), *_columns(missing)))
            self._remember(found)
            known |= found
        return known

    async def _resolve(self, db: Executor, names: list[tuple[str, str]]) -> dict[tuple[str, str], Place]:
        found = _places(names, await db.fetch(sql.query("find_partitions"), *_columns(names)))
        absent = [name for name in names if name not in found]
        if absent:
            made = await undeadlocked(partial(db.fetch, sql.query("ensure_partitions"), *_columns(absent)))
            found |= _places(absent, made)
        self._remember(found)
        return found

    def _remember(self, found: dict[tuple[str, str], Place]) -> None:
        for name, place in found.items():
            if len(self._partitions) >= self._max:
                del self._partitions[next(iter(self._partitions))]
            self._partitions[name] = place

    def forget_partitions(self, names: Iterable[tuple[str, str]]) -> None:
        for name in names:
            self._partitions.pop(name, None)

    def group(self, queue: str, group: str) -> GroupPlace | None:
        return self._groups.get((queue, group))

    def remember_group(self, queue: str, group: str, place: GroupPlace) -> None:
        if len(self._groups) >= self._max:
            del self._groups[next(iter(self._groups))]
        self._groups[queue, group] = place

    def forget_group(self, queue: str, group: str) -> None:
        self._groups.pop((queue, group), None)

    def forget_queue(self, queue: str) -> None:
        for partition in [name for name in self._partitions if name[0] == queue]:
            del self._partitions[partition]
        for group in [name for name in self._groups if name[0] == queue]:
            del self._groups[group]


def _columns(names: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [queue for queue, _ in names], [partition for _, partition in names]


def _places(
    names: list[tuple[str, str]], rows: list[tuple[int, int, object, int, bool, bool]]
) -> dict[tuple[str, str], Place]:
    return {names[row[0] - 1]: Place(row[1], str(row[2]), row[3], row[4], row[5]) for row in rows}
