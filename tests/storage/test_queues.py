"""Queues: options are merged, checked and in force; a deleted queue is gone with everything that was its own."""

from __future__ import annotations

import pytest

from queenmq.domain.options import OPTIONS, Option
from queenmq.storage import queues
from queenmq.storage.errors import DatabaseUnavailable
from queenmq.storage.pop import PopResult
from queenmq.storage.store import Store
from queenmq.wire.names import InvalidValue

from .shorthand import numbers, push


async def test_a_new_queue_has_defaults_that_lose_nothing(store: Store) -> None:
    queue = await store.configure("orders")
    assert (queue.lease_time, queue.retry_limit, queue.retry_delay) == (300, 3, 1000)
    assert (queue.max_size, queue.ttl, queue.retention_enabled) == (0, None, False)
    assert (queue.dead_letter_queue, queue.dlq_after_max_retries) == (None, None)
    assert (queue.namespace, queue.task) == ("", "")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
async def test_every_option_is_stored_and_leaves_the_others_alone(store: Store, option: Option) -> None:
    before = await store.configure("orders", leaseTime=11, namespace="shop", task="bill")
    value = True if option.kind is bool else 7
    after = await queues.configure(store.pool, "orders", {option.name: value})
    assert getattr(after, option.column) == value
    assert after.version > before.version
    for other in OPTIONS:
        if other is not option:
            assert getattr(after, other.column) == getattr(before, other.column)
    assert (after.namespace, after.task) == ("shop", "bill")


async def test_null_means_not_sent_and_unknown_options_are_ignored(store: Store) -> None:
    await store.configure("orders", leaseTime=11)
    queue = await store.configure("orders", leaseTime=None, colour="green")
    assert queue.lease_time == 11


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"leaseTime": -1}, "options.leaseTime must be an integer from 0"),
        ({"leaseTime": "30"}, "options.leaseTime must be an integer"),
        ({"leaseTime": 2**31}, "options.leaseTime"),
        ({"retryLimit": 1.5}, "options.retryLimit"),
        ({"retryLimit": True}, "options.retryLimit"),
        ({"encryptionEnabled": 1}, "options.encryptionEnabled must be true or false"),
    ],
)
async def test_a_value_that_does_not_fit_is_named_and_nothing_is_stored(
    store: Store, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        await queues.configure(store.pool, "orders", {"priority": 5, **options})
    assert await queues.find(store.pool, "orders") is None


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x00b", "a\x1eb", "a\ud800"])
async def test_a_bad_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidValue, match="queue must be"):
        await store.configure(name)


async def test_configure_makes_the_default_partition(store: Store) -> None:
    await store.configure("orders")
    names = await store.pool.fetch("select p.name from queen.partitions p join queen.queues using (queue_id)")
    assert [row["name"] for row in names] == ["Default"]


@pytest.mark.parametrize(
    ("name", "namespace", "task"),
    [("plain", "", ""), ("shop.bill", "shop", "bill"), ("shop.bill.eu", "shop", "bill"), (".x", "", "x")],
)
async def test_a_queue_made_by_a_push_takes_namespace_and_task_from_its_name(
    store: Store, name: str, namespace: str, task: str
) -> None:
    await push(store, 1, queue=name)
    queue = await queues.find(store.pool, name)
    assert queue is not None
    assert (queue.namespace, queue.task) == (namespace, task)


async def test_queues_are_listed_newest_first(store: Store) -> None:
    for name in ("a", "b", "c"):
        await store.configure(name)
    assert [queue.name for queue in await queues.list_queues(store.pool)] == ["c", "b", "a"]


async def test_a_deleted_queue_takes_its_subscriptions_along(store: Store) -> None:
    """The original keeps them: a re-created queue would still skip what an old `new` group once skipped."""
    await push(store, 1)
    assert numbers(await store.pop("orders", "late", batch=9, subscription_mode="new")) == []
    assert await store.delete_queue("orders")
    await push(store, 2, 3)
    assert numbers(await store.pop("orders", "late", batch=9)) == [2, 3]


async def test_deleting_a_queue_that_is_not_there_says_so(store: Store) -> None:
    assert not await store.delete_queue("nothing")


async def test_nothing_of_a_deleted_queue_is_visible(store: Store) -> None:
    await store.configure("orders", retryLimit=0)
    await push(store, 1, 2, 3)
    claim = (await store.pop("orders", batch=3)).claims[0]
    await store.pool.execute(
        "select queen.settle($1, $2, $3, '[[1, \"dlq\", null]]', false)",
        claim.partition_id,
        claim.group_id,
        claim.lease_id,
    )
    await store.delete_queue("orders")
    for table in (
        "messages",
        "partitions",
        "partition_lookup",
        "partition_consumers",
        "consumer_groups_metadata",
        "dead_letter_queue",
        "queue_depth",
    ):
        assert await store.pool.fetchval(f"select count(*) from queen.{table}") == 0, table
    assert (await store.pop("orders")) == PopResult([], "unknown_group")


async def test_a_database_that_cannot_write_now_is_told_as_such(store: Store) -> None:
    """A primary that was demoted, or somebody who holds a lock for too long, is no defect of ours."""
    await store.configure("orders")
    async with store.pool.acquire() as connection:
        await connection.execute("set default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable):
            await queues.configure(connection, "orders", {})
        await connection.execute("set default_transaction_read_only = off; set statement_timeout = '50ms'")
        async with store.pool.acquire() as other, other.transaction():
            await other.execute("select from queen.queues for update")
            with pytest.raises(DatabaseUnavailable):
                await queues.configure(connection, "orders", {})
