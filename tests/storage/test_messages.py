"""Looking at messages: one with everything known of it, the state of each, and lists of them."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import messages
from queenmq.storage.store import Store
from queenmq.wire.names import InvalidValue

from .shorthand import QUEUE, ack, claim, push
from .time_travel import age_messages, expire_leases

TRACE = "0196c2f5-1111-7000-8000-000000000000"


async def push_named(store: Store, *names: int, partition: str = "p", queue: str = QUEUE) -> UUID:
    """One push of messages with the transactionIds t1, t2, ...; returns the partition's uid."""
    verdicts = await store.push([PushItem(queue, str(name).encode(), partition, f"t{name}") for name in names])
    assert {verdict.status for verdict in verdicts} == {"queued"}
    return UUID(verdicts[0].partition_id)


async def statuses(store: Store, **filters: object) -> dict[int, str]:
    return {info.seq: info.status for info in await messages.list_messages(store.pool, **filters)}  # type: ignore[arg-type]


class TestGet:
    async def test_everything_about_a_message(self, store: Store) -> None:
        await store.configure("shop.orders", leaseTime=77, retryLimit=5, priority=3, namespace="shop", task="orders")
        pushed = await store.push([
            PushItem("shop.orders", b"1", "p"),
            PushItem("shop.orders", b'{"b": [2]}', "p", "tx-2", TRACE, "alice", encrypted=True),
        ])  # fmt: skip
        found = await messages.get(store.pool, UUID(pushed[1].partition_id), "tx-2")
        assert found is not None
        info = found.info
        assert (str(info.id), info.transaction_id, str(info.partition_uid)) == (
            pushed[1].message_id,
            "tx-2",
            pushed[1].partition_id,
        )
        assert (info.queue, info.partition, info.namespace, info.task, info.seq) == (
            "shop.orders",
            "p",
            "shop",
            "orders",
            2,
        )
        assert (str(info.trace_id), info.producer_sub, info.priority) == (TRACE, "alice", 3)
        assert (info.status, info.queue_status, info.consumed_by, info.total_groups) == ("pending", None, 0, 0)
        assert (found.payload, found.encrypted, found.stored) == (b'{"b": [2]}', True, True)
        assert (found.lease_time, found.retry_limit, found.retry_delay, found.ttl) == (77, 5, 1000, None)
        assert (found.error, found.retry_count, found.groups) == (None, None, [])

    async def test_by_its_id_when_it_was_pushed_without_a_transaction_id(self, store: Store) -> None:
        pushed = await store.push([PushItem(QUEUE, str(n).encode(), "p") for n in (1, 2, 3)])
        for n, verdict in enumerate(pushed, 1):
            found = await messages.get(store.pool, UUID(verdict.partition_id), verdict.transaction_id)
            assert found is not None
            assert found.payload == str(n).encode()

    async def test_nothing_there(self, store: Store) -> None:
        partition = await push_named(store, 1)
        assert await messages.get(store.pool, partition, "t2") is None
        assert await messages.get(store.pool, uuid4(), "t1") is None

    async def test_groups_and_leases(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        await store.pop(QUEUE, "done", batch=2, auto_ack=True)
        won = await claim(store, 1, group="busy")
        found = await messages.get(store.pool, partition, "t1")
        assert found is not None
        assert [(group.name, group.consumed, group.leased_until) for group in found.groups] == [
            ("busy", False, won.lease_expires_at), ("done", True, None)
        ]  # fmt: skip
        assert found.info.leased_until == won.lease_expires_at
        second = await messages.get(store.pool, partition, "t2")
        assert second is not None
        assert second.info.leased_until is None

    async def test_a_dead_letter_says_why(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=0)
        partition = await push_named(store, 1)
        won = await claim(store)
        await ack(store, won, 1, "failed", error="cannot parse")
        found = await messages.get(store.pool, partition, "t1")
        assert found is not None
        assert (found.info.status, found.error, found.retry_count, found.stored) == (
            "dead_letter",
            "cannot parse",
            0,
            True,
        )

    async def test_what_a_dead_letter_kept_is_found_when_the_message_is_gone(self, store: Store) -> None:
        partition = await push_named(store, 1)
        won = await claim(store)
        await ack(store, won, 1, "dlq", error="bad")
        await messages.clear(store.pool, QUEUE)
        found = await messages.get(store.pool, partition, "t1")
        assert found is not None
        assert (found.stored, found.payload, found.info.status, found.error) == (False, b"1", "dead_letter", "bad")


class TestStatus:
    async def test_nobody_consumes(self, store: Store) -> None:
        await push(store, 1)
        assert await statuses(store) == {1: "pending"}

    async def test_queue_mode(self, store: Store) -> None:
        await push(store, 1, 2, 3, 4)
        won = await claim(store, 3)
        await ack(store, won, 1)
        assert await statuses(store) == {1: "completed", 2: "processing", 3: "processing", 4: "pending"}
        await expire_leases(store.pool)
        assert await statuses(store) == {1: "completed", 2: "pending", 3: "pending", 4: "pending"}

    async def test_named_groups_complete_a_message_together(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        await store.pop(QUEUE, "a", batch=2, auto_ack=True)
        await claim(store, 1, group="b")
        assert await statuses(store) == {1: "pending", 2: "pending", 3: "pending"}
        await store.pop(QUEUE, "c", batch=3, auto_ack=True)
        info = (await messages.list_messages(store.pool))[-1]
        assert (info.seq, info.queue_status, info.consumed_by, info.total_groups) == (1, None, 2, 3)
        await expire_leases(store.pool)
        await store.pop(QUEUE, "b", batch=1, auto_ack=True)
        assert await statuses(store) == {1: "completed", 2: "pending", 3: "pending"}

    async def test_queue_mode_decides_where_both_are_used(self, store: Store) -> None:
        await push(store, 1, 2)
        await store.pop(QUEUE, "slow", batch=1, auto_ack=True)
        await store.pop(QUEUE, batch=2, auto_ack=True)
        infos = await messages.list_messages(store.pool)
        assert [(info.status, info.queue_status, info.consumed_by, info.total_groups) for info in infos] == [
            ("completed", "completed", 0, 1), ("completed", "completed", 1, 1)
        ]  # fmt: skip
        assert await messages.groups_in_use(store.pool, queue=QUEUE) == messages.GroupsInUse(True, 1)
        assert await messages.groups_in_use(store.pool, queue="none") == messages.GroupsInUse(False, 0)

    async def test_what_a_subscription_skips_counts_as_consumed(self, store: Store) -> None:
        await push(store, 1)
        await age_messages(store.pool, 100)
        await push(store, 2)
        await store.pool.fetch(
            "select * from queen.register_group_v1($1, 't', 'timestamp', now() - interval '50 s')", QUEUE
        )
        assert await statuses(store) == {1: "completed", 2: "pending"}

    async def test_a_dead_letter_of_any_group(self, store: Store) -> None:
        await push(store, 1, 2)
        await claim(store)
        won = await claim(store, group="g")
        await ack(store, won, 1, "dlq", group="g")
        assert await statuses(store) == {1: "dead_letter", 2: "processing"}


class TestList:
    async def test_newest_first_over_partitions_and_queues(self, store: Store) -> None:
        for age, (queue, partition) in enumerate([("q1", "a"), ("q2", "a"), ("q1", "b"), ("q1", "a")]):
            await push(store, age * 10 + 1, age * 10 + 2, queue=queue, partition=partition)
        listed = await messages.list_messages(store.pool)
        assert [f"{info.queue}/{info.partition} {info.seq}" for info in listed] == [
            "q1/a 4", "q1/a 3", "q1/b 2", "q1/b 1", "q2/a 2", "q2/a 1", "q1/a 2", "q1/a 1"
        ]  # fmt: skip

    async def test_filters_by_name(self, store: Store) -> None:
        await store.configure("q1", namespace="n", task="t")
        await push(store, 1, queue="q1", partition="a")
        await push(store, 1, queue="q1", partition="b")
        await push(store, 1, queue="q2", partition="a")

        async def places(**filters: str) -> set[tuple[str, str]]:
            return {(info.queue, info.partition) for info in await messages.list_messages(store.pool, **filters)}  # type: ignore[arg-type]

        assert await places(queue="q1") == {("q1", "a"), ("q1", "b")}
        assert await places(partition="a") == {("q1", "a"), ("q2", "a")}
        assert await places(namespace="n") == await places(task="t") == {("q1", "a"), ("q1", "b")}
        assert await places(namespace="n", task="x") == set()

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("pending", [6, 5]),
            ("processing", [4]),
            ("completed", [1]),
            ("dead_letter", [3, 2]),
            (None, [6, 5, 4, 3, 2, 1]),
        ],
    )
    async def test_by_status(self, store: Store, status: str | None, expected: list[int]) -> None:
        await push(store, 1, 2, 3, 4)
        await push(store, 5, 6)
        won = await claim(store, 4)
        await ack(store, won, 1)
        await ack(store, won, 2, "dlq")
        await ack(store, won, 3, "dlq")
        await push(store, 1, partition="empty-handed")
        await store.pool.execute(
            "delete from queen.segments s using queen.partitions p"
            " where p.partition_id = s.partition_id and p.name = 'empty-handed'"
        )
        listed = await messages.list_messages(store.pool, status=status)
        assert [info.seq for info in listed] == expected
        assert all(status is None or info.status == status for info in listed)

    async def test_an_unknown_status_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="status must be one of"):
            await messages.list_messages(store.pool, status="lost")

    async def test_a_time_range_includes_its_ends(self, store: Store) -> None:
        for number in (1, 2, 3, 4):
            await push(store, number)
            await age_messages(store.pool, 60)
        times = {info.seq: info.created_at for info in await messages.list_messages(store.pool)}
        assert list(await statuses(store, since=times[2], until=times[3])) == [3, 2]
        assert list(await statuses(store, since=times[2] + timedelta(microseconds=1))) == [4, 3]
        assert list(await statuses(store, until=times[3] - timedelta(microseconds=1))) == [2, 1]
        assert await statuses(store, since=times[4] + timedelta(seconds=1)) == {}
        assert await statuses(store, until=times[1] - timedelta(seconds=1)) == {}

    async def test_pages_are_those_of_the_whole_list(self, store: Store) -> None:
        """Against a plain query on the view, with every page size that cuts partitions differently."""
        for number in range(1, 13):
            await push(store, *range(number % 4 + 1), partition=f"p{number % 5}", queue=f"q{number % 2}")
        await store.pop("q0", batch=4, auto_ack=True, partitions=2)
        rows = await store.pool.fetch(
            "select m.queue, m.partition, m.seq from queen.messages m join queen.partitions p on p.uid = m.partition_id"
            " order by m.created_at desc, p.partition_id, m.seq desc"
        )
        whole = [tuple(row) for row in rows]
        for limit in (1, 2, 3, 7, 50):
            paged = []
            for offset in range(0, len(whole) + limit, limit):
                page = await messages.list_messages(store.pool, limit=limit, offset=offset)
                assert len(page) <= limit
                paged += [(info.queue, info.partition, info.seq) for info in page]
            assert paged == whole

    async def test_a_page_visits_no_more_partitions_than_it_must(self, store: Store) -> None:
        await store.push([PushItem(QUEUE, b"1", f"p{number}") for number in range(300)])
        await push(store, 2, partition="newest")
        await store.pool.execute("set track_functions = 'all'")
        async with store.pool.acquire() as connection, connection.transaction():
            await connection.execute("set local track_functions = 'all'")
            await messages.list_messages(connection, limit=3)
            calls = await connection.fetchval(
                "select calls from pg_stat_xact_user_functions where funcname = 'newest_messages'"
            )
        assert calls <= 10
