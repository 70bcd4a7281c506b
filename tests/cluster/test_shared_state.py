"""One façade for what workers share: each tier tells those whom it concerns, and believes nothing for too long."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queenmq.cluster import local, messages
from queenmq.cluster.local import Local
from queenmq.cluster.messages import LeaseHintAcquired, LeaseHintReleased, Message
from queenmq.cluster.shared_state import SharedState
from queenmq.cluster.siblings import Siblings
from queenmq.domain.queue_config import QueueConfig
from queenmq.domain.segments import Place
from queenmq.storage.directory import Directory, GroupPlace, _Entry
from tests.engine.saying import until

CONFIG = QueueConfig(queue_id=1, version=5, lease_time=10)


class Room:
    def __init__(self) -> None:
        self.woken: list[tuple[str, ...]] = []

    def pushed(self, queue: str, partition: str) -> None:
        self.woken.append((queue, partition))

    def freed(self, queue: str, partition: str, group: str) -> None:
        self.woken.append((queue, partition, group))

    def stats(self) -> dict[str, int]:
        return {"waiters": 2, "queues": 1, "groups_tracked": 1, "groups_in_flight": 0, "groups_backed_off": 1}


class Worker:
    def __init__(self, shared: SharedState) -> None:
        self.shared = shared
        self.room = Room()
        self.refreshed = 0
        self.unknown: list[str] = []
        shared.listen(self.room, self._refresh, self.unknown.append)

    def _refresh(self) -> None:
        self.refreshed += 1


@pytest.fixture
async def workers() -> AsyncIterator[list[Worker]]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
    made = []
    for number, pair in enumerate(pairs):
        outboxes = {other: each[1].dup() for other, each in enumerate(pairs) if other != number}
        siblings = Siblings(number, pair[0], outboxes)
        directory = Directory()
        directory._partitions.put(("orders", "p1"), _Entry(Place(1, "uid", 1, False, False)))
        made.append(Worker(SharedState(siblings, directory, server_id="here", number=number)))
    for pair in pairs:
        pair[1].close()
    yield made
    for worker in made:
        worker.shared.close()


async def quiet(workers: list[Worker]) -> None:
    """Everything that was said has been heard."""
    for _ in range(3):
        await until(lambda: not any(each.unsent for one in workers for each in one.shared.siblings._siblings.values()))
        await asyncio.sleep(0)


def hear(worker: Worker, message: Message) -> None:
    worker.shared.told(*messages.encode(message))


async def test_a_changed_configuration_is_known_to_all(workers: list[Worker]) -> None:
    workers[0].shared.config_changed("orders", CONFIG)
    await until(lambda: all(one.shared.memory.configs.get("orders") == CONFIG for one in workers))


async def test_of_two_configurations_the_higher_version_wins(workers: list[Worker]) -> None:
    newer = QueueConfig(queue_id=1, version=6, lease_time=99)
    hear(workers[1], messages.QueueConfigSet("orders", newer, 6))
    hear(workers[1], messages.QueueConfigSet("orders", CONFIG, 5))
    assert workers[1].shared.memory.configs.get("orders") == newer


async def test_a_deleted_queue_is_forgotten_everywhere_with_all_that_belongs_to_it(workers: list[Worker]) -> None:
    for one in workers:
        directory = one.shared.memory
        assert isinstance(directory, Directory)
        directory.configs.put("orders", CONFIG)
        directory.remember_group("orders", "g", GroupPlace(1, 2, True))
        one.shared.hints.acquired("uid", "g", "here", "orders", 60)
    workers[0].shared.queue_deleted("orders")
    await until(lambda: not any(one.shared.memory.configs.get("orders") for one in workers))
    for one in workers:
        directory = one.shared.memory
        assert isinstance(directory, Directory)
        assert directory.group("orders", "g") is None
        assert not one.shared.hints.likely_leased("uid", "g")


async def test_news_wakes_those_who_wait_elsewhere(workers: list[Worker]) -> None:
    workers[1].shared.arrived("orders", None)
    await until(lambda: workers[0].shared.siblings.waited_for("orders"))
    workers[0].shared.message_available([("orders", "p1"), ("bills", "p1")])
    workers[0].shared.partition_free("orders", "p2", "g")
    await until(lambda: workers[1].room.woken == [("orders", "p1"), ("orders", "p2", "g")])
    assert workers[2].room.woken == []


async def wanted(workers: list[Worker], queue: str) -> None:
    """Worker 1 has a consumer of single partitions, and everybody knows."""
    workers[1].shared.asked(queue)
    await until(lambda: all(one.shared.siblings.waited_for(f"{queue}\x1f") for one in workers))
    for one in workers:
        one.shared.memory.configs.put(queue, CONFIG)


async def test_a_lease_is_told_to_those_who_want_single_partitions(workers: list[Worker]) -> None:
    await wanted(workers, "orders")
    workers[0].shared.lease_acquired("orders", "uid", "g")
    await until(lambda: len(workers[1].shared.hints) == 1)
    assert workers[1].shared.hints.likely_leased("uid", "g")
    assert len(workers[0].shared.hints) == 1
    assert len(workers[2].shared.hints) == 0
    workers[0].shared.lease_released("orders", "uid", "g")
    await until(lambda: len(workers[1].shared.hints) == 0)
    assert len(workers[0].shared.hints) == 0


async def test_by_its_names_a_partition_is_likely_leased_until_it_is_freed(workers: list[Worker]) -> None:
    await wanted(workers, "orders")
    one = workers[1].shared
    one.hints._random = lambda: 1.0
    one.hints.acquired("uid", "g", "here", "orders", 60)
    assert one.likely_leased("orders", "p1", "g")
    assert not one.likely_leased("orders", "p1", "other")
    assert not one.likely_leased("orders", "p2", "g")
    workers[0].shared.partition_free("orders", "p1", "g")
    assert one.likely_leased("orders", "p1", "g")  # it waits for single partitions of the queue, not for the queue
    one.arrived("orders", "p1")
    await until(lambda: workers[0].shared.siblings.waited_for("orders"))
    workers[0].shared.partition_free("orders", "p1", "g")
    await until(lambda: not one.likely_leased("orders", "p1", "g"))


async def test_a_wrong_hint_is_forgotten_when_the_database_says_otherwise(workers: list[Worker]) -> None:
    one = workers[1].shared
    one.hints.acquired("uid", "g", "here", "orders", 60)
    one.hints._random = lambda: 0.0  # this look asks the database all the same
    assert not one.likely_leased("orders", "p1", "g")
    one.looked("orders", "p1", "g", leased=True)
    assert len(one.hints) == 1
    assert not one.likely_leased("orders", "p1", "g")
    one.looked("orders", "p1", "g", leased=False)
    assert len(one.hints) == 0
    assert (one.hints.stats()["hints_right"], one.hints.stats()["hints_wrong"]) == (1, 1)


async def test_who_begins_to_want_single_partitions_believes_nothing_from_before(workers: list[Worker]) -> None:
    for one in workers:
        one.shared.hints.acquired("uid", "g", "here", "orders", 60)
    workers[1].shared.asked("orders")
    workers[2].shared.arrived("orders", "p1")
    assert [len(one.shared.hints) for one in workers] == [1, 0, 0]
    workers[1].shared.hints.acquired("uid", "g", "here", "orders", 60)
    workers[1].shared.asked("orders")
    assert len(workers[1].shared.hints) == 1  # it has wanted them all along


async def test_a_lease_that_is_over_at_once_is_never_told(workers: list[Worker]) -> None:
    await wanted(workers, "orders")
    await quiet(workers)
    sent = workers[0].shared.siblings.sent
    for _ in range(100):
        workers[0].shared.lease_acquired("orders", "uid", "g")
        workers[0].shared.lease_released("orders", "uid", "g")
    workers[0].shared.lease_acquired("orders", "other", "g")
    await until(lambda: len(workers[1].shared.hints) == 1)
    assert workers[0].shared.siblings.sent == sent + 1
    assert not workers[1].shared.hints.likely_leased("uid", "g")


@pytest.mark.parametrize("freed", [False, True])
async def test_a_lease_that_another_worker_has_ended_is_not_told_any_more(workers: list[Worker], freed: bool) -> None:
    await wanted(workers, "orders")
    workers[0].shared.arrived("orders", "p1")
    await until(lambda: all(one.shared.siblings.waited_for("orders") for one in workers))
    shared = workers[0].shared
    shared.lease_acquired("orders", "uid", "g")
    shared.lease_acquired("orders", "later", "g")
    later = asyncio.get_running_loop().time() + 60
    shared._brief["uid", "g"] = (later, "orders")
    if freed:
        workers[2].shared.partition_free("orders", "p1", "g")
    else:
        workers[2].shared.lease_released("orders", "uid", "g")
    await until(lambda: list(shared._brief) in ([("later", "g")], []))
    await until(lambda: len(workers[1].shared.hints) == 1)
    assert not workers[1].shared.hints.likely_leased("uid", "g")


async def test_each_lease_is_told_in_its_own_time(workers: list[Worker]) -> None:
    await wanted(workers, "orders")
    shared = workers[0].shared
    shared.lease_acquired("orders", "first", "g")
    shared.lease_acquired("orders", "second", "g")
    later = asyncio.get_running_loop().time() + 60
    shared._brief["second", "g"] = (later, "orders")
    await until(lambda: "first" in shared.hints._hints)
    assert list(shared._brief) == [("second", "g")]
    assert shared._telling is not None
    assert shared._telling.when() == later


async def test_a_lease_that_nobody_wants_to_know_of_is_not_remembered(workers: list[Worker]) -> None:
    workers[0].shared.memory.configs.put("orders", CONFIG)
    workers[0].shared.lease_acquired("orders", "uid", "g")
    assert workers[0].shared._telling is None
    assert len(workers[0].shared.hints) == 0


async def test_a_hint_counts_for_a_fifth_of_the_lease_at_most(workers: list[Worker]) -> None:
    worker = workers[1]
    worker.shared.memory.configs.put("orders", CONFIG)
    later = int(time.time() * 1000) + 3_600_000
    before = time.monotonic()
    hear(worker, LeaseHintAcquired("uid", "g", "here", later, "orders"))
    (hint,) = worker.shared.hints._hints["uid"].values()
    assert before <= hint.expires - 2.0 <= time.monotonic()
    hear(worker, LeaseHintAcquired("old", "g", "here", 1, "orders"))
    assert len(worker.shared.hints) == 1
    hear(worker, LeaseHintReleased("uid", "g", "here", "orders"))
    assert len(worker.shared.hints) == 0


async def test_a_hint_for_a_queue_whose_lease_time_is_not_known_makes_it_known(workers: list[Worker]) -> None:
    hear(workers[1], LeaseHintAcquired("uid", "g", "here", 2**50, "orders"))
    assert workers[1].unknown == ["orders"]
    assert len(workers[1].shared.hints) == 0


async def test_hints_of_a_dead_server_count_for_nothing(workers: list[Worker]) -> None:
    worker = workers[1]
    worker.shared.memory.configs.put("orders", CONFIG)
    worker.shared.told(Local.SERVER_SEEN, local.encode(local.Server("there")))
    hear(worker, LeaseHintAcquired("uid", "g", "there", 2**50, "orders"))
    assert worker.shared.alive("there")
    assert len(worker.shared.hints) == 1
    worker.shared.told(Local.SERVER_DEAD, local.encode(local.Server("there")))
    assert not worker.shared.alive("there")
    assert len(worker.shared.hints) == 0
    hear(worker, LeaseHintAcquired("uid", "g", "there", 2**50, "orders"))
    assert not worker.shared.hints.likely_leased("uid", "g")


async def test_a_deleted_partition_is_forgotten_everywhere(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[Any] = []
    for one in workers:
        monkeypatch.setattr(one.shared.memory, "forget_partitions", forgotten.extend)
    workers[0].shared.partition_deleted("orders", "p1")
    await until(lambda: forgotten == [("orders", "p1")] * 3)


async def test_when_a_server_comes_back_configurations_are_read_again(workers: list[Worker]) -> None:
    workers[0].shared.told(Local.REFRESH, b"")
    assert workers[0].refreshed == 1


async def test_what_cannot_be_read_is_passed_over(workers: list[Worker]) -> None:
    for kind in (1, 77, 1000, 2000):
        workers[0].shared.told(kind, b"\xc1")
    assert workers[0].room.woken == []


async def test_the_statistics_are_those_of_all_workers_together(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in workers:
        one.shared.memory.configs.put("orders", CONFIG)
        one.shared.memory.configs.get("orders")
        one.shared.memory.configs.get("unknown")
    monkeypatch.setattr("queenmq.cluster.statistics._PATIENCE", 60)  # nobody waits once all have answered
    stats = await workers[0].shared.stats()
    assert stats["local_sidecars"] == 3
    assert stats["queue_config_cache"] == {"size": 1, "entries": 3, "hits": 3, "misses": 3, "hit_rate": 0.5}
    assert stats["group_backoff"] == {"groups_tracked": 3, "groups_in_flight": 0, "groups_backed_off": 3}
    assert stats["waiters"] == {"waiters": 6, "queues": 0}
    assert stats["lease_hints"]["accuracy"] == 1.0
    assert stats["silent_workers"] == []
    assert workers[0].shared._statistics._open == {}


async def test_a_queue_that_several_workers_know_counts_once(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many more than one datagram can name, of which the workers know overlapping parts."""
    monkeypatch.setattr("queenmq.cluster.statistics._PATIENCE", 60)
    for number, one in enumerate(workers):
        known = range(number * 1000, number * 1000 + 2000)
        one.shared.memory.configs.put_all({f"queue {each}": CONFIG for each in known})
        for queue, partition in (("orders", None), ("orders", "p1"), (f"bills {number}", None), (None, None)):
            one.shared.arrived(queue, partition)
    stats = await workers[1].shared.stats()
    assert (stats["queue_config_cache"]["size"], stats["queue_config_cache"]["entries"]) == (4000, 6000)
    assert stats["waiters"]["queues"] == 4


async def test_a_worker_that_does_not_answer_is_named(workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.cluster.statistics._PATIENCE", 0.05)
    inbox = workers[2].shared.siblings._inbox
    assert inbox is not None
    asyncio.get_running_loop().remove_reader(inbox)
    stats = await workers[0].shared.stats()
    assert stats["silent_workers"] == [2]
    assert stats["local_sidecars"] == 2
