"""A site for each test. What clients do, however bad, is nothing to log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import Server
from tests.http.protocol.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as running:
        yield running


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged as a warning or worse."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [record.getMessage() for record in caplog.records] == []


@pytest.fixture
async def embedded_dsn(embedded_server: Server) -> AsyncIterator[str]:
    """An empty, migrated database: what HTTP does, does not depend on PostgreSQL's version."""
    name, schema = await embedded_server.lend()
    yield embedded_server.database(name)
    await embedded_server.take_back(name, schema)
