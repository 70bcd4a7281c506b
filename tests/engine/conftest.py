"""A broker on a real database, and a relay in front of PostgreSQL that can lose what it is told to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from tests.engine.relay import Relay


@pytest.fixture
async def broker(database: str) -> AsyncIterator[Broker]:
    opened = await Broker.open(EngineConfig(dsn=database, connections=4))
    yield opened
    await opened.drain()
    await opened.close()


@pytest.fixture
async def relay(database: str) -> AsyncIterator[Relay]:
    async with Relay(database) as running:
        yield running


@pytest.fixture
async def relayed(relay: Relay) -> AsyncIterator[Broker]:
    """A broker that reaches PostgreSQL through the relay."""
    opened = await Broker.open(EngineConfig(dsn=relay.dsn, connections=2, admin_connections=2))
    yield opened
    await opened.drain()
    await opened.close()
