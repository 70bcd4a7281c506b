"""Workers tell each other what a waiter elsewhere wants to know, once, and to whom it concerns."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from queenmq.cluster import siblings
from queenmq.cluster.siblings import Siblings
from tests.engine.saying import until


class Room:
    """A worker's waiters: they note what they hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []
        self.attendance: list[tuple[str, bool]] = []
        self.greetings: list[int] = []

    def pushed(self, queue: str, partition: str) -> None:
        self.heard.append((queue, partition))

    def freed(self, queue: str, partition: str, group: str) -> None:
        self.heard.append((queue, partition, group))

    def told(self, kind: int, payload: bytes) -> None:
        self.heard.append((str(kind), payload.decode()))

    def attended(self, name: str, *, present: bool) -> None:
        self.attendance.append((name, present))

    def greeted(self, sibling: int) -> None:
        self.greetings.append(sibling)


class Family:
    def __init__(self, size: int) -> None:
        self._inboxes = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(size)]
        self.rooms: dict[int, Room] = {}
        self.workers: dict[int, Siblings] = {}

    def begin(self, number: int, *, listen: bool = True) -> Siblings:
        """A worker takes its place; the one before it is gone without a word."""
        if number in self.workers:
            self.workers.pop(number).close()
        inbox = self._inboxes[number][0].dup()
        outboxes = {other: pair[1].dup() for other, pair in enumerate(self._inboxes) if other != number}
        worker = self.workers[number] = Siblings(number, inbox, outboxes)
        self.rooms[number] = Room()
        if listen:
            worker.listen(self.rooms[number])
        return worker

    def inbox(self, number: int) -> socket.socket:
        inbox = self.workers[number]._inbox
        assert inbox is not None
        return inbox

    def end(self) -> None:
        for worker in self.workers.values():
            worker.close()
        for pair in self._inboxes:
            for each in pair:
                each.close()

    def send_raw(self, number: int, data: bytes) -> None:
        self._inboxes[number][1].send(data)

    async def settled(self) -> None:
        """Everything that was said has been heard."""
        await until(lambda: not any(map(self._busy, self.workers)))

    def _busy(self, number: int) -> bool:
        worker = self.workers[number]
        if worker._sending or any(sibling.unsent for sibling in worker._siblings.values()):
            return True
        try:
            self._inboxes[number][0].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
async def family() -> AsyncIterator[Callable[[int], Family]]:
    made: list[Family] = []

    def make(size: int) -> Family:
        made.append(Family(size))
        for number in range(size):
            made[-1].begin(number)
        return made[-1]

    yield make
    for each in made:
        each.end()


async def test_a_push_is_told_to_those_who_wait_for_its_queue(family: Callable[[int], Family]) -> None:
    three = family(3)
    three.workers[1].arrived("orders")
    three.workers[2].arrived("bills")
    await three.settled()
    three.workers[0].pushed([("orders", "p1"), ("other", "p2"), ("orders", "p3")])
    await three.settled()
    assert three.rooms[1].heard == [("orders", "p1"), ("orders", "p3")]
    assert three.rooms[2].heard == three.rooms[0].heard == []


async def test_who_waits_for_a_namespace_hears_of_every_queue(family: Callable[[int], Family]) -> None:
    two = family(2)
    two.workers[1].arrived(None)
    await two.settled()
    two.workers[0].pushed([("orders", "p1"), ("bills", "p2")])
    await two.settled()
    assert two.rooms[1].heard == [("orders", "p1"), ("bills", "p2")]


async def test_a_freed_partition_is_told_with_its_group(family: Callable[[int], Family]) -> None:
    two = family(2)
    two.workers[1].arrived("orders")
    await two.settled()
    two.workers[0].freed("orders", "p1", "billing")
    two.workers[0].freed("other", "p1", "billing")
    await two.settled()
    assert two.rooms[1].heard == [("orders", "p1", "billing")]


async def test_nobody_is_told_what_nobody_waits_for(family: Callable[[int], Family]) -> None:
    two = family(2)
    await two.settled()
    before = two.workers[0].sent
    two.workers[0].pushed([("orders", "p1")])
    two.workers[0].freed("orders", "p1", "billing")
    await two.settled()
    assert two.workers[0].sent == before


async def test_what_happens_in_one_turn_goes_in_one_datagram_and_once(family: Callable[[int], Family]) -> None:
    two = family(2)
    two.workers[1].arrived("orders")
    await two.settled()
    before = two.workers[0].sent
    for _ in range(3):
        two.workers[0].pushed([("orders", "p1"), ("orders", "p2")])
        two.workers[0].freed("orders", "p1", "billing")
    await two.settled()
    assert two.workers[0].sent == before + 1
    assert two.rooms[1].heard == [("orders", "p1"), ("orders", "p2"), ("orders", "p1", "billing")]


async def test_a_queue_is_waited_for_until_its_last_line_has_been_gone_for_a_while(
    family: Callable[[int], Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "_LINGER", 0.05)
    two = family(2)
    two.workers[1].arrived("orders")
    two.workers[1].arrived("orders")
    two.workers[1].left("orders")
    await two.settled()
    assert two.workers[0].stats()["waited_for"] == {"1": 1}
    assert two.workers[1]._sweeping is None, "it counts as left, although one line stands"
    two.workers[1].left("orders")
    two.workers[1].arrived("orders")
    await two.settled()
    said = two.workers[1].sent
    two.workers[1].left("orders")
    await until(lambda: two.workers[0].stats()["waited_for"] == {"1": 0})
    assert two.workers[1].sent == said + 1
    two.workers[0].pushed([("orders", "p1")])
    await two.settled()
    assert two.rooms[1].heard == []


async def test_polls_one_after_another_are_announced_once(family: Callable[[int], Family]) -> None:
    two = family(2)
    for _ in range(100):
        two.workers[1].arrived("orders")
        await asyncio.sleep(0)
        two.workers[1].left("orders")
        await asyncio.sleep(0)
    await two.settled()
    assert two.workers[1].sent == 2  # hello, and this
    assert two.workers[0].stats()["waited_for"] == {"1": 1}


async def test_a_successor_learns_for_whom_the_others_wait_and_inherits_no_waiter(
    family: Callable[[int], Family],
) -> None:
    two = family(2)
    two.workers[0].arrived("orders")
    two.workers[1].arrived("bills")
    await two.settled()
    two.begin(1)
    await two.settled()
    assert two.workers[1].stats()["waited_for"] == {"0": 1}
    assert two.workers[0].stats()["waited_for"] == {"1": 0}
    two.workers[1].pushed([("orders", "p1")])
    await two.settled()
    assert two.rooms[0].heard == [("orders", "p1")]


async def test_who_does_not_read_for_a_while_hears_everything_later_and_holds_up_nobody(
    family: Callable[[int], Family],
) -> None:
    three = family(3)
    for number in (1, 2):
        three.workers[number].arrived("orders")
    await three.settled()
    loop = asyncio.get_running_loop()
    loop.remove_reader(three.inbox(1))
    places = [("orders", f"p{n}") for n in range(3000)]
    for place in places:
        three.workers[0].pushed([place])
        await asyncio.sleep(0)
    await until(lambda: len(three.rooms[2].heard) == 3000)
    assert three.workers[0]._retrying is not None, "the inbox took everything: it is not full"
    loop.add_reader(three.inbox(1), three.workers[1]._read, three.inbox(1))
    await until(lambda: len(three.rooms[1].heard) == 3000)
    assert three.rooms[1].heard == three.rooms[2].heard == places
    assert three.workers[0].lost == 0


async def test_of_what_nobody_reads_news_is_forgotten_and_who_waits_is_not(
    family: Callable[[int], Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "_MOST_KEPT", 50)
    two = family(2)
    two.workers[1].arrived("orders")
    await two.settled()
    loop = asyncio.get_running_loop()
    loop.remove_reader(two.inbox(1))
    for n in range(3000):
        if n == 2000:
            assert two.workers[0]._retrying is not None, "the inbox is not full"
            two.workers[0].arrived("bills")
        two.workers[0].pushed([("orders", f"p{n}")])
        await asyncio.sleep(0)
    assert two.workers[0].lost > 2000
    loop.add_reader(two.inbox(1), two.workers[1]._read, two.inbox(1))
    await until(lambda: two.workers[1].stats()["waited_for"] == {"0": 1})
    await two.settled()
    assert len(two.rooms[1].heard) + two.workers[0].lost == 3000


async def test_the_last_word_about_a_queue_counts(
    family: Callable[[int], Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "_LINGER", 0.0)
    two = family(2)
    await two.settled()
    worker = two.workers[1]
    for turns in range(1, 8):
        for turn in range(turns):
            if turn % 2 == 0:
                worker.arrived("orders")
            else:
                worker.left("orders")
                worker._sweep()
        await two.settled()
        assert two.workers[0].stats()["waited_for"] == {"1": turns % 2}
        if turns % 2:
            worker.left("orders")
            worker._sweep()
            await two.settled()


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
async def test_long_names_arrive_in_as_many_datagrams_as_it_takes(family: Callable[[int], Family], letter: str) -> None:
    two = family(2)
    queue = letter * 255
    two.workers[1].arrived(queue)
    await two.settled()
    places = [(queue, f"{n:03d}" + letter * 252) for n in range(300)]
    two.workers[0].pushed(places)
    await until(lambda: len(two.rooms[1].heard) == 300)
    assert two.rooms[1].heard == places


class SmallOutbox:
    """The way into an inbox on a system whose datagrams are small."""

    def __init__(self, outbox: socket.socket, most: int) -> None:
        self._outbox = outbox
        self._most = most

    def send(self, data: bytes) -> int:
        if len(data) > self._most:
            raise OSError(errno.EMSGSIZE, "too long")
        return self._outbox.send(data)

    def close(self) -> None:
        self._outbox.close()


async def test_small_datagrams_carry_less_and_what_fits_in_none_is_left_out(family: Callable[[int], Family]) -> None:
    two = family(2)
    two.workers[1].arrived("orders")
    await two.settled()
    sibling = two.workers[0]._siblings[1]
    sibling.outbox = SmallOutbox(sibling.outbox, 300)  # type: ignore[assignment]
    short = [("orders", f"p{n}") for n in range(200)]
    two.workers[0].pushed([*short[:100], ("orders", "x" * 400), *short[100:]])
    await until(lambda: len(two.rooms[1].heard) == 200)
    assert two.rooms[1].heard == short
    assert two.workers[0].lost == 1


async def test_noise_and_strangers_are_ignored(family: Callable[[int], Family]) -> None:
    two = family(2)
    await two.settled()
    for noise in (b"", b"\xff", b"\x90", b"\x91\x07", b"\x92\x00\xa1x", b"\x92\x07\x91\x92\xa1q\xa1p"):
        two.send_raw(0, noise)
    two.workers[0].arrived("orders")
    await two.settled()
    two.workers[1].pushed([("orders", "p")])
    await two.settled()
    assert two.rooms[0].heard == [("orders", "p")]
    assert two.workers[0].lost == 4


async def test_everything_else_goes_to_all_or_to_those_concerned(family: Callable[[int], Family]) -> None:
    three = family(3)
    three.workers[1].arrived(siblings.singly("orders"))
    three.workers[2].arrived("orders")
    await three.settled()
    three.workers[0].tell(10, ("config", "orders"), b"for all")
    three.workers[0].tell(30, ("lease", "u", "g"), b"for one", concerning=siblings.singly("orders"))
    three.workers[0].tell_one(2, 1005, ("stats",), b"for two")
    await three.settled()
    assert three.rooms[1].heard == [("10", "for all"), ("30", "for one")]
    assert three.rooms[2].heard == [("10", "for all"), ("1005", "for two")]


async def test_of_what_is_said_twice_in_one_turn_the_last_counts(family: Callable[[int], Family]) -> None:
    two = family(2)
    await two.settled()
    two.workers[0].tell(30, ("lease", "u", "g"), b"acquired")
    two.workers[0].tell(31, ("lease", "u", "g"), b"released")
    await two.settled()
    assert two.rooms[1].heard == [("31", "released")]


async def test_it_is_known_who_waits_for_what_anywhere(
    family: Callable[[int], Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "_LINGER", 0.05)
    two = family(2)
    await two.settled()
    assert not two.workers[0].waited_for("orders")
    two.workers[1].glimpsed("orders")
    await until(lambda: two.workers[0].waited_for("orders"))
    assert two.workers[1].waited_for("orders")
    assert two.rooms[0].attendance == [("orders", True)]
    await until(lambda: not two.workers[0].waited_for("orders"))
    assert not two.workers[1].waited_for("orders")
    assert two.rooms[0].attendance == [("orders", True), ("orders", False)]


async def test_a_sibling_that_begins_anew_waits_for_nothing(family: Callable[[int], Family]) -> None:
    two = family(2)
    two.workers[1].arrived("orders")
    await until(lambda: two.rooms[0].attendance == [("orders", True)])
    two.rooms[0].greetings.clear()
    two.begin(1)
    await until(lambda: two.rooms[0].attendance == [("orders", True), ("orders", False)])
    assert two.rooms[0].greetings == [1]


async def test_who_is_alone_may_say_everything_to_nobody() -> None:
    alone = Siblings(0, None, {})
    alone.listen(Room())
    alone.arrived("orders")
    alone.pushed([("orders", "p1")])
    alone.tell(10, ("config",), b"")
    assert alone.waited_for("orders")
    assert alone.numbers == []
    alone.close()
