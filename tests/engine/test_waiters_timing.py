"""Parked pops: when one looks although nothing was told, and who looks when another comes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from queenmq.engine.config import EngineConfig
from queenmq.engine.waiters import Key
from tests.engine.waiting_room import KEY, NEVER, USUAL, Clock, Poll, Room


@pytest.fixture
def clock() -> Clock:
    return Clock()


class TestBackoff:
    """When a line looks although nothing was told."""

    def looks(self, room: Room, clock: Clock, poll: Poll, count: int) -> list[int]:
        """The milliseconds before each look of a poll that finds nothing."""
        gaps = []
        for _ in range(count):
            before, looked = clock.time(), len(room.woken)
            while len(room.woken) == looked:
                clock.step()
            gaps.append(round(1000 * (clock.time() - before)))
            assert room.woken[-1] is poll
            room.waiters.park(poll, None)
        return gaps

    async def test_after_the_third_empty_look_the_interval_doubles_up_to_its_limit(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        assert self.looks(room, clock, room.parks(), 8) == [100, 100, 200, 400, 800, 1000, 1000, 1000]

    async def test_news_and_what_is_found_begin_it_again(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        poll = room.parks()
        other = room.parks()
        self.looks(room, clock, poll, 8)
        room.waiters.pushed("orders", "p")
        room.waiters.park(poll, None)
        assert self.looks(room, clock, poll, 3) == [100, 100, 200]
        clock.advance(0.4)
        assert room.woken[-1] is poll
        room.waiters.found(poll)
        assert room.woken[-1] is other
        room.waiters.park(other, None)
        assert self.looks(room, clock, other, 3) == [100, 100, 200]

    async def test_those_who_look_at_one_moment_count_as_one_look(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        polls = [room.arrives() for _ in range(50)]
        for poll in polls:
            room.waiters.park(poll, None)
        assert room.waiters.stats()["groups_backed_off"] == 0
        assert self.looks(room, clock, polls[0], 3) == [100, 100, 200]

    async def test_lines_look_at_the_same_moments_whenever_they_formed(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        chance = random.Random(7)
        polls = []
        for number in range(100):
            polls.append(room.parks(Key("g", f"q{number}")))
            clock.advance(chance.uniform(0, 0.02))
        looks: list[tuple[float, Key]] = []
        for _ in range(12_000):
            clock.advance(0.001)
            for poll in room.woken:
                looks.append((clock.time(), poll.key))
                room.waiters.park(poll, None)
            room.woken.clear()
        rest = [(at, key) for at, key in looks if at > 1008]
        assert len({at for at, _ in rest}) <= 7, "one common look in each second"
        for poll in polls:
            times = [at for at, key in looks if key == poll.key]
            assert max(b - a for a, b in pairwise(times)) <= 1.002
        assert len(room.waiters._rounds) <= 3

    async def test_the_end_of_a_wait_is_kept_to_by_its_line_alone(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        delayed = room.parks(Key("g", "delayed"), ready_in=0.0825)
        polls = [room.parks(Key("g", f"q{number}")) for number in range(20)]
        clock.advance(0.082)
        assert room.woken == []
        clock.advance(0.001)
        assert room.woken == [delayed]
        clock.advance(0.018)
        assert room.woken == [delayed, *polls]

    async def test_an_end_beyond_the_interval_is_kept_to_as_well(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        end = clock.time() + 0.257
        poll = room.parks(ready_in=0.257)
        times: list[float] = []
        while not times or times[-1] < end:
            clock.step()
            if len(room.woken) > len(times):
                times.append(clock.time())
                room.waiters.park(poll, max(0.0, end - clock.time()))
        assert [round(1000 * (at - 1000)) for at in times] == [100, 200, 257]

    async def test_an_end_that_comes_while_one_is_on_the_way_sends_another(self, clock: Clock) -> None:
        room = Room(NEVER, clock)
        first, second = room.parks(ready_in=0.5), room.parks()
        clock.advance(0.4)
        assert room.woken == [first], "when another had come"
        room.waiters.park(first, 0.1)
        clock.advance(0.099)
        room.waiters.pushed("orders", "p")
        assert room.woken == [first, first]
        clock.advance(0.002)
        assert room.woken == [first, first, second]

    async def test_a_cursor_that_stays_locked_is_tried_less_and_less(self, clock: Clock) -> None:
        room = Room(NEVER, clock)
        poll = room.parks(ready_in=-1)
        for looks in range(1, 9):
            while len(room.woken) < looks:
                clock.advance(0.001)
            room.waiters.park(poll, -1)
        assert clock.time() - 1000 >= 0.002 * (2**8 - 1)


class TestArriving:
    """Who comes when others wait already."""

    async def test_the_longest_waiter_looks_in_his_place(self, clock: Clock) -> None:
        room = Room(NEVER, clock)
        first = room.parks()
        clock.advance(10)
        second = Poll(room)
        assert not room.waiters.enter(second)
        clock.advance(0.01)
        assert room.woken == [first]
        room.waiters.found(first)
        assert room.woken == [first, second], "where one found something there may be more"

    async def test_in_a_line_that_has_backed_off_he_waits_for_its_turn(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        poll = self.backed_off(room, clock)
        turn = room.waiters._lines[KEY].due
        for _ in range(10):
            clock.advance(0.03)
            assert not room.waiters.enter(Poll(room), wait=30.0)
        assert (room.woken, room.waiters._lines[KEY].due) == ([], turn)
        clock.advance(1)
        assert room.woken == [poll]

    async def test_unless_he_has_no_time_for_that(self, clock: Clock) -> None:
        room = Room(USUAL, clock)
        poll = self.backed_off(room, clock)
        clock.advance(0.3)
        assert not room.waiters.enter(Poll(room), wait=0.5)
        clock.advance(0.01)
        assert room.woken == [poll]

    def backed_off(self, room: Room, clock: Clock) -> Poll:
        poll = room.parks()
        while room.waiters._lines[KEY].interval < 1:
            clock.advance(0.001)
            for each in room.woken:
                room.waiters.park(each, None)
            room.woken.clear()
        return poll


async def test_what_is_counted(clock: Clock) -> None:
    room = Room(EngineConfig(dsn="", poll_threshold=1), clock)
    for key in (KEY, KEY, Key("h", "orders"), Key("g", "orders", "p"), Key("g", namespace="shop")):
        room.parks(key)
    room.arrives(Key("g", "bills"))
    stats = {"waiters": 5, "groups_tracked": 5, "groups_in_flight": 1, "groups_backed_off": 4, "queues": 2}
    assert room.waiters.stats() == stats
