"""A pop of a partition that somebody holds does not ask the database; and it loses nothing by that."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queenmq.cluster.packets import Kind
from queenmq.cluster.siblings import singly
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.pop_states import State
from queenmq.engine.requests import TransactionAsk
from queenmq.storage.pop import QUEUE_MODE, PopResult
from tests.engine.saying import QUEUE, acks_of, ask, entry, push, read, until

SELDOM = {"poll_first": 60.0, "poll_max": 60.0}


@pytest.fixture
async def broker(database: str) -> AsyncIterator[Broker]:
    """It would not look by itself for a minute, and never probes."""
    opened = await Broker.open(EngineConfig(dsn=database, connections=4, **SELDOM))  # type: ignore[arg-type]
    opened.shared.hints._random = lambda: 1.0
    yield opened
    await opened.drain()
    await opened.close()


def looks(broker: Broker) -> int:
    """How many pops have asked the database for messages."""
    return broker.pops.tally.states[State.LEASING].entered


async def held(broker: Broker) -> PopResult:
    """Somebody holds the partition p, and it is known."""
    await broker.pop(ask(partition="p", wait=0))  # somebody wants it singly
    await push(broker, 1, 2)
    result = await broker.pop(ask(partition="p", batch=1))
    assert read(result) == [1]
    await until(lambda: len(broker.shared.hints) == 1)
    return result


async def test_a_partition_that_is_held_is_not_asked_for(broker: Broker) -> None:
    await held(broker)
    before = looks(broker)
    for _ in range(10):
        assert read(await broker.pop(ask(partition="p"))) == []
    assert looks(broker) == before
    assert broker.shared.hints.stats()["hints_used"] == 10
    assert read(await broker.pop(ask(partition="p", group="other"))) == [1, 2]


async def test_with_the_ack_it_can_be_had_again(broker: Broker) -> None:
    first = await held(broker)
    await broker.ack(acks_of(first))
    assert len(broker.shared.hints) == 0
    assert read(await broker.pop(ask(partition="p"))) == [2]


@pytest.mark.parametrize("status", ["completed", "failed", "retry"])
async def test_who_waits_for_it_is_woken_by_its_release(broker: Broker, status: str) -> None:
    await broker.store.configure(QUEUE, retryDelay=0)
    first = await held(broker)
    before = looks(broker)
    waiting = broker.pop(ask(partition="p", wait=30))
    await until(lambda: broker.pops.waiters.parked == 1)
    assert looks(broker) == before
    await broker.ack(acks_of(first, status))
    assert read(await waiting) == ([2] if status == "completed" else [1, 2])


async def test_with_the_last_message_the_hint_goes_too(broker: Broker) -> None:
    """Nothing is left for which somebody would be woken, but the next push finds no hint."""
    await broker.pop(ask(partition="p"))
    await push(broker, 1)
    first = await broker.pop(ask(partition="p"))
    await until(lambda: len(broker.shared.hints) == 1)
    await broker.ack(acks_of(first))
    assert len(broker.shared.hints) == 0


@pytest.mark.parametrize("how", ["completed", "failed", "transaction"])
async def test_the_end_of_a_lease_is_told(broker: Broker, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await held(broker)
    told: list[object] = []

    def tell(kind: int, name: tuple[str, ...], payload: bytes, *, concerning: str | None = None) -> None:
        told.append((kind, name, concerning))

    monkeypatch.setattr(broker.shared.siblings, "tell", tell)
    if how == "transaction":
        await broker.transaction(TransactionAsk([*acks_of(first)], ()))
    else:
        await broker.ack(acks_of(first, how))
    uid = first.claims[0].partition_uid
    assert told == [(Kind.LEASE_HINT_RELEASED, ("lease", uid, QUEUE_MODE), singly(QUEUE))]


async def test_a_transaction_ends_a_lease_too(broker: Broker) -> None:
    first = await held(broker)
    await broker.transaction(TransactionAsk([*acks_of(first), [entry(3, "p")]], ()))
    assert read(await broker.pop(ask(partition="p"))) == [2, 3]


async def test_a_hint_ends_with_a_fifth_of_the_lease(broker: Broker) -> None:
    """The lease is still held then: the database says so."""
    await broker.store.configure(QUEUE, leaseTime=20)
    await held(broker)
    told = next(iter(broker.shared.hints._each()))[2].confirmed
    before = looks(broker)
    for after, asked in ((3.9, 0), (4.1, 1)):
        broker.shared.hints._clock = lambda after=after: told + after  # type: ignore[misc]
        assert read(await broker.pop(ask(partition="p"))) == []
        assert looks(broker) == before + asked


async def test_a_false_hint_is_found_out_by_a_probe(broker: Broker) -> None:
    await broker.pop(ask(partition="p"))
    await push(broker, 1)
    uid = broker.store.directory.uid(QUEUE, "p")
    assert uid is not None
    broker.shared.hints.acquired(uid, QUEUE_MODE, broker.shared.server_id, QUEUE, 3600)
    assert read(await broker.pop(ask(partition="p"))) == []
    broker.shared.hints._random = lambda: 0.0
    assert read(await broker.pop(ask(partition="p"))) == [1]
    assert broker.shared.hints.stats()["hints_wrong"] == 1


async def test_a_true_hint_stays_after_a_probe(broker: Broker) -> None:
    await held(broker)
    broker.shared.hints._random = lambda: 0.0
    assert read(await broker.pop(ask(partition="p"))) == []
    assert broker.shared.hints.stats()["hints_right"] == 1
    assert len(broker.shared.hints) == 1


async def test_pops_from_any_partition_know_no_hints(broker: Broker) -> None:
    await push(broker, 1)
    assert read(await broker.pop(ask())) == [1]
    assert broker.shared._brief == {}
    assert len(broker.shared.hints) == 0


async def test_without_caches_there_are_no_hints(database: str) -> None:
    broker = await Broker.open(EngineConfig(dsn=database, connections=4, remember=False))
    broker.shared.hints._random = lambda: 1.0
    await broker.pop(ask(partition="p"))
    await push(broker, 1)
    assert read(await broker.pop(ask(partition="p"))) == [1]
    before = looks(broker)
    assert read(await broker.pop(ask(partition="p"))) == []
    assert looks(broker) == before + 1
    await broker.close()
