"""One request that PostgreSQL refuses must not fail its neighbours: the batch is halved until it stands alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..storage.errors import DatabaseUnavailable
from .batcher import R, fail
from .stats import OperationStats


async def isolated(
    batch: list[R],
    flush: Callable[[list[R]], Awaitable[None]],
    stats: OperationStats,
    failed: Callable[[list[R], Exception], None] = fail,
) -> None:
    """Flush a batch; on an error that is not the database's absence, flush its halves, each with fresh attempts."""
    try:
        await flush(batch)
    except Exception as error:
        if len(batch) == 1 or isinstance(error, DatabaseUnavailable):
            stats.failed += len(batch)
            failed(batch, error)
            return
        stats.isolated += 1
        middle = len(batch) // 2
        await isolated(batch[:middle], flush, stats, failed)
        await isolated(batch[middle:], flush, stats, failed)
