"""Traces: notes about messages, by message and by name."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import messages, traces
from queenmq.storage.errors import MessageNotFound
from queenmq.storage.store import Store
from queenmq.wire.names import InvalidValue

from .shorthand import QUEUE
from .waiting import is_waiting


async def push_one(
    store: Store, name: str | None = "t1", queue: str = QUEUE, *, encrypted: bool = False
) -> tuple[UUID, str]:
    verdict = (await store.push([PushItem(queue, b'{"a": 1}', "p", name, encrypted=encrypted)]))[0]
    return UUID(verdict.partition_id), verdict.transaction_id


async def test_a_message_has_its_traces_oldest_first(store: Store) -> None:
    partition, name = await push_one(store)
    first = await traces.add(
        store.pool, partition, name, b'{"step": 1}', group="g", event_type="error", worker_id="w", names=["b", "a", "b"]
    )
    second = await traces.add(store.pool, partition, name, b"null")
    found = await traces.of_message(store.pool, partition, name)
    assert [trace.id for trace in found] == [first, second]
    assert (found[0].event_type, found[0].data, found[0].group, found[0].worker_id, found[0].names) == (
        "error", b'{"step": 1}', "g", "w", ["a", "b"]
    )  # fmt: skip
    assert (found[1].event_type, found[1].data, found[1].group, found[1].names) == ("info", b"null", None, [])
    assert await traces.of_message(store.pool, partition, "t2") == []


async def test_a_message_without_a_transaction_id_is_traced_by_its_id(store: Store) -> None:
    partition, name = await push_one(store, None)
    await traces.add(store.pool, partition, name, b"1")
    assert len(await traces.of_message(store.pool, partition, name)) == 1


async def test_a_message_that_is_not_there_cannot_be_traced(store: Store) -> None:
    partition, name = await push_one(store)
    for place, transaction_id in ((partition, "t2"), (uuid4(), name)):
        with pytest.raises(MessageNotFound):
            await traces.add(store.pool, place, transaction_id, b"1", names=["n"])
    await messages.delete(store.pool, partition, name)
    with pytest.raises(MessageNotFound):
        await traces.add(store.pool, partition, name, b"1")
    assert (await traces.list_names(store.pool)).total == 0


async def test_a_queue_deleted_meanwhile(store: Store) -> None:
    partition, name = await push_one(store)
    async with store.pool.acquire() as holder:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("select queen.delete_queue_v1($1)", QUEUE)
        waiting = asyncio.create_task(traces.add(store.pool, partition, name, b"1"))
        assert await is_waiting(store, waiting)
        await transaction.commit()
    with pytest.raises(MessageNotFound):
        await waiting


@pytest.mark.parametrize("bad", ["", "a\x1eb", "x" * 256])
async def test_bad_names_are_refused(store: Store, bad: str) -> None:
    partition, name = await push_one(store)
    with pytest.raises(InvalidValue, match="traceNames"):
        await traces.add(store.pool, partition, name, b"1", names=[bad])
    with pytest.raises(InvalidValue, match="eventType"):
        await traces.add(store.pool, partition, name, b"1", event_type=bad)


async def test_by_name_across_queues_with_their_messages(store: Store) -> None:
    first = await push_one(store)
    second = await push_one(store, queue="q2", encrypted=True)
    for index, (partition, name) in enumerate([first, second, first]):
        await traces.add(store.pool, partition, name, str(index).encode(), names=["tenant-1"])
    await traces.add(store.pool, *first, b"9", names=["tenant-2"])
    page = await traces.by_name(store.pool, "tenant-1")
    assert page.total == 3
    assert [(entry.queue, entry.trace.data) for entry in page.traces] == [(QUEUE, b"0"), ("q2", b"1"), (QUEUE, b"2")]
    assert [(entry.payload, entry.encrypted) for entry in page.traces[:2]] == [
        (b'{"a": 1}', False),
        (b'{"a": 1}', True),
    ]
    assert (page.traces[1].partition_uid, page.traces[1].transaction_id, page.traces[1].partition) == (*second, "p")
    assert page.traces[0].trace.names == ["tenant-1"]


async def test_pages_by_name(store: Store) -> None:
    place = await push_one(store)
    for index in range(5):
        await traces.add(store.pool, *place, str(index).encode(), names=["n"])
    pages = [await traces.by_name(store.pool, "n", limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert [page.total for page in pages] == [5] * 4
    assert [int(entry.trace.data) for page in pages for entry in page.traces] == [0, 1, 2, 3, 4]
    assert (await traces.by_name(store.pool, "other")).total == 0


async def test_a_trace_outlives_its_message(store: Store) -> None:
    place = await push_one(store)
    await traces.add(store.pool, *place, b"1", names=["n"])
    await messages.delete(store.pool, *place)
    entry = (await traces.by_name(store.pool, "n")).traces[0]
    assert (entry.queue, entry.partition, entry.payload) == (QUEUE, "p", None)
    assert len(await traces.of_message(store.pool, *place)) == 1


async def test_it_goes_with_its_queue(store: Store) -> None:
    place = await push_one(store)
    await traces.add(store.pool, *place, b"1", names=["n"])
    await store.delete_queue(QUEUE)
    assert (await traces.list_names(store.pool)).total == 0
    assert await traces.of_message(store.pool, *place) == []


async def test_names_with_counts(store: Store) -> None:
    first = await push_one(store)
    second = await push_one(store, "t2")
    await traces.add(store.pool, *first, b"1", names=["often", "once"])
    await traces.add(store.pool, *first, b"2", names=["often"])
    last = await traces.add(store.pool, *second, b"3", names=["often"])
    page = await traces.list_names(store.pool)
    assert page.total == 2
    assert [(name.name, name.traces, name.messages) for name in page.names] == [("often", 3, 2), ("once", 1, 1)]
    newest = await store.pool.fetchval("select created_at from queen.message_traces where id = $1", last)
    assert page.names[0].last_seen == newest
    assert [name.name for name in (await traces.list_names(store.pool, limit=1, offset=1)).names] == ["once"]
    beyond = await traces.list_names(store.pool, offset=5)
    assert (beyond.names, beyond.total) == ([], 2)
