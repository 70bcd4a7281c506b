"""Subscriptions: where a group starts, on every route, and its registration while traffic runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import groups
from queenmq.storage.store import Store

from .draining import created, drain, push_apart
from .shorthand import QUEUE, by_partition, numbers, push
from .time_travel import pass_time
from .waiting import is_waiting

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class TestSubscription:
    async def test_all_starts_at_the_beginning(self, store: Store) -> None:
        await push(store, 1, 2)
        assert await drain(store, "g", subscription_mode="all") == [1, 2]

    @pytest.mark.parametrize("how", [{"subscription_mode": "new"}, {"subscription_from": "now"}])
    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_new_starts_empty_and_gets_what_comes(
        self, store: Store, how: dict[str, object], partition: str | None
    ) -> None:
        await push(store, 1)
        assert await drain(store, "g", partition=partition, **how) == []
        await push(store, 2)
        assert await drain(store, "g", partition=partition, **how) == [2]

    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_new_on_an_empty_partition_misses_nothing(self, store: Store, partition: str | None) -> None:
        """The first pop is what subscribes, also when there was nothing to skip."""
        await push(store, 1)
        await store.pool.execute("delete from queen.segments")
        await store.pool.execute("update queen.partition_lookup set last_seq = 0")
        assert await drain(store, "g", partition=partition, subscription_mode="new") == []
        await push(store, 1, 2)
        assert await drain(store, "g", partition=partition, subscription_mode="new") == [1, 2]

    async def test_a_partition_made_after_a_new_subscription_delivers_everything(self, store: Store) -> None:
        await push(store, 1)
        await drain(store, "g", subscription_mode="new")
        await push(store, 2, 3, partition="later")
        assert await drain(store, "g", subscription_mode="new") == [2, 3]

    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_a_timestamp_starts_after_it(self, store: Store, partition: str | None) -> None:
        await push_apart(store, 1, 2, 3)
        moment = (await created(store))[2]
        assert await drain(store, "g", partition=partition, subscription_from=moment) == [3]
        assert await drain(store, "before", partition=partition, subscription_from=LONG_AGO) == [1, 2, 3]
        assert await drain(store, "between", partition=partition, subscription_from=moment - timedelta(seconds=1)) == [
            2,
            3,
        ]
        assert await drain(store, "after", partition=partition, subscription_from=moment + timedelta(hours=1)) == []

    async def test_a_timestamp_holds_for_partitions_made_later(self, store: Store) -> None:
        await push(store, 1)
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        assert await drain(store, "g", subscription_from=tomorrow) == []
        await push(store, 2, partition="later")
        assert await drain(store, "g", subscription_from=tomorrow) == []
        await pass_time(store.pool, 2 * 86400)
        await push(store, 3, partition="later")
        await push(store, 4)
        assert sorted(await drain(store, "g")) == [3, 4]

    async def test_what_was_subscribed_first_wins(self, store: Store) -> None:
        await push_apart(store, 1, 2)
        await drain(store, "g", subscription_mode="new")
        await push(store, 3, partition="other")
        assert await drain(store, "g", subscription_from=LONG_AGO) == [3]
        assert await drain(store, "g", subscription_mode="all", partition="p") == []
        await drain(store, "h")
        await push(store, 4)
        assert await drain(store, "h", subscription_mode="new") == [4]

    async def test_each_partition_has_its_own_start_on_the_partition_route(self, store: Store) -> None:
        for name in ("p", "q", "r"):
            await push(store, 1, partition=name)
        assert await drain(store, "g", partition="p", subscription_mode="new") == []
        assert await drain(store, "g", partition="q") == [1]
        await push(store, 2, partition="p")
        assert await drain(store, "g", partition="p") == [2]
        assert await drain(store, "g", subscription_mode="new") == []  # decides for r, where nobody popped yet
        await push(store, 3, partition="r")
        assert await drain(store, "g") == [3]

    async def test_queue_mode_ignores_it(self, store: Store) -> None:
        await push(store, 1)
        assert numbers(await store.pop(QUEUE, subscription_mode="new")) == [1]

    async def test_moving_it(self, store: Store) -> None:
        await push_apart(store, 1, 2, 3)
        times = await created(store)
        await drain(store, "g", subscription_mode="new")
        await store.pool.fetch("select * from queen.register_group_v1($1, 'g', 'all', null)", QUEUE)
        assert await groups.move_subscription(store.pool, "g", times[1]) == 1
        assert await drain(store, "g") == []  # it has a position
        await groups.delete(store.pool, "g", metadata=False)
        assert await drain(store, "g") == [2, 3]

    async def test_moving_it_before_the_start_is_resolved(self, store: Store) -> None:
        await push_apart(store, 1, 2, 3)
        times = await created(store)
        await store.pool.fetch("select * from queen.register_group_v1($1, 'g', 'timestamp', $2)", QUEUE, times[3])
        assert await groups.move_subscription(store.pool, "g", times[1]) == 1
        assert await drain(store, "g") == [2, 3]

    async def test_moving_it_from_the_future_to_the_past(self, store: Store) -> None:
        await push_apart(store, 1, 2)
        await drain(store, "g", subscription_from=datetime.now(UTC) + timedelta(days=1))
        await groups.move_subscription(store.pool, "g", LONG_AGO)
        assert await drain(store, "g") == [1, 2]

    async def test_there_is_nothing_to_move_in_a_group_that_takes_all(self, store: Store) -> None:
        await push(store, 1)
        await drain(store, "g")
        assert await groups.move_subscription(store.pool, "g", LONG_AGO) == 0
        assert await groups.move_subscription(store.pool, "nobody", LONG_AGO) == 0


class TestRegistrationUnderTraffic:
    @pytest.mark.parametrize("partition", [None, "Default"])
    @pytest.mark.parametrize("mode", ["all", "new"])
    async def test_the_first_push_to_a_partition_is_on_its_way(
        self, store: Store, mode: Literal["all", "new"], partition: str | None
    ) -> None:
        """Its wake-up has run before there was a cursor. The registration waits for it, and nothing is stuck."""
        await store.configure(QUEUE)
        async with store.pool.acquire() as pusher, pusher.transaction():
            await pusher.execute("insert into queen.messages (queue, payload) values ($1, '1')", QUEUE)
            popping = asyncio.create_task(
                store.pop(QUEUE, "g", partition=partition, auto_ack=True, subscription_mode=mode)
            )
            assert await is_waiting(store, popping)
        assert numbers(await popping) == ([1] if mode == "all" else [])
        await push(store, 2, partition="Default")
        assert await drain(store, "g", partition=partition, subscription_mode=mode) == [2]

    async def test_a_partition_is_made_meanwhile(self, store: Store) -> None:
        await push(store, 1)
        async with store.pool.acquire() as pusher, pusher.transaction():
            await pusher.execute("insert into queen.messages (queue, partition, payload) values ($1, 'q', '2')", QUEUE)
            popping = asyncio.create_task(store.pop(QUEUE, "g", batch=9, partitions=9, auto_ack=True))
            assert await is_waiting(store, popping)
        assert sorted(numbers(await popping) + await drain(store, "g")) == [1, 2]

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("mode", ["all", "timestamp"])
    async def test_no_cursor_is_missing_and_nothing_is_stuck(self, dsn: str, seed: int, mode: str) -> None:
        """Groups register while partitions are made and pushed to; in the end each group has had every message."""
        store = await Store.open(dsn, size=12)
        start = LONG_AGO if mode == "timestamp" else None
        got: dict[str, dict[str, list[int]]] = {f"g{n}": {} for n in range(4)}

        async def produce(lane: int) -> None:
            mine = Store(store.pool)
            for step in range(12):
                items = [PushItem(QUEUE, str(step).encode(), f"{lane}-{(step + k + seed) % 7}") for k in range(3)]
                await mine.push(items)

        async def consume(group: str) -> bool:
            mine = Store(store.pool)  # a process of its own: it registers the group
            result = await mine.pop(QUEUE, group, batch=7, partitions=3, auto_ack=True, subscription_from=start)
            for partition, batch in by_partition(result).items():
                got[group].setdefault(partition, []).extend(batch)
            return bool(result.claims)

        async def late(group: str, steps: int) -> None:
            for _ in range(steps):
                await store.pool.fetchval("select 1")
            for _ in range(15):
                await consume(group)

        await asyncio.gather(
            *[produce(lane) for lane in range(4)], *[late(group, n * 5) for n, group in enumerate(got)]
        )
        for group in got:
            while await consume(group):
                pass
        rows = await store.pool.fetch("select partition, payload::text from queen.messages order by partition, seq")
        expected: dict[str, list[int]] = {}
        for row in rows:
            expected.setdefault(row["partition"], []).append(int(row["payload"]))
        for group, seen in got.items():
            assert seen == expected, group
        missing = await store.pool.fetchval(
            "select count(*) from queen.partitions p cross join queen.consumer_groups_metadata g where not exists"
            " (select from queen.partition_consumers c where c.partition_id = p.partition_id"
            " and c.group_id = g.group_id)"
        )
        assert missing == 0
        await store.close()

    @pytest.mark.parametrize("seed", range(5))
    async def test_new_gets_everything_pushed_after_its_first_pop(self, dsn: str, seed: int) -> None:
        store = await Store.open(dsn, size=12)
        await push(store, -1)

        async def produce(lane: int) -> None:
            mine = Store(store.pool)
            for step in range(10):
                await mine.push([PushItem(QUEUE, str(step).encode(), f"{lane}-{(step * (seed + 1)) % 5}")])

        ids: list[str] = []

        async def take() -> bool:
            batch = (
                await store.pop(QUEUE, "g", batch=50, partitions=50, auto_ack=True, subscription_mode="new")
            ).messages()
            ids.extend(message.id for message in batch)
            return bool(batch)

        async def subscribe() -> None:
            await take()
            for n in range(8):
                verdict = (await Store(store.pool).push([PushItem(QUEUE, b"99", f"{n % 4}-{n}")]))[0]
                after.append(verdict.message_id or "")

        after: list[str] = []
        await asyncio.gather(*[produce(lane) for lane in range(4)], subscribe())
        while await take():
            pass
        assert set(after) <= set(ids)
        assert len(ids) == len(set(ids))
        await store.close()
