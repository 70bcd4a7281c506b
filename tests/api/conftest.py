"""An endpoint on a real socket, on a real database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.serving import Api, serving


@pytest.fixture
async def api(database: str) -> AsyncIterator[Api]:
    async with serving(database) as served:
        yield served
