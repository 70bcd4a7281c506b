"""An endpoint on a real socket, on a real database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.serving import Api, serving
from tests.conftest import Server


@pytest.fixture
async def database(embedded_server: Server) -> AsyncIterator[str]:
    """An empty, migrated database."""
    name, schema = await embedded_server.lend()
    yield embedded_server.database(name)
    await embedded_server.take_back(name, schema)


@pytest.fixture
async def api(database: str) -> AsyncIterator[Api]:
    async with serving(database) as served:
        yield served
