"""What is remembered of queues is made right again from the database, now and then and when it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from queenmq.cluster import local
from queenmq.cluster.local import Local
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from tests.engine.saying import QUEUE, push, until
from tests.storage.statements import Counted


def lease_time(broker: Broker) -> int | None:
    config = broker.store.directory.configs.snapshot.get(QUEUE)
    return None if config is None else config.lease_time


async def poisoned(broker: Broker) -> None:
    """It remembers something wrong, and believes it is newer than everything."""
    await broker.store.configure(QUEUE, leaseTime=30)
    await push(broker, 1)
    configs = broker.store.directory.configs
    configs.force(QUEUE, msgspec.structs.replace(configs.snapshot[QUEUE], lease_time=1, version=2**60))


@contextmanager
def counted(broker: Broker) -> Iterator[Counted]:
    pool = broker.store.pool
    asked = Counted(pool)
    broker.store.pool = asked  # type: ignore[assignment]
    yield asked
    broker.store.pool = pool


async def test_it_happens_now_and_then(database: str) -> None:
    broker = await Broker.open(EngineConfig(dsn=database, refresh_every=0.05))
    for _ in range(2):
        await poisoned(broker)
        await until(lambda: lease_time(broker) == 30)
    await broker.close()


async def test_it_happens_when_a_server_comes_back(broker: Broker) -> None:
    await poisoned(broker)
    broker.shared.told(Local.REFRESH, b"")
    await until(lambda: lease_time(broker) == 30)


async def test_many_wishes_are_one_question(broker: Broker) -> None:
    await poisoned(broker)
    with counted(broker) as asked:
        for _ in range(100):
            broker.shared.told(Local.REFRESH, b"")
        await until(lambda: lease_time(broker) == 30)
    assert len(asked.seen) == 1


async def test_a_configuration_that_is_wanted_is_learned_once(broker: Broker) -> None:
    await broker.store.configure(QUEUE, leaseTime=30)
    broker.store.directory.configs.remove(QUEUE)
    with counted(broker) as asked:
        for _ in range(100):
            broker._refresher.learn(QUEUE)
        await until(lambda: lease_time(broker) == 30)
        broker._refresher.learn("no such queue")
        await until(lambda: not broker._refresher._learning)
    assert len(asked.seen) == 2


async def test_without_caches_nothing_is_learned(database: str) -> None:
    broker = await Broker.open(EngineConfig(dsn=database, remember=False))
    broker._refresher.learn(QUEUE)
    assert broker._refresher._learning == set()
    await broker.close()


async def test_the_gateway_is_told_the_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, bytes]] = []
    monkeypatch.setattr(broker.shared, "gateway", 7)
    monkeypatch.setattr(
        broker.shared.siblings, "tell_one", lambda number, kind, name, payload: told.append((number, kind, payload))
    )
    broker._refresher.soon()
    await until(lambda: bool(told))
    number, kind, payload = told[0]
    assert (number, kind) == (7, Local.CLOCK)
    now = await broker.store.pool.fetchval("select extract(epoch from clock_timestamp())::float8 * 1000")
    assert now - 60_000 < local.decode(Local.CLOCK, payload).now_ms <= now + 1


async def test_a_database_that_is_away_is_told_in_the_log_and_asked_again(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await poisoned(broker)

    async def away(*_: object) -> None:
        raise ConnectionRefusedError

    with caplog.at_level(logging.INFO, logger="queenmq.engine.refreshing"), monkeypatch.context() as patched:
        patched.setattr(type(broker.store.pool), "fetch", away)
        broker._refresher.soon()
        await until(lambda: bool(caplog.records))
        broker._refresher.learn("another")
        await until(lambda: len(caplog.records) == 2)
    broker._refresher.soon()
    await until(lambda: lease_time(broker) == 30)
