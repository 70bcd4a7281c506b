"""What a process may keep in memory of answers it can ask for again, and how it asks only once.

`LruTtl` is a map with a bound: the entry that nobody has used for longest goes first, and none is believed for longer
than its time to live. `SingleFlight` lets one of many who miss the same entry at the same moment load it for all.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruTtl(Generic[K, V]):
    """At most `max_entries` entries, each for `ttl` seconds from when it was put; 0 entries: remembers nothing.

    An entry that has expired takes up room, and counts for `len`, until somebody asks for it or its turn has come.
    """

    def __init__(self, max_entries: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_entries = max_entries
        self.ttl = ttl
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.expirations = 0
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is not None:
            if self._clock() <= entry[0]:
                self._entries.move_to_end(key)
                self.hits += 1
                return entry[1]
            self.expirations += 1
            self._remove(key)
        self.misses += 1
        return None

    def put(self, key: K, value: V) -> None:
        if self.max_entries <= 0:
            return
        entries = self._entries
        entries[key] = (self._clock() + self.ttl, value)
        entries.move_to_end(key)
        if len(entries) > self.max_entries:
            self.evictions += 1
            self._remove(next(iter(entries)))

    def pop(self, key: K) -> V | None:
        """Forget an entry. The answer is its value, None when there is none or it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._remove(key)
        return entry[1] if self._clock() <= entry[0] else None

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """The keys that have not expired, the least recently used first."""
        now = self._clock()
        return iter([key for key, (until, _) in self._entries.items() if now <= until])

    def _remove(self, key: K) -> None:
        """Every entry that leaves alone leaves here."""
        del self._entries[key]


class SingleFlight(Generic[K, V]):
    """Of many who ask for one key at the same time, one loads and all get what it has loaded.

    When the one who loads fails or is cancelled, that is its own affair: one of the others loads next. Who has waited
    `patience` seconds for somebody else, whose connection may hang, loads too.
    """

    def __init__(self, patience: float = 5.0) -> None:
        self._patience = patience
        self._flights: dict[K, asyncio.Future[Mapping[K, V] | None]] = {}

    def __len__(self) -> int:
        """How many keys are being loaded."""
        return len(self._flights)

    async def load(self, key: K, loader: Callable[[], Awaitable[V]]) -> V:
        async def only(keys: list[K]) -> Mapping[K, V]:
            return {key: await loader()}

        return (await self.load_all([key], only))[key]

    async def load_all(self, keys: Iterable[K], loader: Callable[[list[K]], Awaitable[Mapping[K, V]]]) -> dict[K, V]:
        """Several keys: those that nobody else is loading are loaded together. A key that the loader's answer lacks is
        not in ours either."""
        found: dict[K, V] = {}
        wanted = list(dict.fromkeys(keys))
        while wanted:
            others = {key: self._flights[key] for key in wanted if key in self._flights}
            mine = [key for key in wanted if key not in others]
            if mine:  # first, so that two who wait for each other's keys both get on
                found |= await self._lead(mine, loader)
            if others:
                await asyncio.wait(set(others.values()), timeout=self._patience)
            wanted = []
            for key, flight in others.items():
                answer = flight.result() if flight.done() else None
                if answer is None:
                    self._end(key, flight)
                    wanted.append(key)
                elif key in answer:
                    found[key] = answer[key]
        return found

    async def _lead(self, keys: list[K], loader: Callable[[list[K]], Awaitable[Mapping[K, V]]]) -> Mapping[K, V]:
        flight: asyncio.Future[Mapping[K, V] | None] = asyncio.get_running_loop().create_future()
        self._flights |= dict.fromkeys(keys, flight)
        answer = None
        try:
            answer = await loader(keys)
            return answer
        finally:
            for key in keys:
                self._end(key, flight)
            flight.set_result(answer)

    def _end(self, key: K, flight: asyncio.Future[Mapping[K, V] | None]) -> None:
        """It counts no longer, unless another has taken its place already."""
        if self._flights.get(key) is flight:
            del self._flights[key]
