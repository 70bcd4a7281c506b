"""Parked pops: who is woken, in which order, by what, and that nothing said between a look and the parking is lost."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from queenmq.engine.waiters import Key
from tests.engine.saying import until
from tests.engine.waiting_room import KEY, QUICK, Poll, Room


@pytest.fixture
async def room() -> Room:
    return Room()


async def test_a_push_wakes_one_waiter_for_each_partition_and_the_longest_waits_no_longer(room: Room) -> None:
    first, second, third = room.parks(), room.parks(), room.parks()
    room.waiters.pushed("orders", "p")
    assert room.woken == [first]
    room.waiters.pushed("orders", "q")
    assert room.woken == [first, second]
    assert third not in room.woken
    assert room.waiters.parked == 1


async def test_one_message_sends_one_of_a_thousand(room: Room) -> None:
    polls = [room.parks() for _ in range(1000)]
    room.waiters.pushed("orders", "p")
    assert room.woken == polls[:1]
    room.waiters.found(polls[0])
    assert room.woken == polls[:1]
    assert room.waiters.parked == 999


async def test_each_line_that_forms_and_dissolves_is_told(room: Room) -> None:
    elsewhere = Key("g", namespace="shop")
    first, second, third, fourth = room.arrives(), room.parks(), room.parks(Key("h", "orders")), room.parks(elsewhere)
    assert room.attendance == {"orders": 2, None: 1}
    room.waiters.found(first)
    assert room.attendance == {"orders": 2, None: 1}
    for poll in (second, third, fourth):
        poll.gone = True
        room.waiters.remove(poll)
    assert room.attendance == {"orders": 0, None: 0}


async def test_who_finds_nothing_takes_his_old_place(room: Room) -> None:
    first, second = room.parks(), room.parks()
    room.waiters.pushed("orders", "p")
    room.waiters.park(first, None)
    room.waiters.pushed("orders", "p")
    assert room.woken == [first, first]
    assert second not in room.woken


async def test_news_between_a_look_and_the_parking_is_not_lost(room: Room) -> None:
    poll = room.arrives()
    room.waiters.pushed("orders", "p")
    assert room.woken == []
    room.waiters.park(poll, None)
    assert room.woken == [poll]


async def test_news_is_for_waiters_only_and_does_not_pile_up(room: Room) -> None:
    poll = room.parks()
    for _ in range(5):
        room.waiters.pushed("orders", "p")
    assert room.woken == [poll]
    room.waiters.found(poll)
    assert room.waiters.lines == 0
    late = room.parks()
    assert late not in room.woken


@pytest.mark.parametrize(
    ("key", "wakes"),
    [
        (Key("g", "orders"), True),
        (Key("other", "orders"), True),
        (Key("g", "orders", "p"), True),
        (Key("g", "orders", "q"), False),
        (Key("g", "bills"), False),
        (Key("g", None, None, "shop"), True),
    ],
)
async def test_a_push_is_told_to_whom_it_may_concern(room: Room, key: Key, wakes: bool) -> None:
    poll = room.parks(key)
    room.waiters.pushed("orders", "p")
    assert room.woken == ([poll] if wakes else [])


@pytest.mark.parametrize(
    ("key", "wakes"),
    [
        (Key("g", "orders"), True),
        (Key("other", "orders"), False),
        (Key("g", "orders", "p"), True),
        (Key("g", "orders", "q"), False),
        (Key("g", None, None, "shop"), True),
        (Key("other", None, None, "shop"), False),
    ],
)
async def test_a_freed_partition_is_told_to_its_group(room: Room, key: Key, wakes: bool) -> None:
    poll = room.parks(key)
    room.waiters.freed("orders", "p", "g")
    assert room.woken == ([poll] if wakes else [])


async def test_who_has_left_is_not_woken_and_costs_nothing(room: Room) -> None:
    polls = [room.parks() for _ in range(100)]
    for poll in polls[:-1]:
        poll.gone = True
        room.waiters.remove(poll)
    assert room.waiters.parked == 1
    room.waiters.pushed("orders", "p")
    assert room.woken == polls[-1:]
    room.waiters.found(polls[-1])
    assert (room.waiters.parked, room.waiters.lines, room.waiters.all()) == (0, 0, [])


async def test_a_cursor_that_becomes_ready_is_looked_at_then(room: Room) -> None:
    poll = room.parks(ready_in=0.01)
    room.parks()
    await until(lambda: bool(room.woken))
    assert room.woken == [poll]


async def test_one_looks_for_all_from_time_to_time_and_less_often_when_nothing_comes() -> None:
    room = Room(QUICK)
    loop = asyncio.get_running_loop()
    first = room.parks()
    room.parks()
    times = [loop.time()]
    for look in range(1, 7):
        await until(lambda look=look: len(room.woken) == look)  # type: ignore[misc]
        times.append(loop.time())
        assert room.woken[-1] is first
        room.waiters.park(first, None)
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps[4:]) >= 0.019


async def test_after_a_look_on_suspicion_that_finds_something_the_next_one_looks_too() -> None:
    room = Room(QUICK)
    first, second, third = room.parks(), room.parks(), room.parks()
    await until(lambda: bool(room.woken))
    room.waiters.found(first)
    assert room.woken == [first, second]
    room.waiters.park(second, None)
    assert third not in room.woken


async def test_waiters_left_behind_by_one_who_found_something_are_still_looked_after() -> None:
    room = Room(QUICK)
    first, second = room.parks(), room.parks()
    room.waiters.pushed("orders", "p")
    line = room.waiters._lines[KEY]
    turn = line.due
    await until(lambda: line.due != turn)  # the others' turn comes while the first is on its way
    assert room.woken == [first]
    room.waiters.found(first)
    await until(lambda: second in room.woken)


async def test_who_comes_just_after_another_found_nothing_waits_with_him_and_looks_soon(room: Room) -> None:
    first = room.parks()
    second = Poll(room)
    assert not room.waiters.enter(second)
    assert room.waiters.parked == 2
    await until(lambda: bool(room.woken))
    assert room.woken == [first], "one looks for both"


async def test_after_news_everybody_looks_at_once_again(room: Room) -> None:
    first = room.parks()
    room.waiters.pushed("orders", "p")
    assert room.woken == [first]
    assert room.waiters.enter(Poll(room))


async def test_looking_again_and_again_leaves_nothing_behind() -> None:
    room = Room(QUICK)
    room.parks(ready_in=3600)
    for looks in range(1, 20):
        await until(lambda looks=looks: len(room.woken) == looks)  # type: ignore[misc]
        room.waiters.park(room.woken[-1], 3600)
    assert len(room.waiters._due) <= 2


async def test_who_leaves_on_the_way_sends_the_next_one(room: Room) -> None:
    first, second = room.parks(), room.parks()
    room.waiters.pushed("orders", "p")
    room.waiters.left(first)
    assert room.woken == [first, second]


async def test_who_fails_does_not_send_the_others_after_him(room: Room) -> None:
    first = room.parks()
    room.parks()
    room.waiters.pushed("orders", "p")
    room.waiters.failed(first)
    assert room.woken == [first]
    assert room.waiters.parked == 1


class TestNamespaces:
    """Waiters who name no queue."""

    KEY = Key("g", namespace="shop")

    def parks(self, room: Room, *queues: str) -> Poll:
        poll = room.arrives(self.KEY)
        room.waiters.park(poll, None, queues)
        return poll

    async def test_a_push_to_one_of_their_queues_wakes(self, room: Room) -> None:
        poll = self.parks(room, "shop.orders")
        room.waiters.pushed("shop.orders", "p")
        assert room.woken == [poll]

    async def test_a_queue_they_have_not_heard_of_wakes_once(self, room: Room) -> None:
        poll = self.parks(room, "shop.orders")
        for _ in range(3):
            room.waiters.pushed("mail", "p")
        assert room.woken == [poll]
        room.waiters.park(poll, None, ["shop.orders"])
        room.waiters.pushed("mail", "p")
        room.waiters.freed("mail", "p", "g")
        assert room.woken == [poll]
        room.waiters.freed("shop.orders", "p", "g")
        assert room.woken == [poll, poll]

    async def test_a_queue_that_has_joined_the_namespace_wakes(self, room: Room) -> None:
        poll = self.parks(room)
        room.waiters.pushed("mail", "p")
        room.waiters.park(poll, None, ["mail"])
        room.waiters.pushed("mail", "p")
        assert room.woken == [poll, poll]
