"""A worker that remembers wrong numbers for partitions: its clients get what they named, and notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from queenmq.domain.ids import group_tag
from queenmq.domain.segments import Place, PushItem
from queenmq.engine.broker import Broker
from queenmq.storage.store import Store
from tests.engine.saying import QUEUE, ask, push, read, until

Name = tuple[str, str]
X, Y, OTHER = NAMES = [(QUEUE, "x"), (QUEUE, "y"), ("other", "x")]


def numbered(place: Place, other: Place) -> Place:
    return place._replace(partition_id=other.partition_id, uid=other.uid)


KINDS: dict[str, Callable[[dict[Name, Place]], dict[Name, Place]]] = {
    "two of one queue": lambda p: {X: numbered(p[X], p[Y]), Y: numbered(p[Y], p[X])},
    "two of different queues": lambda p: {X: numbered(p[X], p[OTHER]), OTHER: numbered(p[OTHER], p[X])},
    "whole places": lambda p: {X: p[OTHER], OTHER: p[X]},
    "one for all": lambda p: {name: numbered(p[name], p[X]) for name in NAMES},
    "nobody's": lambda p: {name: p[name]._replace(partition_id=2**40) for name in NAMES},
}


async def places(broker: Broker) -> dict[Name, Place]:
    return dict(zip(NAMES, await broker.store.directory.partitions(broker.store.pool, NAMES), strict=True))


def poison(broker: Broker, wrong: dict[Name, Place]) -> None:
    for name, place in wrong.items():
        broker.store.directory._remember([name], [(1, *place)])


@pytest.fixture(params=list(KINDS))
async def poisoned(request: pytest.FixtureRequest, broker: Broker) -> Broker:
    """Each partition holds one message, its own name; one group has it."""
    for queue, partition in NAMES:
        await push(broker, f"{queue}/{partition}", queue=queue, partition=partition)
        assert len(read(await broker.pop(ask(queue=queue, partition=partition, group="drained", auto_ack=True)))) == 1
    poison(broker, KINDS[request.param](await places(broker)))
    return broker


async def pops(broker: Broker, group: str, **more: object) -> list[list[object]]:
    """What pops of all the partitions get, at the same time."""
    asked = [broker.pop(ask(queue=queue, partition=at, group=group, **more)) for queue, at in NAMES]  # type: ignore[arg-type]
    return [read(result) for result in await asyncio.gather(*asked)]


@pytest.mark.parametrize("auto_ack", [True, False])
async def test_a_pop_gets_only_messages_of_the_partition_it_names(poisoned: Broker, auto_ack: bool) -> None:
    assert await pops(poisoned, "g", auto_ack=auto_ack) == [[f"{queue}/{at}"] for queue, at in NAMES]
    assert await pops(poisoned, "g", auto_ack=auto_ack) == [[], [], []]


async def test_a_pop_that_waits_is_woken_for_the_partition_it_names(poisoned: Broker) -> None:
    waiting = asyncio.ensure_future(pops(poisoned, "drained", wait=30.0))
    await until(lambda: poisoned.stats()["waiting"]["parked"] == len(NAMES))
    for queue, at in NAMES:
        await push(poisoned, f"more of {queue}/{at}", queue=queue, partition=at)
    assert await waiting == [[f"more of {queue}/{at}"] for queue, at in NAMES]


async def test_pushes_arrive_where_they_are_sent(poisoned: Broker) -> None:
    await asyncio.gather(*[push(poisoned, "more", queue=queue, partition=at) for queue, at in NAMES])
    for queue, at in NAMES:
        assert read(await poisoned.pop(ask(queue=queue, partition=at, group="g"))) == [f"{queue}/{at}", "more"]


async def test_a_partition_that_does_not_exist_is_empty_whatever_is_remembered(broker: Broker) -> None:
    await push(broker, 1, partition="x")
    known = (await broker.store.directory.partitions(broker.store.pool, [X]))[0]
    poison(broker, {(QUEUE, "nowhere"): known})
    assert read(await broker.pop(ask(partition="nowhere"))) == []
    await push(broker, 2, partition="nowhere")
    assert read(await broker.pop(ask(partition="nowhere"))) == [2]
    assert read(await broker.pop(ask(partition="x"))) == [1]


async def test_a_queue_that_somebody_else_has_deleted_and_made_again(broker: Broker) -> None:
    """Neither the group nor the partition is what it was."""
    await push(broker, 1)
    assert read(await broker.pop(ask(partition="p", auto_ack=True))) == [1]
    elsewhere = Store(broker.store.pool)
    await elsewhere.delete_queue(QUEUE)
    await elsewhere.push([PushItem(QUEUE, b"2", "p")])
    assert read(await broker.pop(ask(partition="p"))) == [2]


async def mistaken(broker: Broker, *queues: str, group: str = "g", options: dict[str, Any] | None = None) -> None:
    """Queues with a message each, its queue's name, and a worker that takes each one's group for that of the next."""
    for queue in queues:
        await broker.store.configure(queue, **(options or {}))
        await push(broker, 0, queue=queue, partition="x")
        assert read(await broker.pop(ask(queue=queue, group=group, auto_ack=True))) == [0]
    await broker.pops.deliveries.idle()
    for queue in queues:
        await push(broker, queue, queue=queue, partition="x")
    directory = broker.store.directory
    known = [directory.group(queue, group) for queue in queues]
    for queue, place in zip(queues, known[1:] + known[:1], strict=True):
        assert place is not None
        directory.remember_group(queue, group, place)


WAYS: list[dict[str, object]] = [{}, {"partitions": 3}, {"auto_ack": True}, {"partition": "x"}, {"wait": 30.0}]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("options", [{}, {"windowBuffer": 0, "ttl": 3600}], ids=["plain", "with a condition"])
@pytest.mark.parametrize("queues", [["a", "b"], [f"q{number}" for number in range(6)]], ids=["two", "many"])
async def test_a_pop_gets_only_messages_of_the_group_it_names(
    broker: Broker, queues: list[str], options: dict[str, Any], way: dict[str, object]
) -> None:
    """As after a failover to a replica that had not heard of the groups, which then got the numbers of others."""
    await mistaken(broker, *queues, options=options)
    asked = [broker.pop(ask(queue=queue, group="g", **way)) for queue in queues]  # type: ignore[arg-type]
    assert [read(result) for result in await asyncio.gather(*asked)] == [[queue] for queue in queues]


async def test_a_pop_that_has_the_right_group_is_not_disturbed(broker: Broker) -> None:
    """Both ask under the same number, and only for one of them it is the right one."""
    await mistaken(broker, "a", "b")
    place = broker.store.directory.group("a", "g")
    assert place is not None
    broker.store.directory.remember_group("b", "g", place)  # now "a" is wrong and "b" is right
    asked = [broker.pop(ask(queue=queue, group="g")) for queue in ("a", "b", "b", "a")]
    assert [read(result) for result in await asyncio.gather(*asked)] == [["a"], ["b"], [], []]


async def test_a_group_from_before_gets_its_tag_when_it_is_registered_again(broker: Broker) -> None:
    await mistaken(broker, "a", "b")
    await broker.store.pool.execute("update queen.consumer_groups_metadata set tag = null")
    for queue in ("a", "b"):
        broker.store.directory.forget_group(queue, "g")
        assert read(await broker.pop(ask(queue=queue, group="g"))) == [queue]
    rows = await broker.store.pool.fetch(
        "select q.name, m.tag from queen.consumer_groups_metadata m join queen.queues q using (queue_id)"
    )
    assert {row["name"]: row["tag"] for row in rows} == {queue: group_tag(queue, "g") for queue in ("a", "b")}
