"""partition_lookup: the check finds every way to spoil a row, resync repairs it, and consumers get everything."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import groups, messages
from queenmq.storage.store import Store

from .draining import drain
from .shorthand import QUEUE, by_partition, numbers, push

P = (
    "where partition_id = (select p.partition_id from queen.partitions p join queen.queues q using (queue_id)"
    " where p.name = 'p' and q.name = 'orders')"
)
# Each way to spoil the row of partition p, which has the messages 1 to 4 (1 trimmed), and what the check says to it.
COLUMNS = {
    "queue_id = 0": "belongs to queue",
    "queue_id = (select queue_id from queen.queues where name = 'q2')": "belongs to queue",
    "last_seq = 2": "last message is 4, not 2",
    "last_seq = 0, trimmed_seq = 0": "last message is 4, not 0",
    "last_seq = 40": "is the id of message 4, not 40",
    "last_message_id = null": "last message id is",
    "last_message_id = gen_random_uuid()": "last message id is",
    "last_message_created_at = '2000-01-01'": "last message was created at",
    "last_message_created_at = '-infinity'": "last message was created at",
    "last_message_created_at = '2100-01-01'": "last message was created at",
    "trimmed_seq = 2": "trimmed up to 2, but message 2 is there",
    "trimmed_seq = 9": "is below the trimmed 9",
    "dedup_floor = 3": "forgets transactionIds up to 3",
    "bounded = true": "bounded is t, but maxSize is 0",
    "tag = tag + 1": "tag is",
}
TAMPERED = {
    **{f"update queen.partition_lookup set {column} {P}": problem for column, problem in COLUMNS.items()},
    f"delete from queen.partition_lookup {P}": "no row in partition_lookup",
    "insert into queen.partition_lookup (partition_id, queue_id)"
    " select max(partition_id) + 1, min(queue_id) from queen.partitions": "no such partition",
}

ROWS = """
    select partition_id, queue_id, last_seq, last_message_id, last_message_created_at, tag
    from queen.partition_lookup order by partition_id
"""


async def check(store: Store) -> list[str]:
    return [row["problem"] for row in await store.pool.fetch("select * from queen.partition_lookup_check()")]


async def resync(store: Store) -> int:
    return int(await store.pool.fetchval("select queen.partition_lookup_resync()"))


async def prepare(store: Store) -> None:
    """Partition p has 1 (trimmed), 2, 3, 4; group g has consumed up to 2, group drained all. Partition other has 11."""
    await push(store, 1)
    await push(store, 2, 3)
    await push(store, 4)
    await push(store, 11, partition="other")
    await push(store, 1, queue="q2")
    await store.pop(QUEUE, "g", batch=2, partition="p", auto_ack=True)
    await drain(store, "drained")
    await store.pool.execute(
        f"delete from queen.segments {P} and last_seq = 1; update queen.partition_lookup set trimmed_seq = 1 {P}"
    )
    assert await check(store) == []
    assert await resync(store) == 0


@pytest.mark.parametrize(("statement", "problem"), TAMPERED.items())
async def test_every_way_to_spoil_a_row_is_found_and_repaired(store: Store, statement: str, problem: str) -> None:
    await prepare(store)
    before = await store.pool.fetch(ROWS)
    await store.pool.execute(statement)
    found = await check(store)
    assert len(found) == 1
    assert problem in found[0]
    assert await resync(store) == 1
    assert await check(store) == []
    assert await resync(store) == 0
    after = await store.pool.fetch(ROWS)
    if "last_seq = 40" not in statement:  # numbers given out are not taken back
        assert [tuple(row)[:5] for row in after] == [tuple(row)[:5] for row in before]
    assert [row["tag"] for row in after] == [row["tag"] for row in before]
    await push(store, 5)
    await push(store, 12, partition="other")
    assert await drain(store, "g", partition="p") == [3, 4, 5]
    assert await drain(store, "drained", partition="p") == [5]
    assert await drain(store, "late", partition="p") == [2, 3, 4, 5]
    assert await drain(store, "late", partition="other") == [11, 12]
    assert await check(store) == []
    times = await store.pool.fetch(
        f"select created_at, created_at <= clock_timestamp() as past from queen.segments {P} order by last_seq"
    )
    assert [row["created_at"] for row in times] == sorted(row["created_at"] for row in times)
    assert all(row["past"] for row in times)


async def test_a_limit_that_the_row_does_not_know(store: Store) -> None:
    await store.configure(QUEUE, maxSize=2)
    await push(store, 1)
    await store.pool.execute("update queen.partition_lookup set bounded = false")
    assert "bounded is f, but maxSize is 2" in (await check(store))[0]
    await resync(store)
    assert await check(store) == []


async def test_everything_at_once(store: Store) -> None:
    await prepare(store)
    await store.pool.execute("delete from queen.partition_lookup")
    assert len(await check(store)) == 3
    assert await resync(store) == 3
    assert await check(store) == []
    await push(store, 5)
    assert await drain(store, "g", partition="p") == [3, 4, 5]


async def test_a_group_that_registered_meanwhile_gets_its_cursor(store: Store) -> None:
    await push(store, 1)
    await push(store, 2, partition="other")
    await store.pool.execute(f"delete from queen.partition_lookup {P}")
    assert await drain(store, "all") == [2]
    assert await drain(store, "new", subscription_mode="new") == []
    await resync(store)
    assert await drain(store, "all") == [1]
    assert await drain(store, "new") == []
    await push(store, 3)
    assert await drain(store, "new") == [3]


@pytest.mark.parametrize("how", ["deleted", "cleared", "trimmed"])
async def test_a_last_message_that_is_gone_is_no_fault(store: Store, how: str) -> None:
    verdicts = await store.push([PushItem(QUEUE, b"1", "p", "t1"), PushItem(QUEUE, b"2", "p", "t2")])
    uid = await store.pool.fetchval("select uid from queen.partitions")
    before = await store.pool.fetchrow(
        "select last_seq, last_message_id, last_message_created_at from queen.partition_lookup"
    )
    if how == "deleted":
        await messages.delete(store.pool, uid, "t2")
    elif how == "cleared":
        await messages.clear(store.pool, QUEUE)
    else:
        await store.pool.execute("delete from queen.segments; update queen.partition_lookup set trimmed_seq = 2")
    assert await check(store) == []
    after = await store.pool.fetchrow(
        "select last_seq, last_message_id, last_message_created_at from queen.partition_lookup"
    )
    assert after == before
    assert after is not None
    assert str(after["last_message_id"]) == verdicts[1].message_id


@pytest.mark.parametrize(
    "statement", [f"delete from queen.partition_lookup {P}", f"update queen.partition_lookup set last_seq = 1 {P}"]
)
async def test_numbers_that_a_cursor_has_passed_are_not_given_out_again(store: Store, statement: str) -> None:
    """All messages are gone; only the cursor knows how far the numbers went."""
    await push(store, 1, 2, 3)
    await drain(store, "g")
    await messages.clear(store.pool, QUEUE)
    await store.pool.execute("update queen.partition_lookup set trimmed_seq = 0, dedup_floor = 0")
    await store.pool.execute(statement)
    assert len(await check(store)) == 1
    await resync(store)
    await push(store, 4)
    assert await drain(store, "g") == [4]


async def test_numbers_that_a_dead_letter_has_are_not_given_out_again(store: Store) -> None:
    await push(store, 1, 2)
    uid = await store.pool.fetchval("select uid from queen.partitions")
    name = await store.pool.fetchval("select transaction_id from queen.messages where seq = 2")
    assert await messages.dead_letter(store.pool, uid, name) == "removed"
    await messages.clear(store.pool, QUEUE)
    await store.pool.execute("delete from queen.partition_lookup")
    await resync(store)
    await push(store, 3)
    assert await store.pool.fetchval("select seq from queen.messages") == 3


async def test_nothing_can_be_pushed_past_a_missing_row(store: Store) -> None:
    await push(store, 1)
    await store.pool.execute("delete from queen.partition_lookup")
    with pytest.raises(asyncpg.PostgresError, match=r"does not exist|segments_pkey"):
        await store.pool.execute("insert into queen.messages (queue, partition, payload) values ($1, 'p', '2')", QUEUE)
    await resync(store)
    await push(store, 2)
    assert numbers(await store.pop(QUEUE, batch=9)) == [1, 2]


async def test_a_queue_and_a_group_can_be_deleted_after_the_repair(store: Store) -> None:
    await prepare(store)
    await store.pool.execute(f"update queen.partition_lookup set queue_id = 0 {P}")
    await resync(store)
    assert await groups.delete(store.pool, "g") == 2
    assert await store.delete_queue(QUEUE)
    assert await check(store) == []


async def test_while_traffic_runs(dsn: str) -> None:
    """Rows are spoiled and repaired under pushes and pops; each message arrives once, in order."""
    store = await Store.open(dsn, size=12)
    await store.push([PushItem(QUEUE, b"0", f"p{n}") for n in range(4)])
    await drain(store, "g")
    done = asyncio.Event()
    seen: dict[str, list[int]] = {f"p{n}": [0] for n in range(4)}

    async def write(lane: int) -> None:
        mine = Store(store.pool)
        for number in range(1, 25):
            await mine.push([PushItem(QUEUE, str(number).encode(), f"p{lane}")])

    async def take() -> bool:
        result = await store.pop(QUEUE, "g", batch=5, partitions=2, auto_ack=True)
        for partition, batch in by_partition(result).items():
            seen[partition] += batch
        return bool(result.claims)

    async def read() -> None:
        while not done.is_set():
            await take()

    async def spoil() -> None:
        for step in range(30):
            async with store.pool.acquire() as connection, connection.transaction():
                await connection.execute("select from queen.partition_lookup order by partition_id for update")
                await connection.execute(
                    "update queen.partition_lookup set last_message_id = null, bounded = true, last_seq = last_seq - 1"
                    " where partition_id % 4 = $1",
                    step % 4,
                )
                await connection.execute("select queen.partition_lookup_resync()")
            assert await check(store) == []

    async def repair() -> None:
        while not done.is_set():
            assert await resync(store) == 0

    beside = [asyncio.create_task(read()), asyncio.create_task(repair())]
    await asyncio.gather(*[write(lane) for lane in range(4)], spoil())
    done.set()
    await asyncio.gather(*beside)
    while await take():
        pass
    assert seen == {f"p{n}": list(range(25)) for n in range(4)}
    assert await check(store) == []
    await store.close()
