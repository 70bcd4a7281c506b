"""What a process remembers of the database's names: partitions by (queue, partition), groups by (queue, group).

Entries are hints. A stale one makes the database refuse the call, and the caller forgets it and asks again. What a
push must know of a queue's options comes from the queue's configuration: when that is replaced, the places of its
partitions are made again without asking. Of many who miss the same name at once, one asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from .. import sql
from ..domain.caching import LruTtl, SingleFlight
from ..domain.queue_config import QueueConfig
from ..domain.queue_configs import QueueConfigs
from ..domain.segments import Place
from .pool import Executor, undisturbed
from .queue_configs import load_configs_of

MAX_ENTRIES: Final = 100_000
TTL: Final = 300.0  # seconds

_K = TypeVar("_K")
_V = TypeVar("_V")
Name = tuple[str, str]


class GroupPlace(NamedTuple):
    queue_id: int
    group_id: int
    decided: bool


class _Entry:
    """A place, and the configuration that its options are from; None: they are from the partition's own row."""

    __slots__ = ("config", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.config: QueueConfig | None = None

    def fits(self, config: QueueConfig | None) -> bool:
        """Are they of the same queue? One that was deleted and made again has another id."""
        return config is None or config is self.config or config.queue_id == self.place.queue_id

    def agrees(self, config: QueueConfig | None) -> bool:
        """Do a row that was just read and what is remembered say the same?"""
        place = self.place
        return config is None or (place.queue_id, place.bounded, place.encryption_enabled) == (
            config.queue_id,
            config.bounded,
            config.encryption_enabled,
        )

    def under(self, config: QueueConfig | None) -> Place:
        """The place, with the options of this configuration. A queue without one was deleted a moment ago, which the
        database will say to whoever goes there."""
        if config is not None and config is not self.config:
            self.place = self.place._replace(bounded=config.bounded, encryption_enabled=config.encryption_enabled)
            self.config = config
        return self.place


class _Shelf(LruTtl[Name, _V]):
    """Entries by (queue, name), with an index by queue: to forget a queue takes no look at the others."""

    def __init__(self, max_entries: int, ttl: float) -> None:
        super().__init__(max_entries, ttl)
        self._queues: dict[str, set[Name]] = {}

    def put(self, key: Name, value: _V) -> None:
        super().put(key, value)
        if self.max_entries > 0:
            self._queues.setdefault(key[0], set()).add(key)

    def forget_queue(self, queue: str) -> None:
        for key in list(self._queues.get(queue, ())):
            self._remove(key)

    def clear(self) -> None:
        super().clear()
        self._queues.clear()

    def _remove(self, key: Name) -> None:
        super()._remove(key)
        names = self._queues[key[0]]
        names.remove(key)
        if not names:
            del self._queues[key[0]]


class Directory:
    """Not `enabled`: nothing is remembered or shared, every call asks the database."""

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        ttl: float = TTL,
        configs: QueueConfigs | None = None,
        enabled: bool = True,
    ) -> None:
        size = max_entries if enabled else 0
        self.configs = QueueConfigs(enabled=enabled) if configs is None else configs
        self._enabled = enabled
        self._partitions: _Shelf[_Entry] = _Shelf(size, ttl)
        self._groups: _Shelf[GroupPlace] = _Shelf(size, ttl)
        self._making: SingleFlight[Name, _Entry] = SingleFlight()
        self._finding: SingleFlight[Name, _Entry] = SingleFlight()
        self._loading: SingleFlight[str, QueueConfig] = SingleFlight()
        self._registering: SingleFlight[tuple[str, str, bool], GroupPlace | None] = SingleFlight()

    async def partitions(self, db: Executor, names: Sequence[Name]) -> list[Place]:
        """The places of these partitions; the ones that do not exist are made."""
        configs = {queue: self._config(queue) for queue in dict.fromkeys([queue for queue, _ in names])}
        entries: dict[Name, _Entry] = {}
        missing = []
        for name in dict.fromkeys(names):
            entry = self._partitions.get(name)
            if entry is None or not entry.fits(configs[name[0]]):
                missing.append(name)
            else:
                entries[name] = entry
        if missing:
            entries |= await self._made(db, missing, configs)
        unknown = [queue for queue, config in configs.items() if config is None]
        if unknown:
            configs.update(await self._configs_of(db, unknown))
        return [entries[name].under(configs[name[0]]) for name in names]

    async def find(self, db: Executor, names: Sequence[Name]) -> dict[Name, Place]:
        """The places of those partitions that exist. What they say of their queues' options may be old."""
        wanted = dict.fromkeys(names)
        known = {name: entry for name in wanted if (entry := self._partitions.get(name)) is not None}
        missing = [name for name in wanted if name not in known]
        if missing:
            known |= await self._shared(self._finding, missing, partial(self._find, db))
        return {name: entry.place for name, entry in known.items()}

    async def confirm(self, db: Executor, queues: Iterable[str]) -> None:
        """Ask the database for the configurations of these queues, whatever is remembered. A queue that does not exist
        is forgotten with its partitions."""
        wanted = list(dict.fromkeys(queues))
        found = await load_configs_of(db, wanted)
        for queue in wanted:
            if queue in found:
                self.configs.force(queue, found[queue])
            else:
                self.forget_queue(queue)

    async def registered(
        self, queue: str, group: str, decided: bool, register: Callable[[], Awaitable[GroupPlace | None]]
    ) -> GroupPlace | None:
        """What `register` answers, to the others too who wait for it. `decided`: it decides on the subscription."""
        if not self._enabled:
            return await register()
        return await self._registering.load((queue, group, decided), register)

    def uid(self, queue: str, partition: str) -> str | None:
        """The partition's public id, as far as it is remembered."""
        entry = self._partitions.get((queue, partition))
        return None if entry is None else entry.place.uid

    def group(self, queue: str, group: str) -> GroupPlace | None:
        return self._groups.get((queue, group))

    def remember_group(self, queue: str, group: str, place: GroupPlace) -> None:
        self._groups.put((queue, group), place)

    def forget_partitions(self, names: Iterable[Name]) -> None:
        for name in names:
            self._partitions.pop(name)

    def forget_group(self, queue: str, group: str) -> None:
        self._groups.pop((queue, group))

    def forget_queue(self, queue: str) -> None:
        """Its configuration, its partitions and its groups."""
        self.configs.remove(queue)
        self._partitions.forget_queue(queue)
        self._groups.forget_queue(queue)

    def stats(self) -> dict[str, int]:
        """Of the partitions."""
        shelf = self._partitions
        return {
            "size": len(shelf),
            "max_size": shelf.max_entries,
            "hits": shelf.hits,
            "misses": shelf.misses,
            "evictions": shelf.evictions,
            "expirations": shelf.expirations,
        }

    def _config(self, queue: str) -> QueueConfig | None:
        return self.configs.get(queue) if self._enabled else None

    async def _made(
        self, db: Executor, names: list[Name], configs: dict[str, QueueConfig | None]
    ) -> Mapping[Name, _Entry]:
        """Entries from the database. A configuration that says something else than their rows do is forgotten."""
        entries = await self._shared(self._making, names, partial(self._make, db))
        wrong = {name[0] for name, entry in entries.items() if not entry.agrees(configs[name[0]])}
        remembered = self.configs.snapshot  # another caller may have put it right meanwhile
        self.configs.remove_all([queue for queue in wrong if remembered.get(queue) is configs[queue]])
        configs |= dict.fromkeys(wrong)
        return entries

    async def _make(self, db: Executor, names: list[Name]) -> dict[Name, _Entry]:
        found = await self._find(db, names)
        absent = [name for name in names if name not in found]
        if absent:
            rows = await undisturbed(partial(db.fetch, sql.query("ensure_partitions"), *_columns(absent)))
            found |= self._remember(absent, rows)
        return found

    async def _find(self, db: Executor, names: list[Name]) -> dict[Name, _Entry]:
        return self._remember(names, await db.fetch(sql.query("find_partitions"), *_columns(names)))

    def _remember(self, names: list[Name], rows: list[tuple[int, int, object, int, bool, bool]]) -> dict[Name, _Entry]:
        found = {names[row[0] - 1]: _Entry(Place(row[1], str(row[2]), row[3], row[4], row[5])) for row in rows}
        for name, entry in found.items():
            self._partitions.put(name, entry)
        return found

    async def _configs_of(self, db: Executor, queues: list[str]) -> dict[str, QueueConfig]:
        return await self._shared(self._loading, queues, partial(self._load_configs, db))

    async def _load_configs(self, db: Executor, queues: list[str]) -> dict[str, QueueConfig]:
        found = await load_configs_of(db, queues)
        self.configs.put_all(found)
        return found

    async def _shared(
        self, flights: SingleFlight[_K, _V], keys: list[_K], load: Callable[[list[_K]], Awaitable[dict[_K, _V]]]
    ) -> dict[_K, _V]:
        return await flights.load_all(keys, load) if self._enabled else await load(keys)


def _columns(names: list[Name]) -> tuple[list[str], list[str]]:
    return [queue for queue, _ in names], [partition for _, partition in names]
