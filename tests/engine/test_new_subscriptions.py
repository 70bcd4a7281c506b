"""A group that starts with what is new gets what was pushed after its pop arrived, and nothing from before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.storage.pop import PopResult
from tests.engine.saying import QUEUE, ask, parked, push, read, until

BY_QUEUE: dict[str, Any] = {}
BY_PARTITION: dict[str, Any] = {"partition": "p"}
BY_NAMESPACE: dict[str, Any] = {"queue": None, "namespace": "shop"}
WAYS = [BY_QUEUE, BY_PARTITION, BY_NAMESPACE]
NEW: list[dict[str, Any]] = [{"subscription_mode": "new"}, {"subscription_from": "now"}]
INSERT = "insert into queen.messages (queue, partition, payload) values ($1, $2, $3)"


async def waiting(broker: Broker, **where: Any) -> asyncio.Future[PopResult]:
    """A pop of a new group that has looked and waits."""
    before = parked(broker)
    pop = broker.pop(ask(**{"wait": 60.0, "group": "g", "subscription_mode": "new", **where}))
    await until(lambda: parked(broker) == before + 1)
    return pop


async def arrives(*pops: asyncio.Future[PopResult]) -> list[object]:
    async with asyncio.timeout(20):
        done, _ = await asyncio.wait(pops, return_when=asyncio.FIRST_COMPLETED)
    return read(done.pop().result())


@asynccontextmanager
async def another(database: str) -> AsyncIterator[Broker]:
    opened = await Broker.open(EngineConfig(dsn=database, connections=4, admin_connections=2, poll_first=0.01))
    yield opened
    await opened.drain()
    await opened.close()


@pytest.mark.parametrize("new", NEW, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_first_message_of_a_queue_that_was_not_there(
    broker: Broker, way: dict[str, Any], new: dict[str, Any]
) -> None:
    pop = await waiting(broker, **way, **new)
    if "namespace" in way:
        await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, 1)
    assert await arrives(pop) == [1]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_first_message_of_a_partition_that_was_not_there(broker: Broker, way: dict[str, Any]) -> None:
    await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, "old", partition="other")
    pop = await waiting(broker, **way)
    await push(broker, 1)
    assert await arrives(pop) == [1]


@pytest.mark.parametrize("way", [BY_QUEUE, BY_NAMESPACE], ids=str)
@pytest.mark.parametrize("there", [True, False], ids=["the queue is there", "the queue is not there"])
async def test_many_partitions_that_appear_at_once(broker: Broker, way: dict[str, Any], there: bool) -> None:
    if there:
        await broker.store.configure(QUEUE, namespace="shop")
        await push(broker, "old", partition="old")
    pops = [await waiting(broker, **way, partitions=9) for _ in range(3)]
    if not there:
        await broker.store.configure(QUEUE, namespace="shop")
    await asyncio.gather(*[push(broker, number, partition=f"p{number}") for number in range(5)])
    got: list[object] = []
    async with asyncio.timeout(20):
        while len(got) < 5:
            done, pending = await asyncio.wait(pops, return_when=asyncio.FIRST_COMPLETED)
            got += [each for pop in done for each in read(pop.result())]
            pops = [*pending, broker.pop(ask(60.0, group="g", **way, partitions=9))]
    for pop in pops:
        pop.cancel()
    assert sorted(map(str, got)) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_what_was_pushed_before_is_not_new(broker: Broker, way: dict[str, Any]) -> None:
    await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, "old")
    pop = await waiting(broker, **way)
    await push(broker, 1)
    assert await arrives(pop) == [1]


@pytest.mark.parametrize("way", [BY_QUEUE, BY_NAMESPACE], ids=str)
async def test_what_was_pushed_while_a_look_was_under_way_is_new(broker: Broker, way: dict[str, Any]) -> None:
    """It arrives before the push and registers its group after it."""
    await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, "old")
    async with broker.store.pool.acquire() as other, other.transaction():
        await other.execute("select from queen.queues where name = $1 for update", QUEUE)  # registration waits
        pop = broker.pop(ask(60.0, group="g", subscription_mode="new", **way))
        async with asyncio.timeout(20):
            while not await broker.store.pool.fetchval(  # noqa: ASYNC110  nobody signals it
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            ):
                await asyncio.sleep(0.001)
        await push(broker, 1)
    assert await arrives(pop) == [1]


async def test_the_first_that_registers_decides_for_its_group(broker: Broker) -> None:
    first = await waiting(broker)
    second = broker.pop(ask(60.0, group="g", subscription_mode="new"))
    await push(broker, 1)
    assert await arrives(first, second) == [1]
    third = broker.pop(ask(group="g", subscription_mode="new"))
    assert read(await third) == []
    second.cancel()


async def test_a_message_of_another_server_and_one_inserted_with_sql(broker: Broker, database: str) -> None:
    async with another(database) as elsewhere:
        pops = [await waiting(elsewhere, group=group, **way) for group, way in (("a", BY_QUEUE), ("b", BY_PARTITION))]
        await push(broker, 1)
        assert [await arrives(pop) for pop in pops] == [[1], [1]]
        pop = await waiting(elsewhere, queue="by sql", group="c")
        await broker.store.pool.execute(INSERT, "by sql", "x", "2")
        assert await arrives(pop) == [2]


async def test_two_servers_wait_for_the_same_group(broker: Broker, database: str) -> None:
    async with another(database) as elsewhere:
        pops = [await waiting(broker), await waiting(elsewhere)]
        await push(broker, 1)
        assert await arrives(*pops) == [1]
        for pop in pops:
            pop.cancel()


async def test_the_subscription_begins_when_the_pop_arrived(broker: Broker) -> None:
    async def clock() -> datetime:
        now: datetime = await broker.store.pool.fetchval("select clock_timestamp()")
        return now.astimezone(UTC)

    before = await clock()
    pop = await waiting(broker)
    after = await clock()
    await push(broker, 1)
    assert await arrives(pop) == [1]
    since = await broker.store.pool.fetchval(
        "select subscription_timestamp from queen.consumer_groups_metadata where subscription_mode = 'new'"
    )
    assert before <= since <= after
