"""Numbers beyond 2,147,483,647: of queues, of groups, and of a cursor's batches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.requests import TransactionAsk
from queenmq.storage import groups, retention
from queenmq.storage.eviction import evict
from tests.engine.saying import QUEUE, acks_of, ask, entry, push, read, successes

LAST = 2**31 - 1
BATCHES = "update queen.partition_consumers set batches = $1"
COUNTED = "select batches from queen.partition_consumers"
SEQUENCES = ("queen.queues_queue_id_seq", "queen.consumer_groups_metadata_group_id_seq")
EXPIRE = """
    update queen.partition_consumers set lease_expires_at = now() - interval '1 s', ready_at = now() - interval '1 s'
"""
OLD = "update queen.segments set created_at = created_at - interval '1 day'"


@pytest.fixture
async def far(broker: Broker) -> AsyncIterator[None]:
    """The next queue and the next group have numbers beyond an integer; the next test may use the database again."""
    db = broker.store.pool
    before = [await db.fetchval(f"select last_value from {name}") for name in SEQUENCES]
    for name in SEQUENCES:
        await db.execute("select setval($1::text::regclass, $2)", name, LAST + 1_000_000_000)
    yield
    for name, value in zip(SEQUENCES, before, strict=True):
        await db.execute("select setval($1::text::regclass, $2)", name, value + 1000)


async def at_the_end(broker: Broker, *payloads: object, partition: str = "p") -> None:
    """Messages in a partition whose cursor has counted as far as an integer goes."""
    await push(broker, 0, partition=partition)
    assert read(await broker.pop(ask(auto_ack=True))) == [0]
    await broker.pops.deliveries.idle()
    await broker.store.pool.execute(BATCHES, LAST)
    await push(broker, *payloads, partition=partition)


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_an_ack_counts_on(broker: Broker, status: str) -> None:
    await at_the_end(broker, 1)
    won = await broker.pop(ask())
    assert successes(await broker.ack(acks_of(won, status))) == [True]
    assert await broker.store.pool.fetchval(COUNTED) == LAST + 1


async def test_a_pop_that_acknowledges_counts_on(broker: Broker) -> None:
    await at_the_end(broker, 1)
    assert read(await broker.pop(ask(auto_ack=True))) == [1]
    await broker.pops.deliveries.idle()
    assert await broker.store.pool.fetchval(COUNTED) == LAST + 1


async def test_a_transaction_counts_on(broker: Broker) -> None:
    await at_the_end(broker, 1)
    await broker.transaction(TransactionAsk([*acks_of(await broker.pop(ask())), [entry(2)]], ()))
    assert await broker.store.pool.fetchval(COUNTED) == LAST + 1


@pytest.mark.usefixtures("far")
async def test_everything_works_with_large_numbers(broker: Broker) -> None:
    db = broker.store.pool
    await broker.store.configure(QUEUE, maxSize=100, retentionEnabled=True, completedRetentionSeconds=60)
    await push(broker, 1, 2, 3)
    won = await broker.pop(ask(batch=1, group="g"))
    assert successes(await broker.ack(acks_of(won), "g")) == [True]
    assert read(await broker.pop(ask(batch=1, group="g", auto_ack=True))) == [2]
    won = await broker.pop(ask(group="g", partition="p"))
    assert successes(await broker.ack(acks_of(won, "failed"), "g")) == [True]
    assert await groups.seek(db, "g", QUEUE, "beginning") == 2
    won = await broker.pop(ask(group="g", partitions=5))
    assert read(won) == [1, 2, 3]
    acks = [msgspec.structs.replace(each, consumer_group="g") for each in acks_of(won)]
    await broker.transaction(TransactionAsk([[entry(4)], *acks], ()))
    await db.execute(OLD)
    assert (await retention.trim(db, batch=100)).messages == 3
    await broker.store.configure(QUEUE, maxWaitTimeSeconds=1)
    assert [each.messages for each in (await evict(db, batch=100)).evicted] == [1]
    [group] = [each for each in await groups.list_groups(db) if each.name == "g"]
    assert group.queue == QUEUE
    assert await db.fetchval("select min(queue_id) from queen.dead_letter_queue") > LAST
    assert await broker.store.delete_queue(QUEUE)


@pytest.mark.usefixtures("far")
async def test_numbers_are_far_beyond_an_integer(broker: Broker) -> None:
    """So that the test above tests what it says."""
    await push(broker, 1)
    await broker.pop(ask(group="g"))
    [row] = await broker.store.pool.fetch("select queue_id, group_id from queen.partition_consumers")
    assert (row["queue_id"] > LAST, row["group_id"] > LAST) == (True, True)


@pytest.mark.parametrize("how", ["failed", "expired"])
async def test_the_failures_of_a_message_are_counted_to_a_thousand_million(broker: Broker, how: str) -> None:
    """It may be retried without limit; one more than an integer holds would refuse every ack and pop."""
    most = 1_000_000_000
    await broker.store.configure(QUEUE, dlqAfterMaxRetries=False, retryDelay=0, leaseTime=60)
    await push(broker, 1)
    won = await broker.pop(ask())
    await broker.store.pool.execute("update queen.partition_consumers set retries = $1", f'{{"1": {most}}}')
    if how == "failed":
        assert successes(await broker.ack(acks_of(won, "failed"))) == [True]
    else:
        await broker.store.pool.execute(EXPIRE)
    assert read(await broker.pop(ask(partition="p"))) == [1]
    leased = "select retries ->> '1' from queen.partition_consumers where lease_id is not null"
    assert int(await broker.store.pool.fetchval(leased)) == most
