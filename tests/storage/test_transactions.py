"""Transactions: acks and pushes together or not at all.

A test named `test_not_copied_...` guards against something that Queen MQ's server does and this one must not.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from queenmq.domain.ids import new_id
from queenmq.domain.segments import PushItem
from queenmq.storage.ack import AckItem
from queenmq.storage.errors import AckRefused, LeaseNotHeld, QueueFull
from queenmq.storage.store import Store
from queenmq.storage.transactions import Committed
from tests.storage.shorthand import QUEUE, ack, ack_of, claim, cursor, dead_letters, held, numbers, push
from tests.storage.time_travel import expire_leases

OUT = "out"


def output(number: int = 1, tx: str | None = None, partition: str = "Default") -> PushItem:
    return PushItem(OUT, str(number).encode(), partition, tx)


async def stored(store: Store) -> list[int]:
    rows = await store.pool.fetch("select payload::int as n from queen.messages where queue = $1 order by seq", OUT)
    return [row["n"] for row in rows]


async def commit(
    store: Store, acks: list[AckItem], pushes: list[PushItem], required: list[str] | None = None
) -> Committed:
    return await store.commit(store.transaction(acks, pushes, required or []))


class TestAllOrNothing:
    async def test_acks_and_pushes_happen_together(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store)
        done = await commit(store, [ack_of(won, 1), ack_of(won, 2)], [output(7), output(8)], [held(won)])
        assert [(r.index, r.success, r.error, r.dlq) for r in done.acks] == [
            (0, True, None, False),
            (1, True, None, False),
        ]
        assert [(v.status, v.seq) for v in done.pushes] == [("queued", 1), ("queued", 2)]
        assert await stored(store) == [7, 8]
        row = await cursor(store)
        assert (row["acked_seq"], row["lease_id"], row["ready_at"]) == (2, None, None)

    async def test_a_refused_ack_undoes_everything(self, store: Store) -> None:
        await push(store, 1, partition="a")
        await push(store, 1, partition="b")
        good, bad = (await store.pop(QUEUE, batch=2, partitions=2)).claims
        with pytest.raises(AckRefused, match="Invalid or expired lease"):
            await commit(store, [ack_of(good, 1), ack_of(bad, 1, lease=new_id())], [output()])
        assert await stored(store) == []
        assert (await cursor(store, good.partition))["acked_seq"] == 0

    async def test_an_unknown_message_undoes_everything(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        with pytest.raises(AckRefused, match="Message not found") as caught:
            await commit(store, [ack_of(won, 1), AckItem(won.partition_uid, "nothing")], [output()])
        assert caught.value.detail == "1"
        assert await stored(store) == []
        assert (await cursor(store))["acked_seq"] == 0

    async def test_an_unknown_status_undoes_everything(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        with pytest.raises(AckRefused, match="status must be one of"):
            await commit(store, [ack_of(won, 1, "done")], [output()])
        assert await stored(store) == []

    async def test_a_full_queue_undoes_everything(self, store: Store) -> None:
        await store.configure(OUT, maxSize=1)
        await push(store, 1)
        won = await claim(store)
        with pytest.raises(QueueFull):
            await commit(store, [ack_of(won, 1)], [output(1), output(2)])
        assert await stored(store) == []
        assert (await cursor(store))["acked_seq"] == 0

    async def test_only_pushes_or_only_acks_will_do(self, store: Store) -> None:
        await push(store, 1)
        await commit(store, [], [output(5)])
        assert await stored(store) == [5]
        done = await commit(store, [ack_of(await claim(store), 1)], [])
        assert (done.acks[0].success, done.pushes) == (True, [])

    async def test_a_pushed_message_wakes_its_consumers(self, store: Store) -> None:
        await push(store, 1)
        await commit(store, [], [output(1)])
        assert numbers(await store.pop(OUT, auto_ack=True)) == [1]
        assert numbers(await store.pop(OUT)) == []
        await commit(store, [ack_of(await claim(store), 1)], [output(2)])
        assert numbers(await store.pop(OUT)) == [2]

    async def test_a_message_may_go_back_to_the_partition_it_came_from(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        await commit(store, [ack_of(won, 1)], [PushItem(QUEUE, b"2", "p")])
        assert numbers(await store.pop(QUEUE)) == [2]

    async def test_a_deleted_queue_is_made_anew(self, store: Store) -> None:
        await commit(store, [], [output(1)])
        await Store(store.pool).delete_queue(OUT)
        await commit(store, [], [output(2)])
        assert await stored(store) == [2]


class TestLeases:
    """Required leases are checked, and fence the acks that carry none of their own."""

    @pytest.mark.parametrize("lease", ["someone-else", "0196c2f5-1111-7000-8000-000000000000"])
    async def test_not_copied_required_leases_are_ignored(self, store: Store, lease: str) -> None:
        await push(store, 1)
        won = await claim(store)
        with pytest.raises(LeaseNotHeld) as caught:
            await commit(store, [ack_of(won, 1)], [output()], [held(won), lease])
        assert caught.value.detail == lease
        assert await stored(store) == []
        assert (await cursor(store))["acked_seq"] == 0

    async def test_a_required_lease_must_not_have_expired(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        await expire_leases(store.pool)
        with pytest.raises(LeaseNotHeld):
            await commit(store, [], [output()], [held(won)])
        assert await stored(store) == []

    async def test_not_copied_acks_without_a_lease_are_not_fenced_by_the_required_one(self, store: Store) -> None:
        for partition in "ab":
            await push(store, 1, partition=partition)
        mine, other = await claim(store), await claim(store)
        with pytest.raises(AckRefused, match="Invalid or expired lease"):
            await commit(store, [ack_of(other, 1, lease=None)], [output()], [held(mine)])
        await commit(store, [ack_of(mine, 1, lease=None)], [output()], [held(mine)])
        assert (await cursor(store, mine.partition))["acked_seq"] == 1
        assert (await cursor(store, other.partition))["acked_seq"] == 0

    async def test_a_lease_of_the_operation_is_checked(self, store: Store) -> None:
        await push(store, 1, 2)
        stale = await claim(store)
        await expire_leases(store.pool)
        fresh = await claim(store)
        with pytest.raises(AckRefused):
            await commit(store, [ack_of(stale, 1)], [])
        await commit(store, [ack_of(fresh, 1)], [])
        assert (await cursor(store))["acked_seq"] == 1

    async def test_without_any_lease_a_message_may_be_acked_that_was_never_popped(self, store: Store) -> None:
        await store.push([PushItem(QUEUE, b"1", "p", "t"), PushItem(QUEUE, b"2", "p", "u")])
        uid = await store.pool.fetchval("select uid::text from queen.partitions")
        await commit(store, [AckItem(uid, "t", group="g")], [])
        assert numbers(await store.pop(QUEUE, "g", batch=9)) == [2]


class TestStatuses:
    async def test_not_copied_a_failed_ack_dead_letters_at_once(self, store: Store) -> None:
        """21.6: it is a retry like any other."""
        await store.configure(QUEUE, retryLimit=1, retryDelay=0)
        await push(store, 1)
        done = await commit(store, [ack_of(await claim(store), 1, "failed")], [output(1)])
        assert (done.acks[0].success, done.acks[0].dlq) == (True, False)
        done = await commit(store, [ack_of(await claim(store), 1, "failed", error="boom")], [output(2)])
        assert (done.acks[0].success, done.acks[0].dlq) == (True, True)
        assert await dead_letters(store) == [(1, 1, "boom")]
        assert await stored(store) == [1, 2]

    async def test_dlq_and_retry_are_statuses_too(self, store: Store) -> None:
        await push(store, 1, 2)
        done = await commit(store, [ack_of(await claim(store, batch=1), 1, "dlq")], [])
        assert done.acks[0].dlq
        await commit(store, [ack_of(await claim(store), 2, "retry")], [])
        assert (await claim(store)).attempt == 1

    async def test_not_copied_progress_does_not_reset_retries(self, store: Store) -> None:
        await store.configure(QUEUE, retryDelay=0)
        await push(store, 1, 2)
        assert await ack(store, await claim(store), 1, "failed")
        await commit(store, [ack_of(await claim(store), 1)], [])
        assert (await cursor(store))["retries"] is None

    async def test_a_completed_ack_behind_a_failed_one_undoes_everything(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store)
        with pytest.raises(AckRefused, match="an earlier message"):
            await commit(store, [ack_of(won, 1, "failed"), ack_of(won, 2)], [output()])
        row = await cursor(store)
        assert (row["acked_seq"], row["retries"], str(row["lease_id"])) == (0, None, won.lease_id)


class TestDuplicates:
    async def test_not_copied_a_duplicate_push_aborts_the_transaction(self, store: Store) -> None:
        """9 and 21.6: it is a verdict."""
        first = (await store.push([output(1, "t")]))[0]
        await push(store, 1)
        done = await commit(
            store, [ack_of(await claim(store), 1)], [output(2), output(3, "t"), output(4, "u"), output(5, "u")]
        )
        assert [v.status for v in done.pushes] == ["queued", "duplicate", "queued", "duplicate"]
        assert done.pushes[1].message_id == first.message_id
        assert await stored(store) == [1, 2, 4]
        assert (await cursor(store))["acked_seq"] == 1

    async def test_nothing_but_duplicates_is_a_success(self, store: Store) -> None:
        await store.push([output(1, "t")])
        await push(store, 1)
        done = await commit(store, [ack_of(await claim(store), 1)], [output(2, "t")])
        assert [v.status for v in done.pushes] == ["duplicate"]
        assert (await cursor(store))["acked_seq"] == 1


class TestReplay:
    @pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
    async def test_after_a_lost_answer_it_may_be_committed_again(self, store: Store, status: str) -> None:
        await store.configure(QUEUE, retryDelay=0)
        await push(store, 1)
        won = await claim(store)
        transaction = store.transaction([ack_of(won, 1, status)], [output(1), output(2, "t")], [held(won)])
        first = await store.commit(transaction)
        second = await store.commit(transaction, replay=True)
        assert [(v.status, v.message_id) for v in second.pushes] == [(v.status, v.message_id) for v in first.pushes]
        assert [(r.success, r.dlq) for r in second.acks] == [(r.success, r.dlq) for r in first.acks]
        assert await stored(store) == [1, 2]
        assert (await cursor(store))["retries"] == {"failed": '{"1": 1}', "retry": '{"1": 0}'}.get(status)

    async def test_a_lost_first_attempt_is_simply_done_by_the_second(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        transaction = store.transaction([ack_of(won, 1)], [output(1)], [held(won)])
        async with store.pool.acquire() as connection:
            attempt = connection.transaction()
            await attempt.start()
            await transaction.commit(connection)
            await attempt.rollback()
        assert (await store.commit(transaction, replay=True)).acks[0].success
        assert await stored(store) == [1]
        assert (await cursor(store))["acked_seq"] == 1

    @pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
    @pytest.mark.parametrize("end", ["expired", "given back"])
    async def test_a_lease_that_ended_before_the_first_attempt_is_not_taken_for_its_doing(
        self, store: Store, status: str, end: str
    ) -> None:
        """The first attempt was lost without a commit, and meanwhile another consumer got the message."""
        await push(store, 1)
        won = await claim(store)
        transaction = store.transaction([ack_of(won, 1, status)], [output(1)], [held(won)])
        if end == "expired":
            await expire_leases(store.pool)
        else:
            await store.release(held(won))
        fresh = await claim(store)
        with pytest.raises(LeaseNotHeld):
            await store.commit(transaction, replay=True)
        assert await stored(store) == []
        assert await ack(store, fresh, 1)


async def test_transactions_over_the_same_partitions_do_not_deadlock(store: Store) -> None:
    """Each acks in some partitions and pushes to others, in orders of its own."""
    names = list("abcdefgh")
    for name in names:
        await push(store, *range(1, 21), partition=name)

    async def work(seed: int) -> int:
        choice = random.Random(seed)
        for _ in range(5):
            won = (await store.pop(QUEUE, batch=3, partitions=3)).claims
            acks = [ack_of(one, one.to_seq) for one in won]
            choice.shuffle(acks)
            await commit(store, acks, [PushItem(QUEUE, b"0", name) for name in choice.sample(names, 4)])
        return seed

    assert await asyncio.gather(*[work(seed) for seed in range(10)]) == list(range(10))
