"""The operation queue: order per lane, urgency, retries, timeouts, and claimers that meet."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import asyncpg

from queenmq.domain.ids import is_uuid, new_id
from queenmq.storage import operations
from queenmq.storage.operations import Enqueued, NewOperation, Operation
from queenmq.storage.store import Store
from tests.storage.time_travel import age_operations
from tests.storage.waiting import is_waiting


def new(payload: int = 0, partition: str | None = "p", queue: str = "orders", **more: int | str) -> NewOperation:
    return NewOperation("PUSH", queue, partition, str(payload).encode(), **more)  # type: ignore[arg-type]


async def enqueue(store: Store, *wanted: NewOperation) -> list[Enqueued]:
    return await operations.enqueue(store.pool, wanted)


async def claim(store: Store, limit: int = 10, worker: str = "w") -> list[Operation]:
    return await operations.claim(store.pool, worker, limit=limit)


async def one(store: Store) -> Operation:
    (operation,) = await claim(store)
    return operation


def payloads(claimed: list[Operation]) -> list[int]:
    return [int(operation.payload) for operation in claimed]


async def drain(store: Store) -> list[int]:
    """Claim and complete one at a time until there is nothing."""
    order = []
    while claimed := await claim(store, 1):
        order += payloads(claimed)
        assert await operations.complete(store.pool, claimed[0])
    return order


class TestEnqueue:
    async def test_it_answers_with_id_position_and_wait(self, store: Store) -> None:
        first, second = await enqueue(store, new(1), new(2))
        assert is_uuid(first.id)
        assert (first.position, first.estimated_wait_seconds) == (0, 0)
        assert (second.position, second.estimated_wait_seconds) == (1, 1)
        assert Enqueued("", 250).estimated_wait_seconds == 3

    async def test_less_urgent_ones_are_not_ahead(self, store: Store) -> None:
        await enqueue(store, new(1, "a", priority=8), new(2, "b", priority=5))
        assert [answer.position for answer in await enqueue(store, new(3, "c", priority=5))] == [1]

    async def test_a_repeated_call_adds_nothing(self, store: Store) -> None:
        wanted = [new(1), new(2, "q")]
        first = await enqueue(store, *wanted)
        assert [answer.id for answer in await enqueue(store, *wanted)] == [answer.id for answer in first]
        assert sorted(await drain(store)) == [1, 2]

    async def test_a_server_whose_clock_is_behind_still_adds_at_the_end(self, store: Store) -> None:
        early, late = new_id(), new_id()
        await enqueue(store, new(1, id=late))
        (answer,) = await enqueue(store, new(2, id=early))
        assert answer.id > late
        assert is_uuid(answer.id)
        assert await drain(store) == [1, 2]

    async def test_two_that_meet_enter_their_lane_one_after_the_other(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        """The first has the lower id but commits last: the second must wait, or it could be done before it."""
        first, second = new(1), new(2)
        async with other.transaction():
            await operations.enqueue(other, [first])
            meeting = asyncio.create_task(enqueue(store, second))
            assert await is_waiting(store, meeting)
            assert await claim(store) == []
        await meeting
        assert await drain(store) == [1, 2]

    async def test_operations_are_told_by_lane_whether_something_is_unfinished(self, store: Store) -> None:
        await enqueue(store, new(1, "p"), new(2, None, "other"))
        lanes: list[operations.Lane] = [
            ("orders", "p"),
            ("orders", "q"),
            ("orders", None),
            ("other", None),
            ("other", "p"),
        ]
        assert await operations.has_pending(store.pool, lanes) == {("orders", "p"), ("other", None)}
        for operation in await claim(store):
            assert await operations.has_pending(store.pool, lanes) != set()
            await operations.complete(store.pool, operation)
        assert await operations.has_pending(store.pool, lanes) == set()


class TestClaim:
    async def test_a_claimed_operation_comes_with_what_it_needs(self, store: Store) -> None:
        await enqueue(store, NewOperation("ACK_BATCH", "orders", None, b"\x00\xff", 3, 7, 2))
        operation = await one(store)
        assert (operation.operation_type, operation.queue_name, operation.partition_name) == (
            "ACK_BATCH",
            "orders",
            None,
        )
        assert (operation.payload, operation.priority, operation.timeout_seconds) == (b"\x00\xff", 3, 7)
        assert (operation.status, operation.retry_count, operation.claimed_by_worker) == ("processing", 0, "w")

    async def test_one_per_lane_in_the_order_of_arrival(self, store: Store) -> None:
        await enqueue(store, new(1, "a"), new(2, "a"), new(3, "b"), new(4, None), new(5, "a"))
        first = await claim(store)
        assert payloads(first) == [1, 3, 4]
        assert await claim(store) == []
        await operations.complete(store.pool, first[0])
        assert payloads(await claim(store)) == [2]

    async def test_no_more_than_asked_for(self, store: Store) -> None:
        await enqueue(store, *[new(n, f"p{n}") for n in range(5)])
        assert [len(await claim(store, 2)) for _ in range(4)] == [2, 2, 1, 0]

    async def test_the_most_urgent_lane_first_then_the_oldest(self, store: Store) -> None:
        await enqueue(
            store, new(1, "a", priority=8), new(2, "b", priority=3), new(3, "c", priority=3), new(4, "d", priority=1)
        )
        assert payloads(await claim(store)) == [4, 2, 3, 1]

    async def test_a_lane_is_as_urgent_as_its_most_urgent_and_keeps_its_order(self, store: Store) -> None:
        await enqueue(store, new(1, "a", priority=8), new(2, "b", priority=5), new(3, "a", priority=9))
        await enqueue(store, new(4, "a", priority=1), new(5, "a", priority=7))
        assert await drain(store) == [1, 3, 4, 2, 5]

    async def test_urgency_also_reaches_the_one_being_done(self, store: Store) -> None:
        await enqueue(store, new(1, "a", priority=8), new(2, "b", priority=5))
        claimed = {int(operation.payload): operation for operation in await claim(store)}
        await enqueue(store, new(3, "a", priority=1), new(4, "b", priority=5))
        for operation in claimed.values():
            assert await operations.fail(store.pool, operation, "busy") == "pending"
        assert await drain(store) == [1, 3, 2, 4]


class TestFinish:
    async def test_a_completed_one_keeps_its_result(self, store: Store) -> None:
        await enqueue(store, new(1))
        operation = await one(store)
        assert await operations.complete(store.pool, operation, b"done")
        stored = await operations.get(store.pool, str(operation.id))
        assert stored is not None
        assert (stored.status, stored.result, stored.error_message) == ("completed", b"done", None)
        assert stored.processed_at is not None

    async def test_a_failed_one_waits_and_holds_its_lane(self, store: Store) -> None:
        await enqueue(store, new(1), new(2), new(3, "q"))
        first, other = await claim(store)
        assert await operations.fail(store.pool, first, "no", retry_in_seconds=60) == "pending"
        assert await operations.complete(store.pool, other)
        assert await claim(store) == []
        await age_operations(store.pool, 61)
        again = await one(store)
        assert (int(again.payload), again.retry_count, again.error_message) == (1, 1, "no")
        await operations.complete(store.pool, again)
        assert payloads(await claim(store)) == [2]

    async def test_when_its_retries_are_spent_it_has_failed_and_the_lane_goes_on(self, store: Store) -> None:
        await enqueue(store, new(1, max_retries=2), new(2))
        answers = [await operations.fail(store.pool, await one(store), f"try {n}") for n in range(3)]
        assert answers == ["pending", "pending", "failed"]
        assert await drain(store) == [2]
        (failed,) = [count for count in await operations.stats(store.pool) if count.status == "failed"]
        assert failed.count == 1

    async def test_without_retries_the_first_failure_is_the_last(self, store: Store) -> None:
        await enqueue(store, new(1, max_retries=0))
        assert await operations.fail(store.pool, await one(store), "no") == "failed"

    async def test_a_claim_can_be_finished_once(self, store: Store) -> None:
        await enqueue(store, new(1))
        operation = await one(store)
        assert await operations.complete(store.pool, operation)
        assert not await operations.complete(store.pool, operation)
        assert await operations.fail(store.pool, operation, "late") is None
        stored = await operations.get(store.pool, str(operation.id))
        assert stored is not None
        assert stored.status == "completed"

    async def test_an_operation_that_enters_while_the_last_one_ends_is_not_forgotten(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        await enqueue(store, new(1))
        operation = await one(store)
        async with other.transaction():
            assert await operations.complete(other, operation)
            entering = asyncio.create_task(enqueue(store, new(2)))
            assert await is_waiting(store, entering)
        await entering
        assert payloads(await claim(store)) == [2]


class TestReclaim:
    async def test_what_a_dead_worker_held_is_done_by_another_and_its_lane_waited(self, store: Store) -> None:
        await enqueue(store, new(1, timeout_seconds=30), new(2))
        lost = (await claim(store, worker="dead"))[0]
        assert await operations.reclaim(store.pool, limit=10) == {}
        await age_operations(store.pool, 31)
        assert await operations.reclaim(store.pool, limit=10) == {str(lost.id): "pending"}
        again = await one(store)
        assert (again.id, again.retry_count) == (lost.id, 1)
        assert "worker dead" in (again.error_message or "")

    async def test_each_has_its_own_timeout(self, store: Store) -> None:
        await enqueue(store, new(1, "a", timeout_seconds=10), new(2, "b", timeout_seconds=100))
        first, _ = await claim(store)
        await age_operations(store.pool, 11)
        assert list(await operations.reclaim(store.pool, limit=10)) == [str(first.id)]

    async def test_no_more_than_asked_for(self, store: Store) -> None:
        await enqueue(store, *[new(n, f"p{n}", timeout_seconds=1) for n in range(3)])
        await claim(store)
        await age_operations(store.pool, 2)
        assert [len(await operations.reclaim(store.pool, limit=2)) for _ in range(3)] == [2, 1, 0]

    async def test_a_claim_that_was_lost_finishes_nothing(self, store: Store) -> None:
        await enqueue(store, new(1, timeout_seconds=1))
        lost = await one(store)
        await age_operations(store.pool, 2)
        await operations.reclaim(store.pool, limit=10)
        assert not await operations.complete(store.pool, lost)
        again = await one(store)
        assert not await operations.complete(store.pool, lost)
        assert await operations.fail(store.pool, lost, "late") is None
        assert await operations.complete(store.pool, again)

    async def test_one_that_brings_its_workers_down_is_given_up(self, store: Store) -> None:
        await enqueue(store, new(1, timeout_seconds=1, max_retries=1), new(2))
        statuses: list[str] = []
        for _ in range(2):
            await one(store)
            await age_operations(store.pool, 2)
            statuses += (await operations.reclaim(store.pool, limit=10)).values()
        assert statuses == ["pending", "failed"]
        assert await drain(store) == [2]

    async def test_a_lane_whose_first_operation_was_deleted_by_hand_goes_on(self, store: Store) -> None:
        (first, _) = await enqueue(store, new(1), new(2))
        await store.pool.execute("delete from queen.operation_queue where id = $1", first.id)
        assert await claim(store) == []
        await operations.reclaim(store.pool, limit=10)
        assert await drain(store) == [2]


class TestLooking:
    async def test_stats_count_by_type_and_status_and_tell_the_oldest(self, store: Store) -> None:
        await enqueue(store, new(1, "a"))
        await age_operations(store.pool, 100)
        await enqueue(store, new(2, "b"), new(3, "b"))
        await claim(store, 1)
        counts = {(count.type, count.status): count for count in await operations.stats(store.pool)}
        assert {key: count.count for key, count in counts.items()} == {
            ("PUSH", "pending"): 2,
            ("PUSH", "processing"): 1,
        }
        assert 100 <= counts["PUSH", "processing"].oldest_seconds < 160
        assert counts["PUSH", "pending"].oldest_seconds < 60
        assert counts["PUSH", "pending"].bytes == 2

    async def test_an_unknown_id_is_none(self, store: Store) -> None:
        assert await operations.get(store.pool, new_id()) is None
        assert await operations.get(store.pool, "not an id") is None

    async def test_finished_ones_go_by_age_in_batches_and_failed_ones_later(self, store: Store) -> None:
        await enqueue(store, *[new(n, f"p{n}", max_retries=0) for n in range(5)])
        claimed = await claim(store)
        for operation in claimed[:3]:
            await operations.complete(store.pool, operation)
        await operations.fail(store.pool, claimed[3], "no")
        await age_operations(store.pool, 3599)
        assert await operations.forget(store.pool, batch=10) == 0
        await age_operations(store.pool, 2)
        assert [await operations.forget(store.pool, batch=2) for _ in range(3)] == [2, 1, 0]
        await age_operations(store.pool, 7 * 86400)
        assert await operations.forget(store.pool, batch=10) == 1
        assert [count.status for count in await operations.stats(store.pool)] == ["processing"]


async def test_claimers_that_meet_never_hold_one_lane_and_keep_every_order(store: Store) -> None:
    """Eight claimers, four producers, random failures: per lane one at a time, in order, each done once."""
    lanes = [f"p{n}" for n in range(4)]
    held: set[str | None] = set()
    done: dict[str | None, list[int]] = defaultdict(list)
    accepted: dict[str | None, list[int]] = defaultdict(list)
    chance = random.Random(7)
    total = 120

    async def produce(producer: int) -> None:
        for number in range(total // 4):
            lane = chance.choice(lanes)
            await enqueue(store, new(producer * 1000 + number, lane, priority=chance.randint(1, 9), max_retries=1000))

    async def work(worker: str) -> None:
        while sum(map(len, done.values())) < total:
            for operation in await claim(store, 2, worker):
                lane = operation.partition_name
                assert lane not in held
                held.add(lane)
                await asyncio.sleep(0)
                failed = chance.random() < 0.2
                if not failed:
                    done[lane].append(int(operation.payload))
                held.remove(lane)
                if failed:
                    assert await operations.fail(store.pool, operation, "chance") == "pending"
                else:
                    assert await operations.complete(store.pool, operation)

    await asyncio.gather(*[produce(n) for n in range(4)], *[work(f"w{n}") for n in range(8)])
    # created_at is taken under the lane's lock: the order in which operations were accepted
    for row in await store.pool.fetch("select partition_name, payload from queen.operation_queue order by created_at"):
        accepted[row["partition_name"]].append(int(row["payload"]))
    assert done == accepted
    assert sum(map(len, done.values())) == total
