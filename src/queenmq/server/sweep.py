"""One pass of everything that removes what is no longer kept: retention, eviction, idle partitions, sweeps, old rows.

Each part is a loop of short transactions, so it can run beside traffic and be interrupted at any moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from queenmq.server.settings import Settings
from queenmq.storage import metrics, operations, retention
from queenmq.storage.eviction import evict
from queenmq.storage.pool import Executor
from queenmq.storage.schema_state import require_current
from queenmq.storage.store import Store

_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Swept:
    """What one part removed."""

    what: str
    count: int


async def sweep(settings: Settings, dsn: str, report: Callable[[str], None]) -> list[Swept]:
    """Run one pass. Raises SchemaMissing when the database is not migrated."""
    store = await Store.open(
        dsn,
        size=settings.db_pool_size,
        statement_timeout_ms=settings.db_statement_timeout,
        connect_timeout=settings.connect_timeout,
        pgbouncer=settings.pgbouncer,
    )
    try:
        await require_current(store.pool)
        return [swept async for swept in _pass(store.pool, settings, report)]
    finally:
        await store.close()


async def _pass(db: Executor, settings: Settings, report: Callable[[str], None]) -> AsyncIterator[Swept]:
    batch = settings.retention_batch_size
    idle = settings.partition_cleanup_days * _DAY
    old = settings.metrics_retention_days * _DAY
    yield Swept("messages that waited too long, now dead letters", await _evict(db, settings.eviction_batch_size))
    yield Swept("messages past their retention", await _trim(db, batch, report))
    yield Swept("idle partitions", await _remove_idle(db, idle, batch))
    yield Swept("messages of deleted queues", await _while_more(lambda: retention.sweep_orphans(db, batch=batch)))
    yield Swept("forgotten transaction ids", await _while_more(lambda: retention.sweep_dedup(db)))
    yield Swept("abandoned streams", await _drain(lambda: retention.forget_streams(db, batch=batch), batch))
    yield Swept(
        "records of removed partitions", await _drain(lambda: retention.forget_removals(db, batch=batch), batch)
    )
    yield Swept("abandoned subscriptions", await _drain(lambda: retention.forget_awaited(db, batch=batch), batch))
    yield Swept("old metrics", await _drain(lambda: metrics.forget(db, older_than_seconds=old, batch=batch), batch))
    yield Swept("finished operations", await _drain(lambda: operations.forget(db, batch=batch), batch))


async def _evict(db: Executor, batch: int) -> int:
    total, after = 0, 0
    while True:
        step = await evict(db, batch=batch, after=after)
        total += step.messages
        if step.next_after is None:
            return total
        after = step.next_after


async def _trim(db: Executor, batch: int, report: Callable[[str], None]) -> int:
    total, after = 0, 0
    while True:
        step = await retention.trim(db, batch=batch, after=after)
        total += step.messages
        for overrun in step.overruns:
            report(
                f"WARNING: queue {overrun.queue} was trimmed up to {overrun.removed_to}, past the archive hold of "
                f"{overrun.holder}: the hold lags by more than its cap, and what it had not archived is lost to it"
            )
        if step.next_after is None:
            return total
        after = step.next_after


async def _remove_idle(db: Executor, seconds: int, batch: int) -> int:
    total, after = 0, 0
    while True:
        step = await retention.remove_idle_partitions(db, idle_seconds=seconds, batch=batch, after=after)
        total += sum(removed.partitions for removed in step.removed)
        if step.next_after is None:
            return total
        after = step.next_after


async def _while_more(step: Callable[[], Awaitable[retention.SweepStep]]) -> int:
    total, more = 0, True
    while more:
        done = await step()
        total, more = total + done.removed, done.more
    return total


async def _drain(step: Callable[[], Awaitable[int]], batch: int) -> int:
    """Repeat a bounded delete until it finds less than a batch."""
    total, found = 0, batch
    while found == batch:
        found = await step()
        total += found
    return total
