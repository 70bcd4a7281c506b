"""Renew and release: how a lease gets longer, and how it ends unused."""

from __future__ import annotations

from queenmq.domain.ids import new_id
from queenmq.storage.pop import QUEUE_MODE
from queenmq.storage.store import Store
from tests.storage.shorthand import DAY, QUEUE, ack, by_partition, claim, cursor, held, numbers, push
from tests.storage.time_travel import expire_leases, pass_time


class TestRenew:
    async def test_a_renewed_lease_lasts_that_much_longer(self, store: Store) -> None:
        await store.configure(QUEUE, leaseTime=60)
        await push(store, 1)
        won = await claim(store)
        renewal = await store.renew(held(won), DAY)
        assert (renewal.renewed, renewal.error) == (1, None)
        assert renewal.expires_at == (await cursor(store))["lease_expires_at"]
        await pass_time(store.pool, DAY - 100)
        assert numbers(await store.pop(QUEUE)) == []
        await pass_time(store.pool, 101)
        assert numbers(await store.pop(QUEUE)) == [1]

    async def test_it_is_never_shortened(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        assert (await store.renew(held(won), 1)).expires_at == won.lease_expires_at

    async def test_every_partition_of_the_lease_is_renewed_and_the_earliest_end_told(self, store: Store) -> None:
        for partition in "ab":
            await push(store, 1, partition=partition)
        won = (await store.pop(QUEUE, batch=2, partitions=2)).claims
        await store.pool.execute(
            "update queen.partition_consumers set lease_expires_at = lease_expires_at + interval '10 days'"
            " where partition_id = $1",
            won[0].partition_id,
        )
        renewal = await store.renew(held(won[0]), DAY)
        assert renewal.renewed == 2
        assert renewal.expires_at == (await cursor(store, won[1].partition))["lease_expires_at"]

    async def test_an_expired_or_unknown_lease_is_not_renewed(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        await expire_leases(store.pool)
        assert (await store.renew(held(won))).error == "Lease expired"
        assert (await store.renew(new_id())).error == "Lease not found"
        assert (await store.renew("nonsense")).error == "Lease not found"
        fresh = await claim(store)
        assert (await store.renew(held(won))).renewed == 0
        assert await ack(store, fresh, 1)
        assert (await store.renew(held(fresh))).error == "Lease not found"


class TestRelease:
    async def test_released_messages_are_available_at_once_and_nothing_is_counted(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=0, retryDelay=DAY * 1000)
        await push(store, 1, 2)
        for _ in range(3):
            won = await claim(store, batch=2)
            assert won.attempt == 1
            assert await store.release(held(won)) == [(QUEUE, "p", QUEUE_MODE)]
        assert numbers(await store.pop(QUEUE, batch=2)) == [1, 2]

    async def test_what_was_acked_stays_acked(self, store: Store) -> None:
        await push(store, 1, 2)
        won = await claim(store, batch=2)
        assert await ack(store, won, 1)
        await store.release(held(won))
        assert await ack(store, won, 1)
        assert not await ack(store, won, 2)
        assert numbers(await store.pop(QUEUE, batch=2)) == [2]

    async def test_all_partitions_of_the_lease_are_freed(self, store: Store) -> None:
        for partition in "ab":
            await push(store, 1, partition=partition)
        lease = held((await store.pop(QUEUE, batch=2, partitions=2)).claims[0])
        assert sorted(await store.release(lease)) == [(QUEUE, "a", QUEUE_MODE), (QUEUE, "b", QUEUE_MODE)]
        assert len(by_partition(await store.pop(QUEUE, batch=2, partitions=2))) == 2

    async def test_an_unknown_lease_frees_nothing(self, store: Store) -> None:
        await push(store, 1)
        await claim(store)
        assert await store.release(new_id()) == []
        assert numbers(await store.pop(QUEUE)) == []


class TestOver:
    """What a lease may still say when it is over: only what it has said before."""

    async def test_a_late_ack_is_refused_also_for_what_another_has_settled_since(self, store: Store) -> None:
        """The second consumer has done the work; the first must not hear that its own counted."""
        await push(store, 1, 2)
        late = await claim(store)
        await expire_leases(store.pool)
        now = await claim(store)
        assert await ack(store, now, 1)
        assert not await ack(store, late, 1)
        assert await ack(store, now, 2)
        assert not await ack(store, late, 2)

    async def test_an_ack_may_be_repeated_when_the_lease_ended_by_it_and_another_has_come(self, store: Store) -> None:
        await push(store, 1)
        done = await claim(store)
        assert await ack(store, done, 1)
        await push(store, 2)
        await claim(store)
        assert await ack(store, done, 1)

    async def test_a_lease_that_failed_a_message_does_not_complete_it_after_another_did(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        over = await claim(store)
        assert await ack(store, over, 1)
        assert await ack(store, over, 2, "retry")
        assert await ack(store, await claim(store), 2)
        assert await ack(store, over, 1)
        assert not await ack(store, over, 2)

    async def test_a_released_lease_does_not_complete_what_another_did(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        over = await claim(store)
        assert await ack(store, over, 1)
        assert len(await store.release(held(over))) == 1
        assert await ack(store, await claim(store), 2)
        assert await ack(store, over, 1)
        assert not await ack(store, over, 2)
