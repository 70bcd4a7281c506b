"""Pop: what is delivered, in which order, for how long it is held, and what keeps a partition back.

A test named `test_not_copied_...` guards against something that Queen MQ's server does and this one must not. Time
never passes by waiting: see time_travel.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from queenmq.storage.pop import PopRequest, pop
from queenmq.storage.store import Store
from tests.storage.shorthand import DAY, QUEUE, ack, by_partition, claim, cursor, dead_letters, numbers, push
from tests.storage.time_travel import age_messages, expire_leases, pass_time


class TestDelivery:
    async def test_messages_come_in_push_order_across_segments(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        await push(store, 4)
        await push(store, 5, 6)
        assert numbers(await store.pop(QUEUE, batch=5)) == [1, 2, 3, 4, 5]

    async def test_a_batch_may_end_and_begin_inside_a_segment(self, store: Store) -> None:
        await push(store, *range(1, 8))
        assert numbers(await store.pop(QUEUE, batch=3, auto_ack=True)) == [1, 2, 3]
        assert numbers(await store.pop(QUEUE, batch=3, auto_ack=True)) == [4, 5, 6]
        assert numbers(await store.pop(QUEUE, batch=3, auto_ack=True)) == [7]

    async def test_a_leased_partition_is_delivered_to_nobody_else_of_the_group(self, store: Store) -> None:
        await push(store, 1, 2)
        assert numbers(await store.pop(QUEUE)) == [1]
        assert numbers(await store.pop(QUEUE)) == []
        assert numbers(await store.pop(QUEUE, partition="p")) == []

    async def test_groups_are_independent(self, store: Store) -> None:
        await push(store, 1, 2)
        assert numbers(await store.pop(QUEUE, "a", batch=2)) == [1, 2]
        assert numbers(await store.pop(QUEUE, "b", batch=1)) == [1]
        assert numbers(await store.pop(QUEUE, batch=2)) == [1, 2]

    async def test_auto_ack_commits_on_delivery_and_holds_no_lease(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        assert numbers(await store.pop(QUEUE, batch=2, auto_ack=True)) == [1, 2]
        row = await cursor(store)
        assert (row["acked_seq"], row["lease_id"], row["consumed"], row["batches"]) == (2, None, 2, 1)
        assert numbers(await store.pop(QUEUE, batch=2)) == [3]

    async def test_an_unknown_queue_or_partition_is_empty_and_creates_nothing(self, store: Store) -> None:
        assert numbers(await store.pop("nobody")) == []
        assert numbers(await store.pop("nobody", partition="p")) == []
        await push(store, 1)
        assert numbers(await store.pop(QUEUE, partition="other")) == []
        assert await store.pool.fetchval("select count(*) from queen.partitions") == 1

    async def test_not_copied_wildcard_pops_see_a_push_only_later(self, store: Store) -> None:
        """Whatever a push was answered for is there for a queue-wide pop, drained or not."""
        for number in range(1, 20):
            await push(store, number)
            assert numbers(await store.pop(QUEUE, batch=5, auto_ack=True)) == [number]
            if number % 3 == 0:  # the cursor is declared drained
                assert numbers(await store.pop(QUEUE)) == []
                assert (await cursor(store))["ready_at"] is None
        await push(store, 1, partition="new")
        assert by_partition(await store.pop(QUEUE)) == {"new": [1]}

    async def test_many_requests_travel_in_one_call(self, store: Store) -> None:
        await push(store, 1, 2, partition="a")
        await push(store, 1, 2, partition="b")
        await store.pop(QUEUE, "idle", auto_ack=True, partitions=2, batch=10)
        place = store.directory.group(QUEUE, "idle")
        assert place is not None
        await store.pool.execute("select queen.seek_v1($1, 'idle', null, 'beginning', null)", QUEUE)
        requests = [PopRequest([place.group_id], batch=2) for _ in range(3)]
        answers = await pop(store.pool, requests)
        assert sorted(tuple(by_partition(answer)) for answer in answers) == [(), ("a",), ("b",)]
        assert {c.lease_id for answer in answers for c in answer.claims} <= {request.lease_id for request in requests}

    async def test_concurrent_pops_never_share_a_partition(self, store: Store) -> None:
        for partition in "abcdefgh":
            await push(store, 1, 2, 3, partition=partition)
        answers = await asyncio.gather(*[store.pop(QUEUE, batch=2, partitions=2) for _ in range(12)])
        won = Counter(name for answer in answers for name in by_partition(answer))
        assert not [name for name, times in won.items() if times > 1]
        leased = await store.pool.fetchval("select count(*) from queen.partition_consumers where lease_id is not null")
        assert leased == len(won)


class TestSeveralPartitions:
    async def test_the_batch_is_shared_by_the_partitions_of_a_pop(self, store: Store) -> None:
        for partition in "abc":
            await push(store, 1, 2, 3, partition=partition)
        result = await store.pop(QUEUE, batch=7, partitions=3)
        assert sorted(map(len, by_partition(result).values())) == [1, 3, 3]
        assert len({claim.lease_id for claim in result.claims}) == 1

    async def test_no_more_partitions_than_asked_for(self, store: Store) -> None:
        for partition in "abc":
            await push(store, 1, partition=partition)
        assert len((await store.pop(QUEUE, batch=10, partitions=2)).claims) == 2

    async def test_the_partition_route_takes_from_that_partition_only(self, store: Store) -> None:
        await push(store, 1, 2, partition="a")
        await push(store, 1, 2, partition="b")
        assert by_partition(await store.pop(QUEUE, partition="b", batch=9, partitions=5)) == {"b": [1, 2]}

    async def test_not_copied_no_fairness_among_partitions(self, store: Store) -> None:
        """6.2: the least recently served partition comes first, however much the others have."""
        for partition in "abcd":
            await push(store, *range(1, 6), partition=partition)
        served = []
        for _ in range(12):
            won = await claim(store, batch=1)
            served.append(won.partition)
            assert await ack(store, won, won.to_seq)
        assert sorted(served[:4]) == ["a", "b", "c", "d"]
        assert served == served[:4] * 3

    async def test_not_copied_delayed_partitions_starve_ready_ones(self, store: Store) -> None:
        """6.2: a partition with nothing ready does not use up the pop's share of partitions."""
        await store.configure(QUEUE, delayedProcessing=100)
        for partition in "abcdefg":
            await push(store, 1, partition=partition)
        await push(store, 1, partition="ready")
        await age_messages(store.pool, 200, QUEUE, "ready")
        assert by_partition(await store.pop(QUEUE, partitions=1)) == {"ready": [1]}

    async def test_not_copied_partitions_before_the_subscription_starve_ready_ones(self, store: Store) -> None:
        for partition in "abcdefg":
            await push(store, 1, partition=partition)
        moment = await store.pool.fetchval("select clock_timestamp()")
        await push(store, 1, partition="ready")
        assert by_partition(await store.pop(QUEUE, "g", subscription_from=moment)) == {"ready": [1]}


class TestLeaseTime:
    @pytest.mark.parametrize(("lease_time", "length"), [(300, 300), (20, 20), (0, 60)])
    async def test_a_lease_lasts_lease_time(self, store: Store, lease_time: int, length: int) -> None:
        await store.configure(QUEUE, leaseTime=lease_time)
        await push(store, 1)
        assert numbers(await store.pop(QUEUE)) == [1]
        await pass_time(store.pool, length - 15)
        assert numbers(await store.pop(QUEUE)) == []
        await pass_time(store.pool, 16)
        assert numbers(await store.pop(QUEUE)) == [1]

    async def test_an_expired_lease_brings_back_all_that_is_not_acked_with_the_same_ids(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        first = await store.pop(QUEUE, batch=3)
        assert await ack(store, first.claims[0], 1)
        await expire_leases(store.pool)
        second = await store.pop(QUEUE, batch=3)
        assert [m.id for m in second.messages()] == [m.id for m in first.messages()][1:]
        assert second.claims[0].lease_id != first.claims[0].lease_id

    async def test_the_attempt_is_told(self, store: Store) -> None:
        await push(store, 1)
        attempts = []
        for _ in range(3):
            attempts.append((await claim(store)).attempt)
            await expire_leases(store.pool)
        assert attempts == [1, 2, 3]

    async def test_an_empty_pop_tells_when_to_look_again(self, store: Store) -> None:
        await push(store, 1)
        held = await claim(store)
        assert (await store.pop(QUEUE)).ready_at == held.lease_expires_at
        assert (await store.pop(QUEUE, partition="p")).ready_at == held.lease_expires_at
        await ack(store, held, 1)
        assert (await store.pop(QUEUE)).ready_at is None


class TestCrashLoops:
    """An expired lease is a failed attempt of its first message."""

    async def test_not_copied_a_crash_loop_never_reaches_the_dead_letters(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=2)
        await push(store, 1, 2)
        for _ in range(3):
            assert numbers(await store.pop(QUEUE)) == [1]
            await expire_leases(store.pool)
        assert numbers(await store.pop(QUEUE)) == [2]
        assert await dead_letters(store) == [(1, 2, "Lease expired")]

    async def test_a_neighbour_does_not_pay_for_the_culprit(self, store: Store) -> None:
        """Whoever stands first in an expired batch is tried alone before it is dead-lettered."""
        await store.configure(QUEUE, retryLimit=1)
        await push(store, 1, 2, 3)
        for _ in range(2):
            assert numbers(await store.pop(QUEUE, batch=3)) == [1, 2, 3]
            await expire_leases(store.pool)
        alone = await claim(store, batch=3)
        assert [m.seq for m in alone.messages()] == [1]
        assert await ack(store, alone, 1)
        assert numbers(await store.pop(QUEUE, batch=3)) == [2, 3]
        assert await dead_letters(store) == []

    async def test_alone_and_expired_again_it_is_dead_lettered_and_the_rest_comes(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=0)
        await push(store, 1, 2, 3)
        await store.pop(QUEUE, batch=3)
        await expire_leases(store.pool)
        assert numbers(await store.pop(QUEUE, batch=3)) == [1]
        await expire_leases(store.pool)
        assert numbers(await store.pop(QUEUE, batch=3)) == [2, 3]
        assert await dead_letters(store) == [(1, 0, "Lease expired")]

    async def test_an_expiry_counts_for_the_first_message_only(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=1)
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        await expire_leases(store.pool)
        won = await claim(store, batch=2)
        assert await ack(store, won, 1)
        await expire_leases(store.pool)
        assert (await claim(store, batch=2)).attempt == 2
        assert await dead_letters(store) == []

    async def test_an_expiry_does_not_wait_for_the_retry_delay(self, store: Store) -> None:
        await store.configure(QUEUE, retryDelay=DAY * 1000)
        await push(store, 1)
        await store.pop(QUEUE)
        await expire_leases(store.pool)
        assert numbers(await store.pop(QUEUE)) == [1]


class TestWindowBuffer:
    async def test_a_partition_is_withheld_until_its_newest_message_is_old(self, store: Store) -> None:
        await store.configure(QUEUE, windowBuffer=60)
        await push(store, 1)
        await pass_time(store.pool, 50)
        await push(store, 2)
        assert numbers(await store.pop(QUEUE, batch=9)) == []
        await pass_time(store.pool, 50)
        assert numbers(await store.pop(QUEUE, batch=9)) == []
        assert numbers(await store.pop(QUEUE, batch=9, partition="p")) == []
        await pass_time(store.pool, 11)
        assert numbers(await store.pop(QUEUE, batch=9)) == [1, 2]

    async def test_an_open_window_does_not_hold_back_other_partitions(self, store: Store) -> None:
        await store.configure(QUEUE, windowBuffer=60)
        await push(store, 1, partition="quiet")
        await pass_time(store.pool, 100)
        await push(store, 1, partition="loud")
        assert by_partition(await store.pop(QUEUE, batch=9, partitions=9)) == {"quiet": [1]}

    async def test_the_end_of_the_window_is_told(self, store: Store) -> None:
        await store.configure(QUEUE, windowBuffer=60)
        await push(store, 1)
        created = await store.pool.fetchval("select max(created_at) + interval '60 s' from queen.messages")
        assert (await store.pop(QUEUE)).ready_at == created

    async def test_switching_the_window_off_delivers_at_once(self, store: Store) -> None:
        await store.configure(QUEUE, windowBuffer=60)
        await push(store, 1)
        assert numbers(await store.pop(QUEUE)) == []
        await store.configure(QUEUE, windowBuffer=0)
        assert numbers(await store.pop(QUEUE)) == [1]


class TestDelayedProcessing:
    async def test_a_message_is_invisible_until_it_is_old_enough(self, store: Store) -> None:
        await store.configure(QUEUE, delayedProcessing=60)
        await push(store, 1)
        await pass_time(store.pool, 40)
        await push(store, 2)
        assert numbers(await store.pop(QUEUE, batch=9)) == []
        await pass_time(store.pool, 30)
        assert numbers(await store.pop(QUEUE, batch=9, auto_ack=True)) == [1]
        assert numbers(await store.pop(QUEUE, batch=9)) == []
        await pass_time(store.pool, 40)
        assert numbers(await store.pop(QUEUE, batch=9)) == [2]

    async def test_the_moment_is_told(self, store: Store) -> None:
        await store.configure(QUEUE, delayedProcessing=60)
        await push(store, 1)
        created = await store.pool.fetchval("select max(created_at) + interval '60 s' from queen.messages")
        assert (await store.pop(QUEUE)).ready_at == created
        assert (await store.pop(QUEUE, partition="p")).ready_at == created


class TestTtl:
    async def test_without_a_ttl_nothing_is_ever_too_old(self, store: Store) -> None:
        await push(store, 1)
        await pass_time(store.pool, 1000 * DAY)
        assert numbers(await store.pop(QUEUE)) == [1]

    async def test_not_copied_ttl_has_no_effect(self, store: Store) -> None:
        await store.configure(QUEUE, ttl=60)
        await push(store, 1)
        await pass_time(store.pool, 61)
        await push(store, 2)
        assert numbers(await store.pop(QUEUE, batch=9)) == [2]
        await store.configure(QUEUE, ttl=0)
        assert numbers(await store.pop(QUEUE, "fresh", batch=9)) == [1, 2]


class TestSubscriptions:
    """Where a group starts is decided once, by its first pop."""

    async def test_new_starts_after_what_is_there(self, store: Store) -> None:
        await push(store, 1)
        assert numbers(await store.pop(QUEUE, "g", subscription_mode="new")) == []
        await push(store, 2)
        assert numbers(await store.pop(QUEUE, "g", batch=9)) == [2]

    async def test_now_is_new(self, store: Store) -> None:
        await push(store, 1)
        assert numbers(await store.pop(QUEUE, "g", subscription_from="now")) == []

    async def test_a_timestamp_starts_after_it_on_every_partition(self, store: Store) -> None:
        await push(store, 1, partition="a")
        await push(store, 1, partition="b")
        moment = await store.pool.fetchval("select clock_timestamp()")
        await push(store, 2, partition="b")
        await push(store, 1, partition="c")
        result = await store.pop(QUEUE, "g", subscription_from=moment, batch=9, partitions=9)
        assert by_partition(result) == {"b": [2], "c": [1]}

    async def test_a_partition_made_later_is_read_from_its_beginning(self, store: Store) -> None:
        await push(store, 1, partition="old")
        await store.pop(QUEUE, "g", subscription_mode="new")
        await push(store, 1, 2, partition="later")
        assert by_partition(await store.pop(QUEUE, "g", batch=9, partitions=9)) == {"later": [1, 2]}

    async def test_not_copied_a_later_new_moves_a_group_that_started_with_all(self, store: Store) -> None:
        await push(store, 1, partition="a")
        await push(store, 1, partition="b")
        assert len((await store.pop(QUEUE, "g", batch=1)).claims) == 1
        other = Store(store.pool)
        assert numbers(await other.pop(QUEUE, "g", subscription_mode="new", batch=9)) == [1]

    async def test_queue_mode_ignores_subscriptions(self, store: Store) -> None:
        await push(store, 1)
        assert numbers(await store.pop(QUEUE, subscription_mode="new")) == [1]

    async def test_on_the_partition_route_each_partition_decides_for_itself(self, store: Store) -> None:
        await push(store, 1, partition="a")
        await push(store, 1, partition="b")
        assert numbers(await store.pop(QUEUE, "g", partition="a", subscription_mode="new")) == []
        assert numbers(await store.pop(QUEUE, "g", partition="b", subscription_mode="all")) == [1]
        await push(store, 2, partition="a")
        assert numbers(await store.pop(QUEUE, "g", partition="a", batch=9)) == [2]

    async def test_the_first_queue_wide_pop_decides_for_partitions_not_popped_yet(self, store: Store) -> None:
        for partition in "abc":
            await push(store, 1, partition=partition)
        assert numbers(await store.pop(QUEUE, "g", partition="a", subscription_mode="all", auto_ack=True)) == [1]
        assert numbers(await store.pop(QUEUE, "g", subscription_mode="new", batch=9, partitions=9)) == []
        for partition in "abc":
            await push(store, 2, partition=partition)
        result = await store.pop(QUEUE, "g", batch=9, partitions=9)
        assert by_partition(result) == {"a": [2], "b": [2], "c": [2]}

    async def test_not_copied_a_recreated_queue_honours_old_subscriptions(self, store: Store) -> None:
        await push(store, 1)
        await store.pop(QUEUE, "g", subscription_mode="new")
        await store.delete_queue(QUEUE)
        await push(store, 1)
        assert numbers(await store.pop(QUEUE, "g")) == [1]
