"""Archive holds, and how far retention goes beside them."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import asyncpg

from queenmq.storage import holds, retention
from queenmq.storage.retention import Overrun, TrimStep
from queenmq.storage.store import Store
from tests.storage.shorthand import QUEUE, push
from tests.storage.time_travel import age_messages, age_retention
from tests.storage.waiting import is_waiting

HOUR = 3600


async def now(store: Store) -> datetime:
    moment: datetime = await store.pool.fetchval("select clock_timestamp()")
    return moment


async def kept(store: Store) -> list[int]:
    return [row["seq"] for row in await store.pool.fetch("select seq from queen.messages order by seq")]


async def two_old_messages(store: Store) -> datetime:
    """Message 1 two hours old and message 2 one hour; both are past retention. Returns a time between them."""
    await store.configure(QUEUE, retentionEnabled=True, retentionSeconds=60)
    await push(store, 1)
    await age_messages(store.pool, HOUR)
    await push(store, 2)
    await age_messages(store.pool, HOUR)
    return await now(store) - timedelta(seconds=1.5 * HOUR)


async def trim(store: Store) -> TrimStep:
    return await retention.trim(store.pool, batch=100)


async def test_nothing_is_trimmed_that_is_not_released(store: Store) -> None:
    between = await two_old_messages(store)
    await holds.acquire(store.pool, QUEUE, "archive")
    assert (await trim(store)).removed == ()
    await holds.advance(store.pool, QUEUE, "archive", between)
    step = await trim(store)
    assert (step.messages, step.overruns) == (1, ())
    assert await kept(store) == [2]
    await holds.release(store.pool, QUEUE, "archive")
    assert (await trim(store)).messages == 1


async def test_a_message_created_at_the_released_time_is_released(store: Store) -> None:
    await two_old_messages(store)
    first = await store.pool.fetchval("select min(created_at) from queen.segments")
    await holds.acquire(store.pool, QUEUE, "archive", released_to=first)
    await trim(store)
    assert await kept(store) == [2]


async def test_a_hold_keeps_ttl_and_completed_messages_too(store: Store) -> None:
    await two_old_messages(store)
    await store.configure(QUEUE, retentionSeconds=0, completedRetentionSeconds=60, ttl=0)
    await store.pop(QUEUE, batch=9, auto_ack=True)
    await holds.acquire(store.pool, QUEUE, "archive")
    assert (await trim(store)).removed == ()
    await store.configure(QUEUE, completedRetentionSeconds=0, ttl=60)
    assert (await trim(store)).removed == ()


async def test_the_slowest_of_several_holds_counts(store: Store) -> None:
    between = await two_old_messages(store)
    await holds.acquire(store.pool, QUEUE, "fast", released_to=await now(store))
    await holds.acquire(store.pool, QUEUE, "slow", released_to=between)
    await trim(store)
    assert await kept(store) == [2]


async def test_a_released_hold_does_not_hasten_retention(store: Store) -> None:
    await store.configure(QUEUE, retentionEnabled=True, retentionSeconds=60)
    await push(store, 1)
    await holds.acquire(store.pool, QUEUE, "archive", released_to=await now(store))
    assert (await trim(store)).removed == ()


async def test_a_hold_that_lags_more_than_its_cap_is_passed_up_to_the_cap_and_reported(store: Store) -> None:
    await two_old_messages(store)
    released = await now(store) - timedelta(days=1)
    await holds.acquire(store.pool, QUEUE, "archive", released_to=released, cap_seconds=int(1.5 * HOUR))
    newest = await store.pool.fetchval("select min(created_at) from queen.segments")
    step = await trim(store)
    assert step.overruns == (Overrun(QUEUE, "archive", released, newest),)
    assert await kept(store) == [2]
    marked = (await holds.list_holds(store.pool))[0].overrun_at
    assert marked is not None
    assert (await trim(store)).overruns == ()
    assert (await holds.list_holds(store.pool))[0].overrun_at == marked


async def test_a_hold_that_released_nothing_is_capped_too(store: Store) -> None:
    await two_old_messages(store)
    await holds.acquire(store.pool, QUEUE, "archive", cap_seconds=60)
    step = await trim(store)
    assert step.messages == 2
    assert [(overrun.holder, overrun.released_to) for overrun in step.overruns] == [("archive", None)]


async def test_a_lagging_hold_without_loss_is_no_overrun(store: Store) -> None:
    await store.configure(QUEUE, retentionEnabled=True, retentionSeconds=60)
    await push(store, 1)
    await holds.acquire(store.pool, QUEUE, "archive", cap_seconds=1)
    await age_retention(store.pool, HOUR)
    assert (await trim(store)).overruns == ()
    assert (await holds.list_holds(store.pool))[0].overrun_at is None


async def test_a_hold_never_moves_backwards_nor_into_the_future(store: Store) -> None:
    await store.configure(QUEUE)
    start = await now(store)
    await holds.acquire(store.pool, QUEUE, "archive", released_to=start)
    moved = await holds.advance(store.pool, QUEUE, "archive", start - timedelta(hours=1))
    assert moved is not None
    assert moved.released_to == start
    again = await holds.acquire(store.pool, QUEUE, "archive", cap_seconds=5)
    assert again is not None
    assert (again.released_to, again.cap_seconds) == (start, 5)
    ahead = await holds.advance(store.pool, QUEUE, "archive", start + timedelta(hours=1))
    assert ahead is not None
    assert ahead.released_to is not None
    assert start < ahead.released_to <= await now(store)


async def test_holds_of_unknown_names(store: Store) -> None:
    assert await holds.acquire(store.pool, "nowhere", "archive") is None
    assert await holds.advance(store.pool, "nowhere", "archive", datetime.fromisoformat("2026-01-01T00:00:00Z")) is None
    assert not await holds.release(store.pool, "nowhere", "archive")


async def test_holds_are_listed_by_queue_and_go_with_it(store: Store) -> None:
    for queue in ("a", "b"):
        await store.configure(queue)
        await holds.acquire(store.pool, queue, "archive")
    await holds.acquire(store.pool, "a", "backup")
    listed = [(hold.queue, hold.holder, hold.released_to) for hold in await holds.list_holds(store.pool)]
    assert listed == [("a", "archive", None), ("a", "backup", None), ("b", "archive", None)]
    assert [hold.queue for hold in await holds.list_holds(store.pool, "b")] == ["b"]
    assert await holds.release(store.pool, "a", "backup")
    assert not await holds.release(store.pool, "a", "backup")
    await store.delete_queue("a")
    assert [hold.queue for hold in await holds.list_holds(store.pool)] == ["b"]


async def test_a_hold_waits_for_a_step_that_does_not_know_of_it(store: Store, other: asyncpg.Connection) -> None:
    """From the answer on, nothing goes: so it cannot be given while a step is removing."""
    await two_old_messages(store)
    transaction = other.transaction()
    await transaction.start()
    assert (await retention.trim(other, batch=1)).messages == 1
    acquiring = asyncio.create_task(holds.acquire(store.pool, QUEUE, "archive"))
    assert await is_waiting(store, acquiring)
    await transaction.commit()
    assert await acquiring is not None
    assert (await trim(store)).removed == ()
    assert await kept(store) == [2]


async def test_a_queue_that_gets_a_hold_this_moment_is_left_out(store: Store, other: asyncpg.Connection) -> None:
    await two_old_messages(store)
    async with other.transaction():
        await holds.acquire(other, QUEUE, "archive")
        assert (await trim(store)).removed == ()
    assert (await trim(store)).removed == ()
