"""A lease that is given back wakes who waits for its partition: here nobody looks by himself for a minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.storage.pop import PopResult
from tests.engine.relay import Relay
from tests.engine.saying import QUEUE, ask, push, read, until

UNNOTICED = "insert into queen.messages (queue, partition, payload) values ($1, 'p', '1')"


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Broker]:
    broker = await Broker.open(EngineConfig(dsn=dsn, connections=4, admin_connections=2, poll_first=60, poll_max=60))
    yield broker
    await broker.drain()
    await broker.close()


async def parked(broker: Broker, where: dict[str, object]) -> asyncio.Future[PopResult]:
    """A pop that waits, and a message that nobody has told it of."""
    await push(broker, 0)
    assert read(await broker.pop(ask(auto_ack=True))) == [0]
    waiting = broker.pop(ask(60.0, **where))  # type: ignore[arg-type]
    await until(lambda: broker.stats()["waiting"]["parked"] == 1)
    await broker.store.pool.execute(UNNOTICED, QUEUE)
    return waiting


async def leasing(broker: Broker) -> asyncio.Future[PopResult]:
    """A pop whose statement is under way."""
    before = broker.stats()["pop_states"]["leasing"]["entered"]
    pop = broker.pop(ask())
    while broker.stats()["pop_states"]["leasing"]["entered"] == before:  # noqa: ASYNC110  it must not end meanwhile
        await asyncio.sleep(0)
    return pop


WHERE: list[dict[str, object]] = [{}, {"partition": "p"}, {"queue": None, "namespace": ""}]


@pytest.mark.parametrize("where", WHERE, ids=str)
async def test_because_its_client_left(database: str, where: dict[str, object]) -> None:
    async with opened(database) as broker:
        waiting = await parked(broker, where)
        (await leasing(broker)).cancel()
        async with asyncio.timeout(20):
            assert read(await waiting) == [1]
        assert broker.stats()["leases"]["given_back"] == 1


async def test_because_the_answer_that_told_of_it_was_lost_and_its_client_left(relay: Relay) -> None:
    async with opened(relay.dsn) as broker:
        waiting = await parked(broker, {})
        relay.lose_replies(1)
        (await leasing(broker)).cancel()
        async with asyncio.timeout(20):
            assert read(await waiting) == [1]
        assert relay.lost == 1
