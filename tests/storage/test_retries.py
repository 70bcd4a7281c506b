"""Failed, retry and dlq acks: who holds the cursor, what is counted, when it comes again, where it ends.

`failed` counts for its message and waits retryDelay; `retry` counts nothing and never
waits; both hold the cursor. With retryLimit n a message is delivered n + 1 times and dead-lettered with retry count n.
"""

from __future__ import annotations

import json

import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.ack import AckResult
from queenmq.storage.store import Store
from tests.storage.shorthand import DAY, QUEUE, ack, ack_of, claim, cursor, dead_letters, numbers, push
from tests.storage.time_travel import expire_leases, pass_retry_delays, pass_time

HELD = "Not acknowledged: an earlier message of this partition is to be delivered again"
PASSED = "Not applied: this message or a later one of its partition is acknowledged already"


async def settle(store: Store, verdicts: dict[int, str], batch: int = 10) -> list[AckResult]:
    """Pop a batch and answer for these of its messages, in one call."""
    won = await claim(store, batch=batch)
    return await store.ack([ack_of(won, seq, status) for seq, status in verdicts.items()])


async def retries(store: Store) -> dict[str, int] | None:
    stored = (await cursor(store))["retries"]
    return None if stored is None else dict(json.loads(stored))


@pytest.fixture
async def orders(store: Store) -> Store:
    """A queue with retryLimit 2, no retry delay, and the messages 1 to 4 in one partition."""
    await store.configure(QUEUE, retryLimit=2, retryDelay=0)
    await push(store, 1, 2, 3, 4)
    return store


class TestHolding:
    async def test_not_copied_a_mixed_batch_loses_the_failed_message(self, orders: Store) -> None:
        """7.4 and 21.2: nothing behind the first failure is acknowledged."""
        answers = await settle(orders, {1: "completed", 2: "failed", 3: "completed"}, batch=3)
        assert [(r.success, r.error) for r in answers] == [(True, None), (True, None), (False, HELD)]
        assert numbers(await orders.pop(QUEUE, batch=9)) == [2, 3, 4]

    @pytest.mark.parametrize("holder", ["failed", "retry"])
    @pytest.mark.parametrize("behind", ["completed", "dlq"])
    async def test_nothing_behind_a_held_message_is_settled(self, orders: Store, holder: str, behind: str) -> None:
        answers = await settle(orders, {1: holder, 2: behind})
        assert [r.success for r in answers] == [True, False]
        assert await dead_letters(orders) == []
        assert numbers(await orders.pop(QUEUE, batch=9)) == [1, 2, 3, 4]

    @pytest.mark.parametrize("status", ["failed", "retry"])
    async def test_what_is_to_come_again_ends_the_lease(self, orders: Store, status: str) -> None:
        answer = (await settle(orders, {1: status}))[0]
        assert (answer.success, answer.lease_released, answer.dlq) == (True, True, False)
        assert numbers(await orders.pop(QUEUE, batch=9)) == [1, 2, 3, 4]

    async def test_not_copied_a_later_ack_of_the_lease_passes_the_failure(self, orders: Store) -> None:
        won = await claim(orders)
        assert await ack(orders, won, 2, "failed")
        assert not await ack(orders, won, 3)
        assert numbers(await orders.pop(QUEUE, batch=9)) == [1, 2, 3, 4]

    async def test_without_a_lease_a_mixed_batch_is_clamped_too(self, orders: Store) -> None:
        won = await claim(orders)
        answers = await orders.ack([ack_of(won, seq, s, lease=None) for seq, s in ((1, "failed"), (4, "completed"))])
        assert [r.success for r in answers] == [True, False]
        assert (await cursor(orders))["acked_seq"] == 0

    @pytest.mark.parametrize("holder", ["failed", "retry"])
    @pytest.mark.parametrize("behind", ["completed", "dlq", "failed"])
    async def test_not_copied_separate_acks_without_a_lease_lose_the_failed_message(
        self, store: Store, holder: str, behind: str
    ) -> None:
        """7.4: what is to come again is not passed by a later call, until it has been delivered again."""
        await store.configure(QUEUE, retryLimit=1, retryDelay=0)
        await push(store, 1, 2)
        assert await ack(store, await claim(store), 2, "failed")  # its next failure is its last
        won = await claim(store)
        assert await ack(store, won, 1, holder, lease=None)
        assert await ack(store, won, 2, behind, lease=None) == (behind == "failed")
        assert await dead_letters(store) == []
        again = await claim(store)
        assert (again.from_seq, again.to_seq) == (0, 2)
        assert await ack(store, again, 2, lease=None)

    async def test_the_middle_of_a_batch_may_fail_alone(self, orders: Store) -> None:
        """Only 3 is named: what stands before it is not settled by a failure."""
        await settle(orders, {3: "failed"})
        assert await retries(orders) == {"3": 1}
        assert numbers(await orders.pop(QUEUE, batch=9)) == [1, 2, 3, 4]


class TestCounting:
    async def test_a_message_is_delivered_limit_plus_one_times(self, orders: Store) -> None:
        for _ in range(2):
            assert [(r.success, r.dlq) for r in await settle(orders, {1: "failed"})] == [(True, False)]
        assert [(r.success, r.dlq) for r in await settle(orders, {1: "failed"})] == [(True, True)]
        assert numbers(await orders.pop(QUEUE, batch=9)) == []  # 2..4 are still held by the lease
        await expire_leases(orders.pool)
        assert numbers(await orders.pop(QUEUE, batch=9)) == [2, 3, 4]
        assert await dead_letters(orders) == [(1, 2, "Retries exhausted")]

    async def test_limit_zero_dead_letters_at_the_first_failure(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=0)
        await push(store, 1)
        assert (await settle(store, {1: "failed"}))[0].dlq
        assert await dead_letters(store) == [(1, 0, "Retries exhausted")]

    async def test_not_copied_the_counter_is_shared_and_survives_a_dead_letter(self, store: Store) -> None:
        """7.4 and 21.4: a fails twice and is dead-lettered; b and c have all their attempts."""
        await store.configure(QUEUE, retryLimit=1, retryDelay=0)
        await push(store, 1, 2, 3)
        outcome = [(await settle(store, {seq: "failed"}, batch=1))[0].dlq for seq in (1, 1, 2, 2, 3)]
        assert outcome == [False, True, False, True, False]
        assert [seq for seq, _, _ in await dead_letters(store)] == [1, 2]

    async def test_failing_a_whole_batch_counts_for_each_message(self, orders: Store) -> None:
        await settle(orders, dict.fromkeys((1, 2, 3, 4), "failed"))
        assert await retries(orders) == {"1": 1, "2": 1, "3": 1, "4": 1}

    async def test_a_retry_counts_nothing(self, orders: Store) -> None:
        for _ in range(9):
            assert (await settle(orders, {1: "retry"}))[0].success
        assert (await claim(orders)).attempt == 1

    async def test_progress_forgets_the_failures_behind_it(self, orders: Store) -> None:
        await settle(orders, {1: "failed"})
        await settle(orders, {2: "failed"})
        won = await claim(orders)
        assert await ack(orders, won, 1)
        assert await retries(orders) == {"2": 1}
        assert await ack(orders, won, 4)
        assert await retries(orders) is None

    async def test_auto_ack_forgets_them_too(self, orders: Store) -> None:
        await settle(orders, {1: "failed", 3: "failed"})
        assert numbers(await orders.pop(QUEUE, batch=2, auto_ack=True)) == [1, 2]
        assert await retries(orders) == {"3": 1}

    async def test_failures_and_expiries_count_together(self, orders: Store) -> None:
        await settle(orders, {1: "failed"}, batch=1)
        await claim(orders, batch=1)
        await expire_leases(orders.pool)
        assert (await settle(orders, {1: "failed"}, batch=1))[0].dlq
        assert await dead_letters(orders) == [(1, 2, "Retries exhausted")]

    async def test_the_attempt_is_told(self, orders: Store) -> None:
        await settle(orders, {1: "failed"})
        assert (await claim(orders)).attempt == 2


class TestRetryDelay:
    async def test_not_copied_the_retry_delay_has_no_effect(self, store: Store) -> None:
        """Milliseconds, waited after `failed`."""
        await store.configure(QUEUE, retryDelay=50_000)
        await push(store, 1)
        await settle(store, {1: "failed"})
        assert numbers(await store.pop(QUEUE)) == []
        assert numbers(await store.pop(QUEUE, partition="p")) == []
        await pass_time(store.pool, 30)
        assert numbers(await store.pop(QUEUE)) == []
        await pass_time(store.pool, 21)
        assert numbers(await store.pop(QUEUE)) == [1]

    async def test_the_moment_is_told_and_a_push_does_not_shorten_it(self, store: Store) -> None:
        await store.configure(QUEUE, retryDelay=DAY * 1000)
        await push(store, 1)
        await settle(store, {1: "failed"})
        ready = (await cursor(store))["ready_at"]
        await push(store, 2)
        assert (await store.pop(QUEUE)).ready_at == ready
        await pass_retry_delays(store.pool)
        assert numbers(await store.pop(QUEUE, batch=9)) == [1, 2]

    async def test_a_retry_does_not_wait(self, store: Store) -> None:
        await store.configure(QUEUE, retryDelay=DAY * 1000)
        await push(store, 1, 2)
        await settle(store, {1: "retry", 2: "failed"})
        assert numbers(await store.pop(QUEUE, batch=9)) == [1, 2]

    async def test_other_partitions_do_not_wait(self, store: Store) -> None:
        await store.configure(QUEUE, retryDelay=DAY * 1000)
        await push(store, 1, partition="a")
        await push(store, 1, partition="b")
        won = await claim(store)
        assert await ack(store, won, 1, "failed")
        assert (await claim(store)).partition != won.partition


class TestDeadLetters:
    async def test_dlq_is_immediate_and_settles_everything_before(self, orders: Store) -> None:
        answer = (await settle(orders, {3: "dlq"}))[0]
        assert (answer.success, answer.dlq) == (True, True)
        await expire_leases(orders.pool)
        assert numbers(await orders.pop(QUEUE, batch=9)) == [4]
        assert [(seq, count) for seq, count, _ in await dead_letters(orders)] == [(3, 0)]

    async def test_a_dead_letter_in_the_middle_lets_the_rest_of_the_batch_go_on(self, orders: Store) -> None:
        answers = await settle(orders, {1: "completed", 2: "dlq", 3: "completed", 4: "completed"})
        assert [(r.success, r.dlq) for r in answers] == [(True, False), (True, True), (True, False), (True, False)]
        assert all(r.lease_released for r in answers)

    @pytest.mark.parametrize(
        ("error", "stored"), [("boom", "boom"), ("", "Retries exhausted"), (None, "Retries exhausted")]
    )
    async def test_not_copied_an_empty_error_text(self, store: Store, error: str | None, stored: str) -> None:
        await store.configure(QUEUE, retryLimit=0)
        await push(store, 1)
        won = await claim(store)
        assert await ack(store, won, 1, "failed", error=error)
        assert await dead_letters(store) == [(1, 0, stored)]

    async def test_not_copied_a_dead_letter_vanishes_with_its_message(self, store: Store) -> None:
        """18, 11 and 21.7: it owns a copy of everything the message had."""
        trace = "0196c2f5-1111-7000-8000-000000000000"
        pushed = [PushItem(QUEUE, b"1", "p"), PushItem(QUEUE, b'{"a": "\xc3\xa9"}', "p", "tx", trace, "alice", True)]
        await store.push(pushed)
        message = (await store.pop(QUEUE, batch=2)).messages()[1]
        await expire_leases(store.pool)
        assert (await settle(store, {2: "dlq"}))[0].dlq
        await store.pool.execute("delete from queen.segments")
        (row,) = await store.pool.fetch(
            "select message_id::text, transaction_id, data, trace_id::text, producer_sub, encrypted, created_at,"
            " partition_name, consumer_group from queen.dead_letter_queue"
        )
        assert tuple(row) == (
            *(message.id, "tx", b'{"a": "\xc3\xa9"}', trace, "alice", True, message.created_at),
            *("p", "__QUEUE_MODE__"),
        )

    async def test_a_repeated_dead_letter_ack_answers_the_same(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        for _ in range(2):
            answer = (await store.ack([ack_of(won, 1, "dlq")]))[0]
            assert (answer.success, answer.dlq) == (True, True)
        assert len(await dead_letters(store)) == 1

    @pytest.mark.parametrize("status", ["failed", "dlq"])
    async def test_a_repeated_ack_of_a_message_that_was_discarded_answers_the_same(
        self, store: Store, status: str
    ) -> None:
        """The audit row says so where no dead letter does; its neighbour, which was only passed, is another matter."""
        await store.configure(QUEUE, retryLimit=0, deadLetterQueue=False)
        await push(store, 1, 2)
        won = await claim(store)
        for _ in range(2):
            answer = (await store.ack([ack_of(won, 2, status)]))[0]
            assert (answer.success, answer.dlq) == (True, False)
        assert not await ack(store, won, 1, status)

    @pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
    @pytest.mark.parametrize("fenced", [True, False])
    async def test_a_verdict_on_a_message_that_was_passed_is_refused(
        self, orders: Store, status: str, fenced: bool
    ) -> None:
        won = await claim(orders)
        assert await ack(orders, won, 2)
        item = ack_of(won, 1, status) if fenced else ack_of(won, 1, status, lease=None)
        answer = (await orders.ack([item]))[0]
        assert (answer.success, answer.error) == (False, PASSED)
        assert await dead_letters(orders) == []

    async def test_each_group_has_its_own(self, store: Store) -> None:
        await push(store, 1)
        for group in ("a", "b"):
            assert await ack(store, await claim(store, group=group), 1, "dlq", group=group)
        assert len(await dead_letters(store)) == 2

    async def test_not_copied_dead_letter_queue_false_has_no_effect(self, store: Store) -> None:
        """4 and 21.5: exhausted messages are discarded, with an audit row."""
        await store.configure(QUEUE, retryLimit=0, deadLetterQueue=False)
        await push(store, 1, 2)
        answer = (await settle(store, {1: "failed"}, batch=1))[0]
        assert (answer.success, answer.dlq) == (True, False)
        assert await dead_letters(store) == []
        rows = await store.pool.fetch(
            "select kind, queue_name, partition_name, messages, detail from queen.retention_history"
        )
        assert [tuple(row)[:4] for row in rows] == [("discarded", QUEUE, "p", 1)]
        assert "Retries exhausted" in rows[0]["detail"]
        assert numbers(await store.pop(QUEUE)) == [2]

    async def test_not_copied_dlq_after_max_retries_false_has_no_effect(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=1, retryDelay=0, dlqAfterMaxRetries=False)
        await push(store, 1)
        for _ in range(4):
            assert not (await settle(store, {1: "failed"}))[0].dlq
            await claim(store)
            await expire_leases(store.pool)
        assert (await claim(store)).attempt == 9
        assert await dead_letters(store) == []
