"""A group that starts with what is new gets what was pushed after its pop arrived, and nothing from before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.server.settings import Settings
from queenmq.server.sweep import sweep
from queenmq.storage import groups
from queenmq.storage.pop import PopResult
from tests.engine.saying import QUEUE, ask, parked, push, read, until

BY_QUEUE: dict[str, Any] = {}
BY_PARTITION: dict[str, Any] = {"partition": "p"}
BY_NAMESPACE: dict[str, Any] = {"queue": None, "namespace": "shop"}
WAYS = [BY_QUEUE, BY_PARTITION, BY_NAMESPACE]
NEW: list[dict[str, Any]] = [{"subscription_mode": "new"}, {"subscription_from": "now"}]
INSERT = "insert into queen.messages (queue, partition, payload) values ($1, $2, $3)"


async def waiting(broker: Broker, **where: Any) -> asyncio.Future[PopResult]:
    """A pop of a new group that has looked and waits."""
    before = parked(broker)
    pop = broker.pop(ask(**{"wait": 60.0, "group": "g", "subscription_mode": "new", **where}))
    await until(lambda: parked(broker) == before + 1)
    return pop


async def arrives(*pops: asyncio.Future[PopResult]) -> list[object]:
    async with asyncio.timeout(20):
        done, _ = await asyncio.wait(pops, return_when=asyncio.FIRST_COMPLETED)
    return read(done.pop().result())


@asynccontextmanager
async def another(database: str, poll: float = 0.01) -> AsyncIterator[Broker]:
    config = EngineConfig(dsn=database, connections=4, admin_connections=2, poll_first=poll, poll_max=max(1.0, poll))
    opened = await Broker.open(config)
    yield opened
    await opened.drain()
    await opened.close()


@pytest.mark.parametrize("new", NEW, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_first_message_of_a_queue_that_was_not_there(
    broker: Broker, way: dict[str, Any], new: dict[str, Any]
) -> None:
    pop = await waiting(broker, **way, **new)
    if "namespace" in way:
        await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, 1)
    assert await arrives(pop) == [1]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_first_message_of_a_partition_that_was_not_there(broker: Broker, way: dict[str, Any]) -> None:
    await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, "old", partition="other")
    pop = await waiting(broker, **way)
    await push(broker, 1)
    assert await arrives(pop) == [1]


@pytest.mark.parametrize("way", [BY_QUEUE, BY_NAMESPACE], ids=str)
@pytest.mark.parametrize("there", [True, False], ids=["the queue is there", "the queue is not there"])
async def test_many_partitions_that_appear_at_once(broker: Broker, way: dict[str, Any], there: bool) -> None:
    if there:
        await broker.store.configure(QUEUE, namespace="shop")
        await push(broker, "old", partition="old")
    pops = [await waiting(broker, **way, partitions=9) for _ in range(3)]
    if not there:
        await broker.store.configure(QUEUE, namespace="shop")
    await asyncio.gather(*[push(broker, number, partition=f"p{number}") for number in range(5)])
    got: list[object] = []
    async with asyncio.timeout(20):
        while len(got) < 5:
            done, pending = await asyncio.wait(pops, return_when=asyncio.FIRST_COMPLETED)
            got += [each for pop in done for each in read(pop.result())]
            pops = [*pending, broker.pop(ask(60.0, group="g", **way, partitions=9))]
    for pop in pops:
        pop.cancel()
    assert sorted(map(str, got)) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_what_was_pushed_before_is_not_new(broker: Broker, way: dict[str, Any]) -> None:
    await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, "old")
    pop = await waiting(broker, **way)
    await push(broker, 1)
    assert await arrives(pop) == [1]


@pytest.mark.parametrize("way", [BY_QUEUE, BY_NAMESPACE], ids=str)
async def test_what_was_pushed_while_a_look_was_under_way_is_new(broker: Broker, way: dict[str, Any]) -> None:
    """It arrives before the push and registers its group after it."""
    await broker.store.configure(QUEUE, namespace="shop")
    await push(broker, "old")
    async with broker.store.pool.acquire() as other, other.transaction():
        await other.execute("select from queen.queues where name = $1 for update", QUEUE)  # registration waits
        pop = broker.pop(ask(60.0, group="g", subscription_mode="new", **way))
        async with asyncio.timeout(20):
            while not await broker.store.pool.fetchval(  # noqa: ASYNC110  nobody signals it
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            ):
                await asyncio.sleep(0.001)
        await push(broker, 1)
    assert await arrives(pop) == [1]


async def test_the_first_that_registers_decides_for_its_group(broker: Broker) -> None:
    first = await waiting(broker)
    second = broker.pop(ask(60.0, group="g", subscription_mode="new"))
    await push(broker, 1)
    assert await arrives(first, second) == [1]
    third = broker.pop(ask(group="g", subscription_mode="new"))
    assert read(await third) == []
    second.cancel()


async def test_a_message_of_another_server_and_one_inserted_with_sql(broker: Broker, database: str) -> None:
    async with another(database) as elsewhere:
        pops = [await waiting(elsewhere, group=group, **way) for group, way in (("a", BY_QUEUE), ("b", BY_PARTITION))]
        await push(broker, 1)
        assert [await arrives(pop) for pop in pops] == [[1], [1]]
        pop = await waiting(elsewhere, queue="by sql", group="c")
        await broker.store.pool.execute(INSERT, "by sql", "x", "2")
        assert await arrives(pop) == [2]


async def test_two_servers_wait_for_the_same_group(broker: Broker, database: str) -> None:
    async with another(database) as elsewhere:
        pops = [await waiting(broker), await waiting(elsewhere)]
        await push(broker, 1)
        assert await arrives(*pops) == [1]
        for pop in pops:
            pop.cancel()


async def test_the_subscription_begins_when_the_pop_arrived(broker: Broker) -> None:
    async def clock() -> datetime:
        now: datetime = await broker.store.pool.fetchval("select clock_timestamp()")
        return now.astimezone(UTC)

    before = await clock()
    pop = await waiting(broker)
    after = await clock()
    await push(broker, 1)
    assert await arrives(pop) == [1]
    since = await broker.store.pool.fetchval(
        "select subscription_timestamp from queen.consumer_groups_metadata where subscription_mode = 'new'"
    )
    assert before <= since <= after


async def first(broker: Broker, **more: Any) -> list[object]:
    return read(await broker.pop(ask(**{"group": "g", "subscription_mode": "new", "partitions": 9, **more})))


async def kept(broker: Broker) -> int:
    return int(await broker.store.pool.fetchval("select count(*) from queen.awaited_subscriptions"))


async def make(broker: Broker, what: str) -> None:
    if what != "nothing":
        await broker.store.configure(QUEUE, namespace="shop")
    if what == "another partition":
        await push(broker, "old", partition="other")


class TestTheFirstPopFindsNothing:
    """It has its answer before the queue or the partition is there, and decides all the same."""

    @pytest.mark.parametrize("new", NEW, ids=str)
    @pytest.mark.parametrize("wait", [0.0, 0.05], ids=["at once", "in rounds"])
    @pytest.mark.parametrize("there", ["nothing", "the queue", "another partition"])
    @pytest.mark.parametrize("way", WAYS, ids=str)
    async def test_the_next_gets_what_was_pushed_since(
        self, broker: Broker, way: dict[str, Any], there: str, wait: float, new: dict[str, Any]
    ) -> None:
        await make(broker, there)
        for _ in range(2):
            assert await first(broker, wait=wait, **way, **new) == []
        await make(broker, "the queue" if way is BY_NAMESPACE else "nothing")
        await push(broker, 1)
        assert await first(broker, wait=400 * wait, **way, **new) == [1]

    @pytest.mark.parametrize("then", WAYS, ids=str)
    @pytest.mark.parametrize("way", WAYS, ids=str)
    async def test_whatever_the_next_names(self, broker: Broker, way: dict[str, Any], then: dict[str, Any]) -> None:
        assert await first(broker, **way) == []
        await make(broker, "the queue")
        await push(broker, 1)
        assert await first(broker, **then) == [1]

    @pytest.mark.parametrize("start", [NEW[0], {"subscription_from": datetime(2999, 1, 1, tzinfo=UTC)}], ids=str)
    async def test_a_partition_keeps_its_start_when_the_queue_gets_one(
        self, broker: Broker, start: dict[str, Any]
    ) -> None:
        await make(broker, "another partition")
        assert await first(broker, partition="p") == []  # knows no partition p
        assert await first(broker, partition="other") == []  # registers the group, undecided
        await push(broker, 2, partition="late")
        await push(broker, 1)
        assert await first(broker, **{"subscription_mode": "all", **start}) == [1]

    async def test_a_queue_in_a_namespace_by_its_dotted_name(self, broker: Broker) -> None:
        where = [{"namespace": "shop"}, {"task": "mail"}, {"namespace": "shop", "task": "mail"}]
        for number, way in enumerate(where):
            assert await first(broker, queue=None, group=f"g{number}", **way) == []
            assert await first(broker, queue=None, group=f"h{number}", namespace="shop", task="other") == []
        await push(broker, 1, queue="shop.mail.x")
        for number, way in enumerate(where):
            assert await first(broker, queue=None, group=f"g{number}", **way) == [1]
            assert await first(broker, queue=None, group=f"h{number}", namespace="shop") == []

    @pytest.mark.parametrize("way", WAYS, ids=str)
    async def test_another_group_starts_with_its_own_first_pop(self, broker: Broker, way: dict[str, Any]) -> None:
        assert await first(broker, **way) == []
        await make(broker, "the queue")
        await push(broker, 1)
        assert await first(broker, group="late", **way) == []
        assert await first(broker, **way) == [1]
        await push(broker, 2)
        assert await first(broker, group="late", **way) == [2]

    @pytest.mark.parametrize("way", WAYS, ids=str)
    async def test_names_as_long_as_they_may_be(self, broker: Broker, way: dict[str, Any]) -> None:
        long: dict[str, Any] = {key: "".join(chr(0x10000 + 97 * n) for n in range(255)) for key in ("queue", "group")}
        names = {**long, "partition": long["queue"]} if way is BY_PARTITION else long
        names = {**names, "queue": None, "namespace": long["queue"]} if way is BY_NAMESPACE else names
        assert await first(broker, **names) == []
        await broker.store.configure(long["queue"], namespace=long["queue"])
        await push(broker, 1, queue=long["queue"], partition=long["queue"])
        assert await first(broker, **names) == [1]


class TestAnotherConsumerRegistersTheGroup:
    """One that came later, after the message, while the first still waits."""

    @pytest.mark.parametrize("way", WAYS, ids=str)
    async def test_on_the_same_server(self, database: str, way: dict[str, Any]) -> None:
        async with another(database, poll=60.0) as broker:
            pop = await waiting(broker, **way)
            await broker.store.pool.execute("select queen.configure_v1($1, 'shop', null, '{}')", QUEUE)
            await broker.store.pool.execute(INSERT, QUEUE, "p", "1")  # nothing tells the broker
            assert await first(broker, **way) == [1]
            pop.cancel()

    @pytest.mark.parametrize("way", WAYS, ids=str)
    async def test_on_another_server(self, broker: Broker, database: str, way: dict[str, Any]) -> None:
        async with another(database, poll=60.0) as elsewhere:
            pop = await waiting(elsewhere, **way)
            await make(broker, "the queue" if way is BY_NAMESPACE else "nothing")
            await push(broker, 1)
            assert await first(broker, **way) == [1]
            pop.cancel()


class TestWhatIsKept:
    @pytest.mark.parametrize("way", [BY_QUEUE, BY_PARTITION], ids=str)
    async def test_it_is_forgotten_when_the_start_is_decided(self, broker: Broker, way: dict[str, Any]) -> None:
        for _ in range(3):
            assert await first(broker, **way) == []
        assert await kept(broker) == 1
        await push(broker, 1)
        assert await first(broker, **way) == [1]
        assert await kept(broker) == 0

    async def test_it_does_not_grow_without_bound(self, broker: Broker) -> None:
        await broker.store.pool.execute(
            "insert into queen.awaited_subscriptions"
            " select 'x', 'q:' || i, now(), now() from generate_series(1, 9998) i"
        )
        pops = [first(broker, queue=f"{QUEUE}-{number}") for number in range(9)]
        assert await asyncio.gather(*pops) == [[]] * 9
        assert await kept(broker) == 10_000
        assert await first(broker, queue=QUEUE) == []
        pop = await waiting(broker)
        await push(broker, 1)
        assert await arrives(pop) == [1]  # one that waits knows when it came

    async def test_it_is_the_earliest_pop_and_is_rarely_written(self, broker: Broker) -> None:
        async def row() -> list[Any]:
            rows = await broker.store.pool.fetch("select since, seen_at, xmin::text from queen.awaited_subscriptions")
            return list(rows[0])

        assert await first(broker) == []
        before = await row()
        assert await first(broker) == []
        assert await row() == before
        await broker.store.pool.execute("update queen.awaited_subscriptions set seen_at = now() - interval '2 hours'")
        assert await first(broker) == []
        after = await row()
        assert (after[0], after[1] > before[1]) == (before[0], True)
        await broker.store.pool.execute("update queen.awaited_subscriptions set since = now() + interval '1 hour'")
        assert await first(broker) == []
        assert (await row())[0] < datetime.now(UTC)

    @pytest.mark.parametrize("queue", [None, QUEUE])
    @pytest.mark.parametrize("way", WAYS, ids=str)
    async def test_a_deleted_group_starts_anew(self, broker: Broker, way: dict[str, Any], queue: str | None) -> None:
        assert await first(broker, **way) == []
        assert await first(broker, **way, group="other") == []
        await make(broker, "the queue")
        await push(broker, 1)
        await groups.delete(broker.store.pool, "g", queue)
        assert await first(broker, **way) == []
        await push(broker, 2)
        assert await first(broker, **way) == [2]
        assert await first(broker, **way, group="other") == [1, 2]

    async def test_a_group_deleted_from_one_queue_keeps_its_start_on_others(self, broker: Broker) -> None:
        assert await first(broker, **BY_NAMESPACE) == []
        for queue in (QUEUE, "others"):
            await broker.store.configure(queue, namespace="shop")
            await push(broker, queue, queue=queue)
        await groups.delete(broker.store.pool, "g", QUEUE)
        assert await first(broker, **BY_NAMESPACE) == ["others"]

    async def test_a_group_that_keeps_its_subscription_starts_where_it_did(self, broker: Broker) -> None:
        assert await first(broker) == []
        await push(broker, 1)
        assert await first(broker) == [1]
        await groups.delete(broker.store.pool, "g", metadata=False)
        assert await first(broker) == [1]

    async def test_a_sweep_forgets_what_was_not_asked_for_again(self, broker: Broker, database: str) -> None:
        for group in ("g", "in use"):
            assert await first(broker, group=group) == []
        await broker.store.pool.execute(
            "update queen.awaited_subscriptions"
            " set seen_at = now() - case group_name when 'g' then 8 else 6 end * interval '1 day'"
        )
        done = {each.what: each.count for each in await sweep(Settings.from_env({}), database, print)}
        assert done["abandoned subscriptions"] == 1
        await push(broker, 1)
        assert await first(broker) == []
        assert await first(broker, group="in use") == [1]
