"""autoAck: a message is in an answer that was delivered, or it is still there for the next pop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.deliveries import AUTO_LEASE
from queenmq.engine.requests import PopAsk
from queenmq.storage.pop import PopResult
from tests.engine.relay import Relay
from tests.engine.saying import QUEUE, ask, parked, push, read, until

WAYS: list[dict[str, Any]] = [
    {},
    {"partition": "p"},
    {"partitions": 3},
    {"queue": None, "namespace": ""},
    {"group": "g"},
    {"group": "g", "partition": "p"},
]
LEASE = (
    "select count(*), max(extract(epoch from lease_expires_at - clock_timestamp()))"
    " from queen.partition_consumers where lease_id is not null"
)
LOCK = (
    "select from queen.partition_lookup where queue_id = (select queue_id from queen.queues where name = $1) for update"
)
COUNTED = "select sum(consumed), sum(batches) from queen.partition_consumers"


def auto(batch: int = 1, **more: Any) -> PopAsk:
    """A pop of a client whose connection tells what becomes of the answer."""
    return ask(**{"batch": batch, "auto_ack": True, "confirmed": True, **more})


async def take(broker: Broker, asked: PopAsk) -> list[object]:
    """What the client reads, who then asks again at once."""
    result = await broker.pop(asked)
    broker.delivered(asked, result)
    return read(result)


async def rest(broker: Broker) -> list[object]:
    """What the next pops of the group get, one after another."""
    got: list[object] = []
    while one := await take(broker, auto(batch=100, partitions=9)):
        got += one
    return got


@asynccontextmanager
async def another(database: str) -> AsyncIterator[Broker]:
    opened = await Broker.open(EngineConfig(dsn=database, connections=4, admin_connections=2))
    yield opened
    await opened.drain()
    await opened.close()


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_lost_replies_lose_and_double_nothing(relay: Relay, relayed: Broker, way: dict[str, Any]) -> None:
    await push(relayed, *range(40))
    chance = random.Random(seed := random.randrange(10**6))
    got: list[object] = []
    while len(got) < 40:
        relay.lose_replies(1, chance.choice([0, 0, 1, 2]))
        one = await take(relayed, auto(chance.choice([1, 1, 2]), **way))
        assert one, f"an answer without messages, seed {seed}"
        got += one
    assert got == list(range(40)), f"seed {seed}"
    assert relay.lost >= 10
    relay.lose_replies(0)
    assert await take(relayed, auto(**way)) == []


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_each_pop_finds_what_follows_the_answer_before_it(broker: Broker, way: dict[str, Any]) -> None:
    await push(broker, *range(30))
    got: list[object] = []
    while one := await take(broker, auto(2, **way)):
        got += one
    assert got == list(range(30))
    assert broker.stats()["pop_states"]["empty"]["entered"] == 1, "none has looked before the answer was acknowledged"


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_client_may_ask_another_server_next(broker: Broker, database: str, way: dict[str, Any]) -> None:
    """It has its answer before that server's acknowledgement has come to the database, and may not wait."""
    await push(broker, *range(30))
    async with another(database) as elsewhere:
        got: list[object] = []
        while one := await take([broker, elsewhere][len(got) % 2], auto(1, **way)):
            got += one
    assert got == list(range(30))


async def test_a_client_that_has_left_has_taken_nothing(broker: Broker) -> None:
    await push(broker, 1, 2)
    broker.undelivered(await broker.pop(auto(2)))
    assert await rest(broker) == [1, 2]
    assert broker.stats()["leases"]["given_back"] == 1


async def test_a_pop_that_waits_is_woken_when_the_client_before_it_has_left(database: str) -> None:
    config = EngineConfig(dsn=database, connections=4, poll_first=60, poll_max=60)
    broker = await Broker.open(config)
    await push(broker, 1)
    for asked in (auto(), ask()):
        result = await broker.pop(asked)
        waiting = broker.pop(ask(60.0))
        await until(lambda: parked(broker) == 1)
        broker.undelivered(result)
        async with asyncio.timeout(20):
            again = await waiting
        assert read(again) == [1]
        broker.undelivered(again)
        await broker.pops.returns.finish()
    await broker.close()


async def test_the_answer_names_no_lease_and_the_lease_behind_it_is_short(broker: Broker) -> None:
    await push(broker, 1)
    result = await broker.pop(auto())
    assert [(claim.lease_id, claim.lease_expires_at) for claim in result.claims] == [(None, None)]
    ((count, seconds),) = await broker.store.pool.fetch(LEASE)
    assert (count, AUTO_LEASE / 2 < seconds <= AUTO_LEASE) == (1, True)
    broker.undelivered(result)


async def test_a_shorter_lease_of_the_queue_counts(broker: Broker) -> None:
    await broker.store.configure(QUEUE, leaseTime=3)
    await push(broker, 1)
    for where in ({}, {"partition": "p"}, {"partitions": 2}):
        result = await broker.pop(auto(**where))
        assert (await broker.store.pool.fetch(LEASE))[0][1] <= 3
        broker.undelivered(result)
        await broker.pops.returns.finish()


async def test_what_is_delivered_is_counted(broker: Broker) -> None:
    await push(broker, 1, 2, 3)
    assert [await take(broker, auto(2)), await take(broker, auto(2))] == [[1, 2], [3]]
    await broker.pops.deliveries.idle()
    assert list(map(tuple, await broker.store.pool.fetch(COUNTED))) == [(3, 2)]


async def test_a_stop_waits_for_what_was_delivered(database: str) -> None:
    async with another(database) as broker:
        await push(broker, 1, 2)
        assert await take(broker, auto(1)) == [1]
    async with another(database) as broker:
        assert await rest(broker) == [2]


async def test_other_groups_and_queues_do_not_wait_for_an_acknowledgement(broker: Broker) -> None:
    for queue, group in ((QUEUE, "b"), ("other", "a")):
        await push(broker, 1, 2, queue=queue)
        broker.undelivered(await broker.pop(ask(queue=queue, group=group)))
    await broker.pops.returns.finish()
    asked = auto(1, group="a")
    result = await broker.pop(asked)
    async with broker.store.pool.acquire() as blocker, blocker.transaction():
        await blocker.execute(LOCK, QUEUE)
        broker.delivered(asked, result)  # its acknowledgement waits for the partition
        held = broker.pop(ask(batch=1, group="a"))
        async with asyncio.timeout(20):
            assert read(await broker.pop(ask(batch=1, group="b"))) == [1]
            assert read(await broker.pop(ask(batch=1, group="a", queue="other"))) == [1]
        assert not held.done()
    assert read(await held) == [2]


async def test_the_client_that_goes_on_drains_beside_many_others(broker: Broker, database: str) -> None:
    """Every message once, and none of the clients is told too early that there is nothing."""
    for number in range(60):
        await push(broker, number, partition=f"p{number % 4}")

    async def drain(at: Broker) -> list[object]:
        got: list[object] = []
        while one := await take(at, auto(1)):
            got += one
        return got

    async with another(database) as elsewhere:
        parts = await asyncio.gather(*[drain(at) for at in (broker, elsewhere) for _ in range(3)])
    got = [number for part in parts for number in part]
    assert sorted(map(str, got)) == sorted(map(str, range(60)))


async def test_a_reply_to_the_acknowledgement_may_be_lost_too(relay: Relay, relayed: Broker) -> None:
    await push(relayed, *range(6))
    results: list[PopResult] = []
    for _ in range(6):
        asked = auto(1)
        results.append(await relayed.pop(asked))
        relay.lose_replies(1)
        relayed.delivered(asked, results[-1])
        await relayed.pops.deliveries.idle()
    assert [each for result in results for each in read(result)] == list(range(6))
    assert relay.lost == 6
    assert list(map(tuple, await relayed.store.pool.fetch(COUNTED))) == [(6, 6)]
