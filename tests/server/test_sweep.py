"""`queen db sweep`: one pass removes what is no longer kept, with the settings' bounds, and nothing else."""

from __future__ import annotations

import pytest

from queenmq.domain.segments import PushItem
from queenmq.server.settings import Settings
from queenmq.server.sweep import sweep
from queenmq.storage import holds
from queenmq.storage.errors import SchemaMissing
from queenmq.storage.store import Store
from tests.conftest import Server

AGED = "update queen.segments set created_at = created_at - interval '1 hour'"
SETTINGS = Settings.from_env({"RETENTION_BATCH_SIZE": "2", "EVICTION_BATCH_SIZE": "2"})


async def run(dsn: str) -> tuple[dict[str, int], list[str]]:
    said: list[str] = []
    return {swept.what: swept.count for swept in await sweep(SETTINGS, dsn, said.append)}, said


async def test_one_pass_removes_what_is_no_longer_kept(store: Store, dsn: str) -> None:
    await store.configure("expiring", retentionEnabled=True, retentionSeconds=60)
    await store.configure("overdue", maxWaitTimeSeconds=60)
    for queue in ("expiring", "overdue", "kept", "gone"):
        for number in range(5):
            await store.push([PushItem(queue, b"%d" % number)])
    await store.delete_queue("gone")
    await store.pool.execute(AGED)
    removed, _ = await run(dsn)
    assert removed["messages past their retention"] == 5
    assert removed["messages that waited too long, now dead letters"] == 5
    assert removed["messages of deleted queues"] == 5
    left = await store.pool.fetch("select queue, count(*) from queen.messages group by 1 order by 1")
    assert [tuple(row) for row in left] == [("kept", 5), ("overdue", 5)]
    again, said = await run(dsn)
    assert set(again.values()) == {0}
    assert said == []


async def test_passing_an_archive_hold_is_a_loud_warning(store: Store, dsn: str) -> None:
    await store.configure("archived", retentionEnabled=True, retentionSeconds=60)
    await store.push([PushItem("archived", b"1")])
    await holds.acquire(store.pool, "archived", "lake", cap_seconds=600)
    await store.pool.execute(AGED)
    removed, said = await run(dsn)
    assert removed["messages past their retention"] == 1
    assert len(said) == 1
    assert said[0].startswith("WARNING: queue archived was trimmed")
    assert "lake" in said[0]


async def test_a_database_that_is_not_migrated_is_named_as_such(embedded_server: Server) -> None:
    name = await embedded_server.create(template="template0")
    with pytest.raises(SchemaMissing, match="queen db migrate"):
        await run(embedded_server.database(name))
    await embedded_server.drop(name)
