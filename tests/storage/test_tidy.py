"""The cursor table is vacuumed after so much work, and stays small."""

from __future__ import annotations

from queenmq.storage.store import Store
from queenmq.storage.tidy import Tidier

from .shorthand import claim, push


async def test_a_vacuum_is_due_after_work_and_not_again_before_more(store: Store) -> None:
    tidier = Tidier()
    due = []
    for updates in (499, 1):
        tidier.note(updates)
        due.append(tidier.due)
    await tidier.run(store.pool)
    assert [*due, tidier.due] == [False, True, False]


async def test_old_versions_of_cursors_are_reused(store: Store) -> None:
    """Without the vacuum the table would grow by a page for every few dozen pops."""
    await push(store, *range(1, 2))
    tidier = Tidier()
    size = "select pg_relation_size('queen.partition_consumers')"
    for _ in range(1000):
        await store.release((await claim(store)).lease_id or "")
        tidier.note(2)
        if tidier.due:
            await tidier.run(store.pool)
    assert await store.pool.fetchval(size) <= 6 * 8192
