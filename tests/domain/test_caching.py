"""A bounded map against a simple model of it, and many who ask for one thing at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from queenmq.domain.caching import LruTtl, SingleFlight

TTL = 5
ROOM = 3
keys = st.integers(0, 5)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class LruTtlMachine(RuleBasedStateMachine):
    """The model is a list of (key, value, when it expires), the least recently used first."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.cache: LruTtl[int, int] = LruTtl(ROOM, TTL, self.clock)
        self.model: list[tuple[int, int, float]] = []
        self.counts = {"hits": 0, "misses": 0, "evictions": 0, "expirations": 0}

    def taken(self, key: int) -> tuple[int, int, float] | None:
        found = next((entry for entry in self.model if entry[0] == key), None)
        self.model = [entry for entry in self.model if entry[0] != key]
        return found

    @rule(key=keys, value=st.integers())
    def put(self, key: int, value: int) -> None:
        self.taken(key)
        self.model.append((key, value, self.clock.now + TTL))
        if len(self.model) > ROOM:
            del self.model[0]
            self.counts["evictions"] += 1
        self.cache.put(key, value)

    @rule(key=keys)
    def get(self, key: int) -> None:
        entry = self.taken(key)
        alive = entry is not None and entry[2] >= self.clock.now
        if entry is not None and alive:
            self.model.append(entry)
        self.counts["hits" if alive else "misses"] += 1
        self.counts["expirations"] += entry is not None and not alive
        assert self.cache.get(key) == (entry[1] if entry is not None and alive else None)

    @rule(key=keys)
    def pop(self, key: int) -> None:
        entry = self.taken(key)
        expected = entry[1] if entry is not None and entry[2] >= self.clock.now else None
        assert self.cache.pop(key) == expected

    @rule(seconds=st.integers(1, TTL + 1))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def clear(self) -> None:
        self.model = []
        self.cache.clear()

    @invariant()
    def same(self) -> None:
        assert len(self.cache) == len(self.model) <= ROOM
        assert list(self.cache) == [key for key, _, until in self.model if until >= self.clock.now]
        assert {name: getattr(self.cache, name) for name in self.counts} == self.counts


TestLruTtlAgainstItsModel = LruTtlMachine.TestCase
TestLruTtlAgainstItsModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class TestLruTtl:
    def test_the_least_recently_used_goes_first(self) -> None:
        cache: LruTtl[str, int] = LruTtl(2, TTL)
        cache.put("a", 1)
        cache.put("b", 2)
        assert cache.get("a") == 1
        cache.put("c", 3)
        assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
        assert (cache.evictions, len(cache)) == (1, 2)

    def test_asking_for_an_entry_does_not_prolong_its_life(self) -> None:
        clock = Clock()
        cache: LruTtl[str, int] = LruTtl(2, TTL, clock)
        cache.put("a", 1)
        clock.now = TTL
        assert cache.get("a") == 1
        clock.now = TTL + 0.1
        assert cache.get("a") is None
        assert (cache.hits, cache.misses, cache.expirations, len(cache)) == (1, 1, 1, 0)

    def test_without_room_nothing_is_remembered(self) -> None:
        cache: LruTtl[str, int] = LruTtl(0, TTL)
        cache.put("a", 1)
        assert (cache.get("a"), cache.pop("a"), len(cache), cache.evictions) == (None, None, 0, 0)


class Crowd:
    """Callers who all ask for one key; the first loader goes on when all of them have asked."""

    def __init__(self, size: int, *, fails: bool = False) -> None:
        self.flight: SingleFlight[str, int] = SingleFlight()
        self.loads = 0
        self.fails = fails
        self._missing = size
        self._complete = asyncio.Event()
        self.tasks = [asyncio.create_task(self._ask()) for _ in range(size)]

    async def _ask(self) -> int:
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        return await self.flight.load("key", self._load)

    async def _load(self) -> int:
        self.loads += 1
        number = self.loads
        await self._complete.wait()
        await asyncio.sleep(0)  # as for every answer from elsewhere, others run first
        if self.fails and number == 1:
            raise ConnectionError
        return number

    async def complete(self) -> None:
        await self._complete.wait()

    async def answers(self) -> list[int | BaseException]:
        return await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), 10)


class TestSingleFlight:
    async def test_one_of_many_loads_for_all(self) -> None:
        crowd = Crowd(1000)
        assert await crowd.answers() == [1] * 1000
        assert (crowd.loads, len(crowd.flight)) == (1, 0)

    async def test_the_failure_of_a_loader_is_its_own(self) -> None:
        crowd = Crowd(1000, fails=True)
        failed, *others = await crowd.answers()
        assert isinstance(failed, ConnectionError)
        assert others == [2] * 999
        assert (crowd.loads, len(crowd.flight)) == (2, 0)

    async def test_when_the_loader_is_cancelled_another_takes_over(self) -> None:
        crowd = Crowd(1000)
        await crowd.complete()
        crowd.tasks[0].cancel()
        cancelled, *others = await crowd.answers()
        assert isinstance(cancelled, asyncio.CancelledError)
        assert others == [2] * 999
        assert (crowd.loads, len(crowd.flight)) == (2, 0)

    async def test_who_leaves_while_waiting_disturbs_nobody(self) -> None:
        crowd = Crowd(10)
        await crowd.complete()
        crowd.tasks[5].cancel()
        answers = await crowd.answers()
        assert isinstance(answers.pop(5), asyncio.CancelledError)
        assert answers == [1] * 9
        assert crowd.loads == 1

    async def test_the_next_who_asks_loads_again(self) -> None:
        flight: SingleFlight[str, int] = SingleFlight()
        assert [await flight.load("key", answer(number)) for number in (1, 2)] == [1, 2]

    async def test_nobody_waits_forever_for_a_loader_that_hangs(self) -> None:
        flight: SingleFlight[str, int] = SingleFlight(patience=0.01)
        hanging, released = asyncio.Event(), asyncio.Event()

        async def hang() -> int:
            hanging.set()
            await released.wait()
            return 1

        first = asyncio.create_task(flight.load("key", hang))
        await hanging.wait()
        assert await asyncio.gather(*[flight.load("key", answer(2)) for _ in range(10)]) == [2] * 10
        released.set()
        assert (await first, len(flight)) == (1, 0)

    async def test_two_who_want_several_keys_share_what_they_have_in_common(self) -> None:
        flight: SingleFlight[str, str] = SingleFlight()
        asked: list[list[str]] = []
        both = asyncio.Event()

        async def load(keys: list[str]) -> Mapping[str, str]:
            asked.append(keys)
            if len(asked) == 2:
                both.set()
            await both.wait()
            return {key: key.upper() for key in keys if key != "x"}

        calls = asyncio.gather(flight.load_all(["a", "b", "x", "a"], load), flight.load_all(["x", "b", "c"], load))
        answers = tuple(await asyncio.wait_for(calls, 10))
        assert answers == ({"a": "A", "b": "B"}, {"b": "B", "c": "C"})
        assert (asked, len(flight)) == ([["a", "b", "x"], ["c"]], 0)

    async def test_of_several_keys_those_that_failed_elsewhere_are_loaded_by_who_waited(self) -> None:
        flight: SingleFlight[str, str] = SingleFlight()
        begun, broken = asyncio.Event(), asyncio.Event()

        async def fail(keys: list[str]) -> Mapping[str, str]:
            begun.set()
            await broken.wait()
            raise ConnectionError

        async def load(keys: list[str]) -> Mapping[str, str]:
            broken.set()
            return {key: key.upper() for key in keys}

        first = asyncio.create_task(flight.load_all(["a", "b"], fail))
        await begun.wait()
        assert await flight.load_all(["b", "c"], load) == {"b": "B", "c": "C"}
        with pytest.raises(ConnectionError):
            await first
        assert len(flight) == 0


def answer(number: int) -> Callable[[], Awaitable[int]]:
    async def load() -> int:
        return number

    return load
