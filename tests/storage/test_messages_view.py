"""queen.messages: rows as they were pushed, and INSERT from SQL under every rule that a push obeys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.ack import AckItem
from queenmq.storage.store import Store

from .draining import drain
from .shorthand import QUEUE, by_partition, claim, cursor, numbers, push
from .waiting import is_waiting

TRACE = UUID("0196c2f5-1111-7000-8000-000000000000")
FIND_DEADLOCKS_FAST = "&deadlock_timeout=20"
INSERT = "insert into queen.messages (queue, partition, payload, transaction_id) values ($1, $2, $3, $4)"


async def rows(store: Store, partition: str = "p", queue: str = QUEUE) -> list[tuple[int, object]]:
    found = await store.pool.fetch(
        "select seq, payload::text from queen.messages where queue = $1 and partition = $2 order by seq",
        queue,
        partition,
    )
    return [(row["seq"], json.loads(row["payload"])) for row in found]


async def check(store: Store) -> list[asyncpg.Record]:
    return await store.pool.fetch("select * from queen.partition_lookup_check()")


class TestInsert:
    async def test_it_makes_queue_and_partition_and_is_delivered(self, store: Store) -> None:
        await store.pool.execute(
            "insert into queen.messages (queue, payload) values ('shop.orders.eu', '{\"a\": [1, \"ü\"]}')"
        )
        queue = await store.pool.fetchrow("select namespace, task from queen.queues where name = 'shop.orders.eu'")
        assert tuple(queue or ()) == ("shop", "orders")
        message = (await store.pop("shop.orders.eu")).messages()[0]
        assert json.loads(message.payload) == {"a": [1, "ü"]}
        assert message.transaction_id == message.id
        assert await rows(store, "Default", "shop.orders.eu") == [(1, {"a": [1, "ü"]})]
        assert await check(store) == []

    async def test_returning_tells_what_was_stored(self, store: Store) -> None:
        await store.configure(QUEUE, namespace="n", task="t")
        row = await store.pool.fetchrow(
            "insert into queen.messages"
            " (queue, payload, trace_id, producer_sub, seq, id, created_at, encrypted, namespace)"
            " values ($1, null, $2, 'alice', 99, gen_random_uuid(), '2000-01-01', true, 'lie') returning *",
            QUEUE,
            TRACE,
        )
        stored = await store.pool.fetchrow("select * from queen.messages")
        assert row == stored
        assert row is not None
        assert (row["partition"], row["seq"], row["payload"], row["trace_id"]) == ("Default", 1, "null", TRACE)
        assert (row["producer_sub"], row["encrypted"], row["namespace"], row["task"]) == ("alice", False, "n", "t")
        assert row["transaction_id"] == str(row["id"])
        assert row["partition_id"] == await store.pool.fetchval("select uid from queen.partitions")

    async def test_order_is_kept_within_and_between_statements(self, store: Store) -> None:
        await push(store, 1)
        await store.pool.execute(
            "insert into queen.messages (queue, partition, payload)"
            " select $1, 'p', to_jsonb(n) from generate_series(2, 5) n",
            QUEUE,
        )
        await push(store, 6)
        assert numbers(await store.pop(QUEUE, batch=10)) == [1, 2, 3, 4, 5, 6]
        assert [seq for seq, _ in await rows(store)] == [1, 2, 3, 4, 5, 6]

    async def test_a_transaction_id_is_stored_once_whoever_came_first(self, store: Store) -> None:
        await store.push([PushItem(QUEUE, b"1", "p", "a")])
        assert await store.pool.execute(INSERT, QUEUE, "p", "2", "a") == "INSERT 0 0"
        assert await store.pool.execute(INSERT, QUEUE, "p", "3", "b") == "INSERT 0 1"
        assert await store.pool.execute(INSERT, QUEUE, "other", "4", "a") == "INSERT 0 1"
        verdict = (await store.push([PushItem(QUEUE, b"5", "p", "b")]))[0]
        assert (verdict.status, verdict.seq) == ("duplicate", 2)
        returned = await store.pool.fetch(
            "insert into queen.messages (queue, partition, payload, transaction_id)"
            " values ($1, 'p', '6', 'c'), ($1, 'p', '7', 'c'), ($1, 'p', '8', '') returning payload::text",
            QUEUE,
        )
        assert [row["payload"] for row in returned] == ["6", "8"]
        assert [value for _, value in await rows(store)] == [1, 3, 6, 8]
        assert await check(store) == []

    async def test_it_can_be_acknowledged_by_transaction_id(self, store: Store) -> None:
        await store.pool.execute(INSERT, QUEUE, "p", "1", "mine")
        await store.pool.execute(INSERT, QUEUE, "p", "2", None)
        won = await claim(store)
        for message in won.messages():
            answer = (await store.ack([AckItem(won.partition_uid, message.transaction_id, lease_id=won.lease_id)]))[0]
            assert answer.success
        assert (await store.pop(QUEUE)).messages() == []

    async def test_a_full_queue_refuses_the_statement(self, store: Store) -> None:
        await store.configure(QUEUE, maxSize=2)
        await push(store, 1)
        with pytest.raises(asyncpg.PostgresError, match="maxSize is 2"):
            await store.pool.execute(
                "insert into queen.messages (queue, partition, payload) values ($1, 'p', '2'), ($1, 'p', '3')", QUEUE
            )
        assert await rows(store) == [(1, 1)]
        await store.pool.execute(INSERT, QUEUE, "p", "2", None)
        assert (await store.push([PushItem(QUEUE, b"3", "p")]))[0].status == "queue_full"

    async def test_an_encrypted_queue_refuses_plain_text(self, store: Store) -> None:
        await store.configure(QUEUE, encryptionEnabled=True)
        with pytest.raises(asyncpg.PostgresError, match="is encrypted"):
            await store.pool.execute(INSERT, QUEUE, "p", '"secret"', None)
        assert await rows(store) == []

    async def test_drained_groups_are_woken(self, store: Store) -> None:
        await push(store, 1)
        for group in ("a", "b"):
            await drain(store, group)
            assert (await cursor(store, group=group))["ready_at"] is None
        await store.pool.execute(INSERT, QUEUE, "p", "2", None)
        await store.pool.execute(INSERT, QUEUE, "fresh", "3", None)
        for group in ("a", "b"):
            assert sorted(await drain(store, group)) == [2, 3]

    @pytest.mark.parametrize("bad", ["", "a\nb", "a\x1eb", "a\x7fb", "a\x85b", "x" * 256])
    @pytest.mark.parametrize("field", ["queue", "partition", "transaction_id", "producer_sub"])
    async def test_names_are_held_to_the_rules_of_a_push(self, store: Store, field: str, bad: str) -> None:
        values = {"queue": QUEUE, "partition": "p", "transaction_id": "t", "producer_sub": "s"} | {field: bad}
        statement = (
            "insert into queen.messages (queue, partition, transaction_id, producer_sub, payload)"
            " values ($1, $2, $3, $4, '1')"
        )
        if bad == "" and field in ("transaction_id", "producer_sub"):
            await store.pool.execute(statement, *values.values())
            assert await store.pool.fetchval(f"select {field} from queen.messages") != ""
            return
        with pytest.raises(asyncpg.CheckViolationError, match=f"{field} must be a text"):
            await store.pool.execute(statement, *values.values())
        assert await store.pool.fetchval("select count(*) from queen.messages") == 0

    async def test_a_queue_is_required(self, store: Store) -> None:
        with pytest.raises(asyncpg.CheckViolationError, match="queue must be"):
            await store.pool.execute("insert into queen.messages (payload) values ('1')")

    async def test_control_characters_in_a_payload_are_escaped(self, store: Store) -> None:
        await store.pool.execute(INSERT, QUEUE, "p", json.dumps("a\x1eb\n\x01"), None)
        await push(store, 2)
        assert await rows(store) == [(1, "a\x1eb\n\x01"), (2, 2)]
        assert json.loads((await store.pop(QUEUE)).messages()[0].payload) == "a\x1eb\n\x01"

    async def test_what_is_rolled_back_was_never_there(self, store: Store) -> None:
        await push(store, 1)
        async with store.pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(INSERT, QUEUE, "p", "2", "t")
            await transaction.rollback()
        assert await store.pool.execute(INSERT, QUEUE, "p", "3", "t") == "INSERT 0 1"
        assert await rows(store) == [(1, 1), (2, 3)]
        assert await check(store) == []

    @pytest.mark.parametrize("statement", ["update queen.messages set payload = '2'", "delete from queen.messages"])
    async def test_stored_messages_are_not_changed_through_the_view(self, store: Store, statement: str) -> None:
        await push(store, 1)
        with pytest.raises(asyncpg.PostgresError):
            await store.pool.execute(statement)
        assert await rows(store) == [(1, 1)]


class TestView:
    async def test_every_value_stands_with_its_own_message(self, store: Store) -> None:
        """Optional columns are joined texts with empty places; none may slip to a neighbour."""
        items = [
            PushItem(QUEUE, b"0", "p"),
            PushItem(QUEUE, b"1", "p", "t1"),
            PushItem(QUEUE, b"2", "p", None, str(TRACE)),
            PushItem(QUEUE, b'"x"', "p", "t3", None, "alice", encrypted=True),
            PushItem(QUEUE, b"4", "p"),
        ]
        verdicts = await store.push(items)
        found = await store.pool.fetch("select * from queen.messages order by seq")
        assert [row["transaction_id"] for row in found] == [verdict.transaction_id for verdict in verdicts]
        assert [str(row["id"]) for row in found] == [verdict.message_id for verdict in verdicts]
        assert [row["trace_id"] for row in found] == [None, None, TRACE, None, None]
        assert [row["producer_sub"] for row in found] == [None, None, None, "alice", None]
        assert [row["encrypted"] for row in found] == [False, False, False, True, False]
        assert [row["payload"] for row in found] == ["0", "1", "2", '"x"', "4"]

    async def test_a_deleted_queue_is_gone_at_once(self, store: Store) -> None:
        await push(store, 1)
        await store.delete_queue(QUEUE)
        assert await store.pool.fetchval("select count(*) from queen.messages") == 0


class TestMixedTraffic:
    @pytest.mark.parametrize("seed", range(3))
    async def test_inserts_and_pushes_together(self, dsn: str, seed: int) -> None:
        """Many connections, one row and many a statement, shared ids: nothing is lost, doubled or out of order."""
        store = await Store.open(dsn + FIND_DEADLOCKS_FAST, size=16)
        partitions = [f"p{n}" for n in range(5)]
        seen: dict[str, list[int]] = {}
        writing = asyncio.Event()

        async def one_by_one(writer: int) -> None:
            for step in range(15):
                await insert(store, [partitions[(step + writer + seed) % 5]], [writer * 100 + step])

        async def many_rows(writer: int) -> None:
            for step in range(8):
                values = [writer * 100 + step * 4 + k for k in range(4)]
                names = [partitions[(value + seed) % 5] for value in values]
                assert await insert(store, names, values) == 4

        async def pushes(writer: int) -> None:
            mine = Store(store.pool)
            for step in range(10):
                items = [
                    PushItem(QUEUE, str(writer * 100 + step * 3 + k).encode(), partitions[(step + k + seed) % 5])
                    for k in range(3)
                ]
                assert {verdict.status for verdict in await mine.push(items)} == {"queued"}

        async def rivals(writer: int) -> int:
            """The same transactionIds from both sides; exactly one of each may win."""
            won = 0
            for step in range(10):
                partition, name, value = partitions[step % 5], f"rival-{step}", 9000 + step
                if writer % 2:
                    won += await insert(store, [partition], [value], name)
                else:
                    verdict = (await store.push([PushItem(QUEUE, str(value).encode(), partition, name)]))[0]
                    won += verdict.status == "queued"
            return won

        async def take() -> bool:
            result = await store.pop(QUEUE, "g", batch=10, partitions=3, auto_ack=True)
            for partition, batch in by_partition(result).items():
                seen.setdefault(partition, []).extend(batch)
            return bool(result.claims)

        async def read() -> None:
            while not writing.is_set():
                await take()

        reading = asyncio.create_task(read())
        rivalry = asyncio.gather(*[rivals(n) for n in range(4)])
        await asyncio.gather(
            *[one_by_one(n) for n in (1, 2, 3)], *[many_rows(n) for n in (4, 5, 6)], *[pushes(n) for n in (7, 8, 9)]
        )
        assert sum(await rivalry) == 10
        writing.set()
        await reading
        while await take():
            pass
        expected = {
            *(writer * 100 + step for writer in (1, 2, 3) for step in range(15)),
            *(writer * 100 + step for writer in (4, 5, 6) for step in range(32)),
            *(writer * 100 + step for writer in (7, 8, 9) for step in range(30)),
            *range(9000, 9010),
        }
        delivered = [value for values in seen.values() for value in values]
        assert len(delivered) == len(expected)
        assert set(delivered) == expected
        for partition, values in seen.items():
            assert values == [value for _, value in await rows(store, partition)]
        numbering = await store.pool.fetch(
            "select max(seq) = count(*) as gapless from queen.messages group by partition"
        )
        assert all(row["gapless"] for row in numbering)
        assert await check(store) == []
        await store.close()

    @pytest.mark.parametrize("what", ["push", "ack", "transaction", "new group", "configure"])
    async def test_what_a_script_drives_into_a_deadlock_is_repeated(self, dsn: str, what: str) -> None:
        """A script takes partitions in an order of its own; the server's statement is the victim, unnoticed."""
        # PostgreSQL looks once, this long after a statement began to wait: until then the script must wait as well.
        store = await Store.open(f"{dsn}&deadlock_timeout=1000")
        await store.push([PushItem(QUEUE, b"1", "a"), PushItem(QUEUE, b"1", "b")])
        won = (await store.pop(QUEUE, batch=9, partitions=2)).claims
        acks = [AckItem(claimed.partition_uid, seq=1, lease_id=claimed.lease_id) for claimed in won]
        items = [PushItem(QUEUE, b"2", "a"), PushItem(QUEUE, b"2", "b")]
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "push": lambda: store.push(items),
            "ack": lambda: store.ack(acks),
            "transaction": lambda: store.commit(store.transaction(acks, items)),
            "new group": lambda: store.pop(QUEUE, "g"),
            "configure": lambda: store.configure(QUEUE, maxSize=100),
        }
        script = await asyncpg.connect(dsn, server_settings={"deadlock_timeout": "1min"})
        async with script.transaction():
            await script.execute(INSERT, QUEUE, "b", "3", None)
            working = asyncio.create_task(calls[what]())
            assert await is_waiting(store, working)
            await script.execute(INSERT, QUEUE, "fresh" if what == "configure" else "a", "3", None)
        await working
        expected = [3, 2] if what in ("push", "transaction") else [3]
        assert [value for _, value in await rows(store, "b")] == [1, *expected]
        acked = await store.pool.fetchval(
            "select bool_and(acked_seq = 1) from queen.partition_consumers where lease_id is null"
        )
        assert (acked is True) == (what in ("ack", "transaction"))
        assert await check(store) == []
        await script.close()
        await store.close()


async def insert(store: Store, partitions: list[str], values: list[int], name: str | None = None) -> int:
    """One statement with rows of any partitions in any order; returns how many it stored.

    Statements that take several partitions may meet in opposite orders, and then whoever waits may be the victim.
    """
    while True:
        try:
            done = await store.pool.execute(
                "insert into queen.messages (queue, partition, payload, transaction_id)"
                " select $1, p, to_jsonb(v), $4 from unnest($2::text[], $3::int[]) x (p, v)",
                QUEUE,
                partitions,
                values,
                name,
            )
        except asyncpg.DeadlockDetectedError:
            continue
        return int(done.split()[-1])
