"""Pop by namespace and task: any queue that matches, the most important first."""

from __future__ import annotations

from collections import Counter

from queenmq.domain.segments import PushItem
from queenmq.storage.store import Store
from tests.storage.shorthand import ack, numbers, push


async def test_queues_are_found_by_namespace_and_task(store: Store) -> None:
    for name in ("sales.in.x", "sales.out.y", "stock.in.z"):
        await store.push([PushItem(name, b"1")])

    async def found(namespace: str | None, task: str | None, group: str) -> int:
        return len((await store.pop_matching(namespace, task, group, batch=9, partitions=9)).claims)

    assert await found("sales", None, "a") == 2
    assert await found(None, "in", "b") == 2
    assert await found("sales", "in", "c") == 1
    assert await found("nothing", None, "d") == 0


async def test_not_copied_priority_has_no_effect(store: Store) -> None:
    order = {"low": -1, "none": 0, "high": 7}
    for name, priority in order.items():
        await store.configure(name, namespace="ns", priority=priority)
        await store.push([PushItem(name, b"1")])
    served = [(await store.pop_matching("ns", None)).claims[0].queue_id for _ in order]
    names = {row["queue_id"]: row["name"] for row in await store.pool.fetch("select * from queen.queues")}
    assert [names[queue] for queue in served] == ["high", "none", "low"]


async def test_equals_take_turns(store: Store) -> None:
    for name in ("x", "y"):
        await store.configure(name, namespace="ns")
        await push(store, *range(1, 9), queue=name)
    served = []
    for _ in range(6):
        won = (await store.pop_matching("ns", None)).claims[0]
        served.append(won.queue_id)
        assert await ack(store, won, won.to_seq)
    assert Counter(served) == {served[0]: 3, served[1]: 3}


async def test_a_queue_recreated_by_another_process_is_still_served(store: Store) -> None:
    for name in ("x", "y"):
        await store.configure(name, namespace="ns")
    await store.pop_matching("ns", None)
    other = Store(store.pool)
    await other.delete_queue("x")
    await other.configure("x", namespace="ns")
    await push(other, 1, queue="x")
    assert numbers(await store.pop_matching("ns", None)) == [1]
