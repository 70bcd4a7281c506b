"""Consumer groups: how far they are behind, seek and delete."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import groups
from queenmq.storage.ack import AckItem
from queenmq.storage.store import Store

from .draining import created, drain, push_apart
from .shorthand import QUEUE, ack, ack_of, claim, cursor, numbers, push
from .time_travel import age_messages, expire_leases
from .waiting import is_waiting


class TestSeek:
    @pytest.fixture
    async def consumed(self, store: Store) -> Store:
        """1, 2, 3 a minute apart in p, 11 in other, all consumed by g."""
        await push_apart(store, 1, 2, 3)
        await push(store, 11, partition="other")
        assert sorted(await drain(store, "g")) == [1, 2, 3, 11]
        return store

    async def test_to_the_beginning_delivers_everything_again(self, consumed: Store) -> None:
        assert await groups.seek(consumed.pool, "g", QUEUE, "beginning") == 2
        assert sorted(await drain(consumed, "g")) == [1, 2, 3, 11]

    async def test_one_partition_only(self, consumed: Store) -> None:
        assert await groups.seek(consumed.pool, "g", QUEUE, "beginning", partition="p") == 1
        assert await drain(consumed, "g") == [1, 2, 3]
        assert await groups.seek(consumed.pool, "g", QUEUE, "beginning", partition="none") == 0

    async def test_to_the_end_skips(self, consumed: Store) -> None:
        await push(consumed, 4, 5)
        assert await groups.seek(consumed.pool, "g", QUEUE, "end") == 2
        assert await drain(consumed, "g") == []
        assert (await cursor(consumed, group="g"))["ready_at"] is None
        await push(consumed, 6)
        assert await drain(consumed, "g") == [6]

    @pytest.mark.parametrize(
        ("offset", "expected"), [(-3600, [1, 2, 3]), (-1, [2, 3]), (0, [3]), (1, [3]), (59, [3]), (3600, [])]
    )
    async def test_to_a_time(self, consumed: Store, offset: int, expected: list[int]) -> None:
        """Relative to the second message: a message at that very time counts as passed."""
        moment = (await created(consumed))[2] + timedelta(seconds=offset)
        assert await groups.seek(consumed.pool, "g", QUEUE, moment, partition="p") == 1
        assert await drain(consumed, "g") == expected

    async def test_the_old_lease_is_worth_nothing(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        won = await claim(store, 2, group="g")
        await groups.seek(store.pool, "g", QUEUE, "beginning")
        assert not await ack(store, won, 2, group="g")
        assert await drain(store, "g") == [1, 2, 3]

    @pytest.mark.parametrize(("target", "left"), [("beginning", [1, 2]), ("end", [])])
    async def test_a_lease_that_had_ended_is_worth_nothing_either(
        self, store: Store, target: Literal["beginning", "end"], left: list[int]
    ) -> None:
        """A repeated ack of settled messages succeeds, but not across a seek."""
        await push(store, 1, 2)
        won = await claim(store, 1, group="g")
        assert await ack(store, won, 1, group="g")
        assert await ack(store, won, 1, group="g")
        await groups.seek(store.pool, "g", QUEUE, target)
        assert not await ack(store, won, 1, group="g")
        assert await drain(store, "g") == left

    async def test_an_old_ack_does_not_settle_the_new_delivery(self, store: Store) -> None:
        await push(store, 1, 2)
        old = await claim(store, 2, group="g")
        await groups.seek(store.pool, "g", QUEUE, "beginning")
        new = await claim(store, 2, group="g")
        assert not await ack(store, old, 2, group="g")
        assert await ack(store, new, 2, group="g")

    async def test_retries_are_forgotten(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=1, retryDelay=0)
        await push(store, 1)
        for _ in range(2):
            won = await claim(store, group="g")
            assert won.attempt == 1
            assert await ack(store, won, 1, "failed", group="g")
            await groups.seek(store.pool, "g", QUEUE, "beginning")

    async def test_to_the_beginning_stays_there_for_a_group_that_subscribed_as_new(self, store: Store) -> None:
        await push(store, 1)
        await drain(store, "g", subscription_mode="new")
        await groups.seek(store.pool, "g", QUEUE, "beginning")
        assert await drain(store, "g", subscription_mode="new") == [1]

    async def test_before_the_first_pop_of_a_partition(self, store: Store) -> None:
        """Positions that are not resolved yet are decided by the seek."""
        await push_apart(store, 1, 2)
        await store.pop(QUEUE, "g", partition="none")
        await store.pool.fetch("select * from queen.register_group_v1($1, 'g', null, null)", QUEUE)
        assert await groups.seek(store.pool, "g", QUEUE, (await created(store))[1]) == 1
        assert await drain(store, "g", partition="p", subscription_mode="new") == [2]

    async def test_other_groups_do_not_move(self, consumed: Store) -> None:
        await drain(consumed, "h")
        await groups.seek(consumed.pool, "g", QUEUE, "beginning")
        assert await drain(consumed, "h") == []

    async def test_an_unknown_group_or_queue(self, consumed: Store) -> None:
        assert await groups.seek(consumed.pool, "nobody", QUEUE, "end") == 0
        assert await groups.seek(consumed.pool, "g", "none", "end") == 0

    async def test_queue_mode(self, store: Store) -> None:
        await push(store, 1)
        await store.pop(QUEUE, auto_ack=True)
        await groups.seek(store.pool, "__QUEUE_MODE__", QUEUE, "beginning")
        assert numbers(await store.pop(QUEUE)) == [1]

    async def test_back_over_what_retention_removed(self, consumed: Store) -> None:
        await consumed.pool.execute(
            "delete from queen.segments where last_seq <= 2;"
            " update queen.partition_lookup set trimmed_seq = 2 where last_seq = 3"
        )
        await groups.seek(consumed.pool, "g", QUEUE, "beginning", partition="p")
        assert await drain(consumed, "g") == [3]

    async def test_a_bounded_queue_is_as_full_as_it_is_to_be_consumed(self, store: Store) -> None:
        await store.configure(QUEUE, maxSize=3)
        await push(store, 1, 2)
        await drain(store, "g")
        await push(store, 3)
        await groups.seek(store.pool, "g", QUEUE, "beginning")
        assert (await store.push([PushItem(QUEUE, b"4", "p")]))[0].status == "queue_full"
        await groups.seek(store.pool, "g", QUEUE, "end")
        assert (await store.push([PushItem(QUEUE, b"4", "p")]))[0].status == "queued"

    @pytest.mark.parametrize("consumed_before", [True, False])
    async def test_to_the_end_while_a_push_is_on_its_way(self, store: Store, consumed_before: bool) -> None:
        """It waits for the push and skips its message too: no cursor is drained in front of a message."""
        await push(store, 1)
        await store.pop(QUEUE, "g", auto_ack=consumed_before)
        if not consumed_before:
            await expire_leases(store.pool)
        async with store.pool.acquire() as pusher, pusher.transaction():
            await pusher.execute("insert into queen.messages (queue, partition, payload) values ($1, 'p', '2')", QUEUE)
            seeking = asyncio.create_task(groups.seek(store.pool, "g", QUEUE, "end"))
            assert await is_waiting(store, seeking)
        assert await seeking == 1
        at = await cursor(store, group="g")
        assert (at["acked_seq"], at["ready_at"]) == (2, None)
        await push(store, 3)
        assert await drain(store, "g") == [3]


class TestDelete:
    async def test_with_its_metadata_the_next_pop_is_the_first(self, store: Store) -> None:
        await push(store, 1)
        await push(store, 2, partition="other")
        await drain(store, "g", subscription_mode="new")
        assert await groups.delete(store.pool, "g") == 2
        assert await groups.list_groups(store.pool) == []
        assert sorted(await drain(store, "g")) == [1, 2]

    async def test_without_it_all_starts_over_at_the_beginning(self, store: Store) -> None:
        await push(store, 1)
        await drain(store, "g")
        assert await groups.delete(store.pool, "g", metadata=False) == 1
        assert await drain(store, "g", subscription_mode="new") == [1]

    async def test_without_it_new_starts_over_where_it_subscribed(self, store: Store) -> None:
        await push(store, 1)
        await drain(store, "g", subscription_mode="new")
        await push(store, 2)
        await push(store, 3, partition="later")
        assert sorted(await drain(store, "g")) == [2, 3]
        await groups.delete(store.pool, "g", metadata=False)
        await push(store, 4, partition="even later")
        assert sorted(await drain(store, "g", subscription_mode="all")) == [2, 3, 4]

    async def test_without_it_a_timestamp_starts_over_after_it(self, store: Store) -> None:
        await push_apart(store, 1, 2, 3)
        moment = (await created(store))[1]
        await drain(store, "g", subscription_from=moment)
        await groups.delete(store.pool, "g", metadata=False)
        assert await drain(store, "g", subscription_mode="new") == [2, 3]

    async def test_without_it_an_undecided_group_is_decided_by_its_next_pop(self, store: Store) -> None:
        await store.configure(QUEUE)  # with an empty partition Default
        await push(store, 1)
        await drain(store, "g", partition="p")
        await groups.delete(store.pool, "g", metadata=False)
        assert await drain(store, "g", subscription_mode="new") == []
        await push(store, 2, partition="Default")
        await push(store, 3)
        await push(store, 4, partition="later")
        assert sorted(await drain(store, "g", subscription_mode="new")) == [2, 3, 4]

    async def test_one_queue_or_all(self, store: Store) -> None:
        for queue in (QUEUE, "q2"):
            await push(store, 1, queue=queue)
            await store.pop(queue, "g", auto_ack=True)
        assert await groups.delete(store.pool, "g", "q2") == 1
        assert numbers(await store.pop("q2", "g", auto_ack=True)) == [1]
        assert numbers(await store.pop(QUEUE, "g", auto_ack=True)) == []
        assert await groups.delete(store.pool, "g") == 2
        assert await groups.delete(store.pool, "g") == 0
        assert await groups.delete(store.pool, "g", "none") == 0

    async def test_its_leases_vanish(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store, group="g")
        await groups.delete(store.pool, "g")
        answer = (await store.ack([ack_of(won, 1, group="g")]))[0]
        assert (answer.success, answer.error) == (False, "Invalid or expired lease")
        assert await drain(store, "g") == [1]

    async def test_other_groups_keep_theirs(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store, group="h")
        await drain(store, "g")
        await groups.delete(store.pool, "g")
        assert await ack(store, won, 1, group="h")

    async def test_it_takes_cursors_in_the_order_in_which_a_transaction_takes_them(self, dsn: str) -> None:
        """Queues by name and partitions by number are opposite orders here; the deadlock would hit the other one."""
        store = await Store.open(f"{dsn}&deadlock_timeout=60000")
        await push(store, 1, queue="z")
        await push(store, 1, queue="a")
        low, high = [(await store.pop(queue, "g")).claims[0].partition_id for queue in ("z", "a")]
        lock = "select from queen.partition_consumers where partition_id = $1 for update"
        other = await asyncpg.connect(dsn)
        async with other.transaction():
            await other.execute(lock, low)
            deleting = asyncio.create_task(groups.delete(store.pool, "g"))
            assert await is_waiting(store, deleting)
            await other.execute(lock, high)
        assert await deleting == 2
        await other.close()
        await store.close()


class TestLag:
    async def test_messages_and_seconds(self, store: Store) -> None:
        await push_apart(store, 1, 2, 3)
        await push(store, 4, partition="other")
        await store.pop(QUEUE, "g", batch=1, auto_ack=True, partition="p")
        listed = {group.name: group for group in await groups.list_groups(store.pool)}
        group = listed["g"]
        assert (group.queue, group.members, group.lagging_partitions, group.lag) == (QUEUE, 2, 2, 3)
        assert 119 <= group.lag_seconds <= 180
        assert group.state == "Stable"

    async def test_states(self, store: Store) -> None:
        await push(store, 1)
        await store.pop(QUEUE, "idle")
        await expire_leases(store.pool)
        await drain(store, "g")
        await push(store, 2)
        states = {group.name: group.state for group in await groups.list_groups(store.pool)}
        assert states == {"idle": "Dead", "g": "Stable"}
        await age_messages(store.pool, 301)
        states = {group.name: group.state for group in await groups.list_groups(store.pool)}
        assert states == {"idle": "Dead", "g": "Lagging"}
        await drain(store, "g")
        group = next(group for group in await groups.list_groups(store.pool) if group.name == "g")
        assert (group.state, group.lag, group.lag_seconds, group.lagging_partitions) == ("Stable", 0, 0.0, 0)

    async def test_subscriptions_are_shown(self, store: Store) -> None:
        await push(store, 1)
        moment = datetime.now(UTC) - timedelta(days=1)
        await drain(store, "all")
        await drain(store, "new", subscription_mode="new")
        await drain(store, "time", subscription_from=moment)
        await drain(store, "undecided", partition="p")
        listed = {group.name: group for group in await groups.list_groups(store.pool)}
        modes = {name: group.subscription_mode for name, group in listed.items()}
        assert modes == {"all": "all", "new": "new", "time": "timestamp", "undecided": None}
        assert listed["time"].subscription_timestamp == moment
        assert listed["new"].subscription_timestamp is not None
        assert listed["all"].subscription_timestamp is None

    async def test_what_the_subscription_skips_is_no_lag(self, store: Store) -> None:
        await push_apart(store, 1, 2, 3)
        moment = (await created(store))[2]
        await store.pool.fetch("select * from queen.register_group_v1($1, 'g', 'timestamp', $2)", QUEUE, moment)
        assert [group.lag for group in await groups.list_groups(store.pool)] == [1]

    async def test_what_retention_removed_is_no_lag(self, store: Store) -> None:
        await push_apart(store, 1, 2, 3)
        await store.pop(QUEUE, "g", partition="p")
        await store.pool.execute(
            "delete from queen.segments where last_seq <= 2; update queen.partition_lookup set trimmed_seq = 2"
        )
        assert [group.lag for group in await groups.list_groups(store.pool)] == [1]
        await store.pool.execute("delete from queen.segments")
        assert [(group.lag, group.lag_seconds) for group in await groups.list_groups(store.pool)] == [(0, 0.0)]

    async def test_the_worst_first(self, store: Store) -> None:
        await push(store, 1)
        await age_messages(store.pool, 500)
        await push(store, 1, partition="other")
        await age_messages(store.pool, 100)
        await push(store, 1, partition="fresh")
        won = await claim(store, group="g")
        worst = await groups.lagging(store.pool, 60)
        assert [(lag.group, lag.partition, lag.lag) for lag in worst] == [("g", "p", 1), ("g", "other", 1)]
        assert (str(worst[0].lease_id), worst[0].lease_expires_at) == (won.lease_id, won.lease_expires_at)
        assert worst[0].oldest_unconsumed_at == (await created_at(store, "p"))
        assert worst[1].lease_id is None
        assert [lag.partition for lag in await groups.lagging(store.pool, 550)] == ["p"]

    async def test_a_group_by_queue_and_partition(self, store: Store) -> None:
        await push(store, 1, 2)
        await push(store, 1, partition="other")
        await push(store, 1, queue="q2")
        await store.pop("q2", "g", auto_ack=True)
        won = await claim(store, 2, group="g")
        await store.ack([AckItem(won.partition_uid, seq=1, group="g", lease_id=won.lease_id)])
        described = await groups.describe(store.pool, "g")
        assert list(described) == [QUEUE, "q2"]
        assert [(lag.partition, lag.lag, lag.consumed) for lag in described["q2"]] == [("p", 0, 1)]
        assert [(lag.partition, lag.lag, lag.consumed) for lag in described[QUEUE]] == [("other", 1, 0), ("p", 1, 1)]
        assert described[QUEUE][1].last_consumed_at is not None
        assert str(described[QUEUE][1].lease_id) == won.lease_id
        assert await groups.describe(store.pool, "nobody") == {}


async def created_at(store: Store, partition: str) -> datetime:
    moment: datetime = await store.pool.fetchval(
        "select min(created_at) from queen.messages where partition = $1", partition
    )
    return moment
