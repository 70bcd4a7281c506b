"""Ack: what moves the cursor, what ends a lease, what is refused.

A completed ack is cumulative within its (partition, group): it settles everything before it. Failures: see
test_retries. A test named `test_not_copied_...` guards against something that Queen MQ's server does and this one
must not.
"""

from __future__ import annotations

import asyncio

import pytest

from queenmq.domain.ids import new_id
from queenmq.domain.segments import PushItem
from queenmq.storage.ack import BAD_LEASE, NOT_FOUND, AckItem
from queenmq.storage.ack import ack as settle
from queenmq.storage.pop import QUEUE_MODE
from queenmq.storage.queues import configure
from queenmq.storage.store import Store
from tests.storage.shorthand import QUEUE, ack, ack_of, claim, cursor, held, numbers, push
from tests.storage.time_travel import expire_leases


class TestAnswers:
    async def test_not_copied_an_empty_batch_hangs(self, store: Store) -> None:
        assert await store.ack([]) == []

    async def test_results_come_in_the_order_of_the_items_with_their_names(self, store: Store) -> None:
        await push(store, 1, 2, partition="a")
        await push(store, 1, partition="b")
        result = await store.pop(QUEUE, batch=9, partitions=2)
        a, b = sorted(result.claims, key=lambda won: won.partition)
        answers = await store.ack([ack_of(a, 2), ack_of(b, 1), ack_of(a, 1)])
        assert [(r.index, r.queue, r.partition, r.success) for r in answers] == [
            (0, QUEUE, "a", True),
            (1, QUEUE, "b", True),
            (2, QUEUE, "a", True),
        ]
        assert [r.lease_released for r in answers] == [True, True, True]

    @pytest.mark.parametrize("tx", ["mine", None, "0196c2f5-1111-7000-8000-000000000001"])
    async def test_a_message_is_named_by_its_transaction_id(self, store: Store, tx: str | None) -> None:
        await store.push([PushItem(QUEUE, b"1", "p"), PushItem(QUEUE, b"2", "p", tx), PushItem(QUEUE, b"3", "p")])
        won = await claim(store)
        name = list(won.messages())[1].transaction_id
        answer = (await store.ack([AckItem(won.partition_uid, name, lease_id=won.lease_id)]))[0]
        assert (answer.success, answer.transaction_id) == (True, name)
        assert (await cursor(store))["acked_seq"] == 2

    async def test_not_copied_a_bad_partition_id_fails_the_whole_batch(self, store: Store) -> None:
        """7.2 and 21.12: every item has its own answer."""
        await push(store, 1)
        won = await claim(store)
        answers = await store.ack([AckItem("no-uuid", "t"), ack_of(won, 1), AckItem(new_id(), "t")])
        assert [r.success for r in answers] == [False, True, False]
        assert answers[0].error == "partitionId must be a UUID, not 'no-uuid'"
        assert answers[2].error == NOT_FOUND

    async def test_not_copied_an_unknown_status_has_no_error_text(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        answer = (await store.ack([ack_of(won, 1, "done")]))[0]
        assert not answer.success
        assert answer.error == "status must be one of completed, dlq, failed, retry, not 'done'"

    async def test_an_unknown_message_is_not_found(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        answer = (await store.ack([AckItem(won.partition_uid, "nothing", lease_id=won.lease_id)]))[0]
        assert (answer.success, answer.error) == (False, NOT_FOUND)


class TestCursor:
    async def test_an_ack_settles_everything_before_it(self, store: Store) -> None:
        await push(store, *range(1, 6))
        won = await claim(store, batch=5)
        assert await ack(store, won, 3)
        await expire_leases(store.pool)
        assert numbers(await store.pop(QUEUE, batch=9)) == [4, 5]

    async def test_not_copied_the_cursor_moves_backwards(self, store: Store) -> None:
        """7.4 and 21.3."""
        await push(store, *range(1, 6))
        won = await claim(store, batch=5)
        assert await ack(store, won, 3)
        assert await ack(store, won, 1)
        assert (await cursor(store))["acked_seq"] == 3
        assert all(r.success for r in await store.ack([ack_of(won, 4), ack_of(won, 2)]))
        assert (await cursor(store))["acked_seq"] == 4
        assert await ack(store, won, 1, lease=None)
        await expire_leases(store.pool)
        assert numbers(await store.pop(QUEUE, batch=9)) == [5]

    async def test_items_are_settled_in_message_order_not_in_request_order(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        won = await claim(store, batch=3)
        answers = await store.ack([ack_of(won, 3), ack_of(won, 2, "failed"), ack_of(won, 1)])
        assert [r.success for r in answers] == [False, True, True]
        assert (await cursor(store))["acked_seq"] == 1

    async def test_what_was_consumed_is_counted_once(self, store: Store) -> None:
        await push(store, *range(1, 6))
        won = await claim(store, batch=5)
        for seq in (2, 1, 2, 5, 5):
            assert await ack(store, won, seq)
        row = await cursor(store)
        assert (row["consumed"], row["batches"]) == (5, 1)

    async def test_groups_do_not_touch_each_other(self, store: Store) -> None:
        await push(store, 1, 2)
        a = await claim(store, group="a")
        await claim(store, group="b")
        assert await ack(store, a, 2, group="a")
        assert (await cursor(store, group="b"))["acked_seq"] == 0
        assert not await ack(store, a, 2, group="b")


class TestEndOfTheLease:
    async def test_not_copied_acking_only_the_last_message_keeps_the_lease(self, store: Store) -> None:
        """7.4: the lease ends when the cursor reaches its end."""
        await push(store, 1, 2, 3)
        won = await claim(store, batch=3)
        answer = (await store.ack([ack_of(won, 3)]))[0]
        assert answer.lease_released
        await push(store, 4)
        assert numbers(await store.pop(QUEUE)) == [4]

    async def test_not_copied_the_same_ack_twice_ends_the_lease_early(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        for _ in range(3):
            answer = (await store.ack([ack_of(won, 1)]))[0]
            assert (answer.success, answer.lease_released) == (True, False)
        assert numbers(await store.pop(QUEUE)) == []
        assert await ack(store, won, 2)

    async def test_what_came_meanwhile_is_ready_when_the_lease_ends(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store, batch=1)
        assert await ack(store, won, 1)
        assert numbers(await store.pop(QUEUE)) == [2]

    async def test_a_message_pushed_while_leased_is_not_covered_by_the_lease(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        await push(store, 2)
        answer = (await store.ack([ack_of(won, 2)]))[0]
        assert (answer.success, answer.error) == (False, BAD_LEASE)
        assert await ack(store, won, 1)
        assert numbers(await store.pop(QUEUE)) == [2]

    async def test_concurrent_acks_and_pushes_leave_no_partition_asleep(self, store: Store) -> None:
        """An ack that empties a partition and a push that fills it, at once, many times: it is ready afterwards."""
        number = 1
        await push(store, number)
        for _ in range(40):
            won = await claim(store)
            number += 1
            await asyncio.gather(ack(store, won, won.to_seq), push(store, number))
            assert (await cursor(store))["ready_at"] is not None


class TestFencing:
    async def test_not_copied_a_repeated_ack_is_refused_after_the_lease_ended(self, store: Store) -> None:
        """7.4: the client repeats its ack after a lost answer."""
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        for _ in range(3):
            assert all(r.success for r in await store.ack([ack_of(won, 1), ack_of(won, 2)]))

    async def test_a_repeated_ack_is_recognised_while_the_next_lease_is_held(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store, batch=1)
        assert await ack(store, won, 1)
        await claim(store, batch=1)
        assert await ack(store, won, 1)
        assert not await ack(store, won, 2)

    @pytest.mark.parametrize("option", ["windowBuffer", "delayedProcessing"])
    async def test_a_repeated_ack_is_recognised_after_a_pop_found_nothing(self, store: Store, option: str) -> None:
        await push(store, 1)
        won = await claim(store)
        assert await ack(store, won, 1)
        await configure(store.pool, QUEUE, {option: 60})
        await push(store, 2)
        assert numbers(await store.pop(QUEUE)) == []
        assert await ack(store, won, 1)

    async def test_a_repeated_ack_is_recognised_after_its_lease_expired_and_another_took_over(
        self, store: Store
    ) -> None:
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        assert await ack(store, won, 1)
        await expire_leases(store.pool)
        assert await ack(store, won, 1)
        await claim(store, batch=2)
        assert await ack(store, won, 1)
        assert not await ack(store, won, 2)

    async def test_an_expired_lease_settles_nothing_more(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        won = await claim(store, batch=3)
        assert await ack(store, won, 1)
        await expire_leases(store.pool)
        for status in ("completed", "failed", "retry", "dlq"):
            answer = (await store.ack([ack_of(won, 2, status)]))[0]
            assert (answer.success, answer.error) == (False, BAD_LEASE)
        row = await cursor(store)
        assert (row["acked_seq"], row["retries"]) == (1, None)

    async def test_only_what_lies_beyond_the_cursor_is_refused(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        won = await claim(store, batch=3)
        assert await ack(store, won, 1)
        await expire_leases(store.pool)
        answers = await store.ack([ack_of(won, 1), ack_of(won, 3)])
        assert [r.success for r in answers] == [True, False]

    async def test_a_stale_lease_is_refused_when_somebody_else_holds_the_partition(self, store: Store) -> None:
        await push(store, 1, 2)
        stale = await claim(store, batch=2)
        await expire_leases(store.pool)
        fresh = await claim(store, batch=2)
        assert not await ack(store, stale, 1)
        assert await ack(store, fresh, 2)

    async def test_an_unknown_lease_is_refused_always(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        assert await ack(store, won, 1)
        for seq in (1, 2):
            assert not await ack(store, won, seq, lease=new_id())
        assert not await ack(store, won, 1, lease="not-a-uuid")

    async def test_a_lease_may_be_written_in_capitals(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        assert await ack(store, won, 1, lease=held(won).upper())

    async def test_without_a_lease_nothing_is_fenced(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        won = await claim(store, batch=2)
        assert await ack(store, won, 1, lease=None)
        assert (await cursor(store))["lease_id"] is not None
        answer = (await store.ack([ack_of(won, 3, lease=None)]))[0]
        assert (answer.success, answer.lease_released) == (True, True)
        assert (await cursor(store))["ready_at"] is None

    async def test_without_a_lease_a_group_may_begin_with_an_ack(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store)
        assert await ack(store, won, 1, group="fresh", lease=None)
        assert numbers(await store.pop(QUEUE, "fresh", batch=9)) == [2]
        assert not await ack(store, won, 1, group="other")

    @pytest.mark.parametrize("status", ["failed", "retry"])
    @pytest.mark.parametrize("end", ["expired", "given back", "settled by another ack"])
    async def test_a_replay_is_not_answered_for_an_ack_that_was_never_applied(
        self, store: Store, status: str, end: str
    ) -> None:
        """The answer to the first attempt was lost, and so was the attempt; then the lease ended in another way."""
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        if end == "expired":
            await expire_leases(store.pool)
            await claim(store, batch=1)
        elif end == "given back":
            await store.release(held(won))
        else:
            assert await ack(store, won, 2)
        answer = (await settle(store.pool, [ack_of(won, 1, status)], replay=True))[0]
        assert not answer.success

    @pytest.mark.parametrize("status", ["failed", "retry"])
    async def test_a_replay_is_answered_for_an_ack_that_was_applied_and_came_again(
        self, store: Store, status: str
    ) -> None:
        await store.configure(QUEUE, retryDelay=0)
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        assert await ack(store, won, 1, status)
        again = await claim(store, batch=2)
        for _ in range(2):
            assert (await settle(store.pool, [ack_of(won, 1, status)], replay=True))[0].success
            assert await ack(store, again, 1)

    async def test_a_lease_of_another_group_is_refused_with_its_name(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store, group="workers")
        for group, given in (
            (QUEUE_MODE, "this ack names no consumerGroup"),
            ("others", "this ack is for consumerGroup 'others'"),
        ):
            answer = (await store.ack([ack_of(won, 1, group=group)]))[0]
            assert answer.error == f"{BAD_LEASE}: consumerGroup 'workers' holds it, and {given}"
        await expire_leases(store.pool)
        assert (await store.ack([ack_of(won, 1)]))[0].error == BAD_LEASE

    async def test_a_lease_on_another_partition_is_not_named(self, store: Store) -> None:
        await push(store, 1, partition="a")
        await push(store, 1, partition="b")
        first, second = await claim(store, group="workers"), await claim(store, group="workers")
        answer = (await store.ack([ack_of(first, 1, lease=second.lease_id)]))[0]
        assert answer.error == BAD_LEASE

    async def test_seek_makes_old_leases_unknown(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        assert await ack(store, won, 1)
        await store.pool.execute("select queen.seek_v1($1, '__QUEUE_MODE__', null, 'beginning', null)", QUEUE)
        assert not await ack(store, won, 1)
        assert numbers(await store.pop(QUEUE, batch=9)) == [1, 2]
