"""What several storage tests need beside a store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from queenmq.storage.pool import connect
from queenmq.storage.store import Store


@pytest.fixture
async def other(dsn: str, store: Store) -> AsyncIterator[asyncpg.Connection]:
    """A second session, to hold something while the store is used; it ends before the store does."""
    connection = await connect(dsn)
    yield connection
    await connection.close()
