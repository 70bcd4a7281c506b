"""Batching: who goes together, who waits for whom, and for how long."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from queenmq.engine import batcher
from queenmq.engine.batcher import MAX_WEIGHT, Batcher
from queenmq.engine.budget import Budget
from queenmq.engine.errors import Overloaded
from tests.engine.saying import until

FOREVER = 3600.0


class Item:
    weight = 100

    def __init__(self, name: str, lanes: int = 0, size: int = 1) -> None:
        self.name = name
        self.size = size
        self._lanes = lanes
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def lanes(self) -> int:
        return self._lanes


class Flushes:
    """Flushes that last until they are told to end."""

    def __init__(
        self,
        patience: float = FOREVER,
        max_items: int = 100,
        max_flushes: int = 4,
        gather: float = 0.0,
        budget: Budget | None = None,
    ) -> None:
        self.begun: list[list[str]] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.batcher: Batcher[Item] = Batcher(
            self._flush, patience=patience, max_items=max_items, max_flushes=max_flushes, gather=gather, budget=budget
        )

    async def _flush(self, batch: list[Item]) -> None:
        names = [item.name for item in batch]
        self.begun.append(names)
        end = self._ends.setdefault(names[0], asyncio.Event())
        await end.wait()
        for item in batch:
            item.future.set_result(item.name)

    def add(self, *names: str, lanes: int = 0, size: int = 1) -> list[Item]:
        items = [Item(name, lanes, size) for name in names]
        for item in items:
            self.batcher.add(item)
        return items

    async def end(self, first: str) -> None:
        """End the flush that begins with this request."""
        await until(lambda: first in self._ends)
        self._ends[first].set()

    async def shows(self, *batches: list[str]) -> None:
        await until(lambda: len(self.begun) >= len(batches))
        assert self.begun == list(batches)


async def test_what_arrives_in_one_turn_of_the_loop_goes_together_at_once() -> None:
    flushes = Flushes()
    items = flushes.add("a", "b", "c")
    await flushes.end("a")
    assert await asyncio.gather(*[item.future for item in items]) == ["a", "b", "c"]
    assert flushes.begun == [["a", "b", "c"]]


async def test_what_arrives_during_a_flush_waits_for_its_end_and_then_goes_together() -> None:
    flushes = Flushes()
    flushes.add("a")
    await flushes.shows(["a"])
    flushes.add("b")
    await asyncio.sleep(0)
    flushes.add("c")
    assert flushes.begun == [["a"]]
    await flushes.end("a")
    await flushes.shows(["a"], ["b", "c"])
    await flushes.end("b")
    await flushes.batcher.idle()


async def test_after_its_patience_a_flush_starts_beside_a_slow_one() -> None:
    flushes = Flushes(patience=0.001)
    flushes.add("a", lanes=1)
    await flushes.shows(["a"])
    flushes.add("b", lanes=2)
    await flushes.shows(["a"], ["b"])
    assert flushes.batcher.stats.most_in_flight == 2
    await flushes.end("b")
    await flushes.end("a")
    await flushes.batcher.idle()


async def test_flushes_beside_each_other_share_no_lane_and_nobody_overtakes_in_his() -> None:
    flushes = Flushes(patience=0.001)
    flushes.add("a", lanes=0b001)
    await flushes.shows(["a"])
    flushes.add("same", lanes=0b001)
    flushes.add("both", lanes=0b011)
    flushes.add("behind both", lanes=0b010)
    flushes.add("free", lanes=0b100)
    await flushes.shows(["a"], ["free"])
    await flushes.end("a")
    await flushes.shows(["a"], ["free"], ["same", "both", "behind both"])
    await flushes.end("same")
    await flushes.end("free")
    await flushes.batcher.idle()


async def test_there_are_never_more_flushes_than_allowed() -> None:
    flushes = Flushes(patience=0.0, max_flushes=2, max_items=1)
    flushes.add(*"abcd")
    await flushes.shows(["a"], ["b"])
    assert flushes.batcher._timer is None, "nothing will look before one has ended"
    flushes.batcher._start()
    await asyncio.sleep(0)
    assert flushes.begun == [["a"], ["b"]]
    for name in "abcd":
        await flushes.end(name)
    await flushes.batcher.idle()
    assert flushes.begun == [["a"], ["b"], ["c"], ["d"]]
    assert flushes.batcher.stats.most_in_flight == 2


async def test_a_flush_holds_so_many_items_and_a_larger_request_goes_alone() -> None:
    flushes = Flushes(max_items=10)
    flushes.add("a", "b", size=4)
    flushes.add("huge", size=50)
    flushes.add("c", "d", size=5)
    for first in ("a", "huge", "c"):
        await flushes.end(first)
    await flushes.batcher.idle()
    assert flushes.begun == [["a", "b"], ["huge"], ["c", "d"]]


async def test_a_flush_holds_so_many_bytes_and_a_heavier_request_goes_alone() -> None:
    flushes = Flushes()
    items = [Item(name) for name in ("a", "b", "huge", "c", "d")]
    for item, weight in zip(items, (0.4, 0.6, 3, 0.5, 0.5), strict=True):
        item.weight = int(MAX_WEIGHT * weight)
        flushes.batcher.add(item)
    for first in ("a", "huge", "c"):
        await flushes.end(first)
    await flushes.batcher.idle()
    assert flushes.begun == [["a", "b"], ["huge"], ["c", "d"]]


async def test_requests_take_from_the_budget_until_their_flush_has_ended() -> None:
    budget = Budget(3 * Item.weight)
    flushes = Flushes(max_flushes=1, budget=budget)
    flushes.add("a", "b")
    await until(lambda: bool(flushes.begun))
    flushes.add("c")
    with pytest.raises(Overloaded):
        flushes.add("d")
    assert (budget.used, len(flushes.batcher)) == (3 * Item.weight, 1)
    await flushes.end("a")
    await flushes.shows(["a", "b"], ["c"])
    assert budget.used == Item.weight
    await flushes.end("c")
    await flushes.batcher.idle()
    assert budget.used == 0


async def test_a_flush_that_fails_tells_everybody_and_the_next_one_runs() -> None:
    async def failing(batch: list[Item]) -> None:
        if batch[0].name == "bad":
            raise OSError("no")
        for item in batch:
            item.future.set_result(item.name)

    budget = Budget(1000)
    batcher: Batcher[Item] = Batcher(failing, patience=FOREVER, max_items=10, max_flushes=1, budget=budget)
    bad, worse, good = Item("bad"), Item("worse"), Item("good")
    batcher.add(bad)
    batcher.add(worse)
    for item in (bad, worse):
        with pytest.raises(OSError, match="no"):
            await item.future
    batcher.add(good)
    assert await good.future == "good"
    assert (batcher.stats.flushes, batcher.stats.requests, len(batcher)) == (2, 3, 0)
    assert budget.used == 0


async def test_clients_that_were_answered_together_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = count(0, 3600)
    monkeypatch.setattr(batcher, "perf_counter", lambda: next(hours))  # so they are waited for as long as it takes
    flushes = Flushes(gather=FOREVER)
    flushes.add("a", "b", "c")
    await flushes.end("a")
    await until(lambda: not flushes.batcher.stats.in_flight)
    flushes.add("a again")
    await asyncio.sleep(0)
    flushes.add("b again")
    await asyncio.sleep(0)
    assert flushes.begun == [["a", "b", "c"]]
    flushes.add("c again")
    await flushes.shows(["a", "b", "c"], ["a again", "b again", "c again"])
    await flushes.end("a again")
    await flushes.batcher.idle()


async def test_those_who_do_not_come_again_are_waited_for_a_moment_only() -> None:
    flushes = Flushes(gather=0.01)
    flushes.add("a", "b")
    await flushes.end("a")
    await until(lambda: not flushes.batcher.stats.in_flight)
    flushes.add("a again")
    await flushes.shows(["a", "b"], ["a again"])
    await flushes.end("a again")
    await until(lambda: not flushes.batcher.stats.in_flight)
    flushes.add("alone")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert flushes.begun[-1] == ["alone"], "who is alone does not wait"
    await flushes.end("alone")
    await flushes.batcher.idle()


async def test_a_busy_database_is_not_given_a_second_flush_but_a_stuck_one_is_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushes = Flushes(patience=0.001)
    flushes.batcher._least, flushes.batcher._usual = 0.001, 60.0
    may_start = flushes.batcher._may_start
    answers: list[bool] = []

    def asked() -> bool:
        answers.append(may_start())
        return answers[-1]

    monkeypatch.setattr(flushes.batcher, "_may_start", asked)
    flushes.add("slow", lanes=1)
    await flushes.shows(["slow"])
    flushes.add("next", lanes=2)
    await until(lambda: len(answers) >= 5)
    assert not any(answers)
    assert flushes.begun == [["slow"]]
    for flight in flushes.batcher._running:
        flight.begun -= 1000  # as if it had been running for so long
    await flushes.shows(["slow"], ["next"])
    for name in ("slow", "next"):
        await flushes.end(name)
    await flushes.batcher.idle()


async def test_who_has_no_patience_does_not_keep_the_worker_busy_with_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = Batcher._overdue

    def counted(batcher: Batcher[Item]) -> None:
        nonlocal looks
        looks += 1
        look(batcher)

    monkeypatch.setattr(Batcher, "_overdue", counted)
    flushes = Flushes(patience=0.0)
    flushes.add("a", lanes=1)
    await flushes.shows(["a"])
    flushes.add("b", lanes=1)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert looks < 500
    for name in "ab":
        await flushes.end(name)
    await flushes.batcher.idle()
