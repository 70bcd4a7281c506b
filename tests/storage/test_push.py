"""Push: verdicts, order, duplicates, limits, and what a repeated attempt finds."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from queenmq import sql
from queenmq.domain.ids import dedup_key
from queenmq.domain.segments import Parcel, PushItem
from queenmq.storage.ack import AckItem
from queenmq.storage.push import PushPlan, execute, push
from queenmq.storage.store import Store
from queenmq.wire.names import InvalidValue


def item(payload: object = 1, partition: str = "Default", tx: str | None = None, queue: str = "orders") -> PushItem:
    return PushItem(queue, str(payload).encode(), partition, tx)


async def stored(store: Store, partition: str = "Default", queue: str = "orders") -> list[tuple[int, str]]:
    rows = await store.pool.fetch(
        "select seq, payload::text from queen.messages where queue = $1 and partition = $2 order by seq",
        queue,
        partition,
    )
    return [(row["seq"], row["payload"]) for row in rows]


async def test_messages_keep_their_order_per_partition(store: Store) -> None:
    verdicts = await store.push([item(index, f"p{index % 3}") for index in range(9)])
    assert [verdict.status for verdict in verdicts] == ["queued"] * 9
    assert [verdict.seq for verdict in verdicts] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    for partition in range(3):
        assert await stored(store, f"p{partition}") == [(n + 1, str(partition + 3 * n)) for n in range(3)]


async def test_one_call_may_span_queues(store: Store) -> None:
    await store.push([item(1, queue="a"), item(2, queue="b"), item(3, queue="a")])
    assert await stored(store, queue="a") == [(1, "1"), (2, "3")]
    assert await stored(store, queue="b") == [(1, "2")]


async def test_a_stored_transaction_id_is_a_duplicate_and_names_the_winner(store: Store) -> None:
    first = (await store.push([item(1, tx="t")]))[0]
    second = await store.push([item(2, tx="t"), item(3, tx="u")])
    assert [verdict.status for verdict in second] == ["duplicate", "queued"]
    assert second[0].message_id == first.message_id
    assert await stored(store) == [(1, "1"), (2, "3")]


async def test_a_twin_in_the_same_call_is_a_duplicate_of_the_first(store: Store) -> None:
    verdicts = await store.push([item(1, tx="t"), item(2, tx="t"), item(3, "other", tx="t")])
    assert [verdict.status for verdict in verdicts] == ["queued", "duplicate", "queued"]
    assert verdicts[1].message_id == verdicts[0].message_id


async def test_messages_without_a_transaction_id_get_their_message_id(store: Store) -> None:
    verdicts = await store.push([item(1), item(2, tx="mine"), item(3)])
    rows = await store.pool.fetch("select id::text, transaction_id from queen.messages order by seq")
    assert [(row["id"], row["transaction_id"]) for row in rows] == [
        (verdict.message_id, verdict.transaction_id) for verdict in verdicts
    ]
    assert verdicts[1].transaction_id == "mine"
    assert verdicts[0].transaction_id == verdicts[0].message_id


@pytest.mark.parametrize("tx", [None, "named"])
async def test_a_repeated_attempt_stores_nothing_again_and_reports_queued(store: Store, tx: str | None) -> None:
    """The answer of the first attempt was lost: the same plan runs again."""
    plan = PushPlan([Parcel.of([item(1, tx=tx), item(2, "other")])], store.directory)
    encoded = await plan.prepare(store.pool)
    await store.pool.fetch(sql.query("push"), *encoded.arguments())
    await execute(store.pool, plan)
    assert [verdict.status for verdict in plan.verdicts()] == ["queued", "queued"]
    assert [verdict.seq for verdict in plan.verdicts()] == [1, 1]
    assert await stored(store) == [(1, "1")]


async def test_concurrent_pushes_of_one_id_store_one(store: Store) -> None:
    answers = await asyncio.gather(*[store.push([item(n, tx="same"), item(n)]) for n in range(10)])
    assert sorted(answer[0].status for answer in answers) == ["duplicate"] * 9 + ["queued"]
    assert len({answer[0].message_id for answer in answers}) == 1
    assert len(await stored(store)) == 11


@pytest.mark.parametrize(
    "tx",
    ["plain", "", "ümläut", "0196C2F5-0000-7000-8000-000000000000", "0196c2f5-0000-7000-8000-000000000000", "a" * 255],
)
async def test_the_dedup_key_is_the_same_in_sql(store: Store, tx: str) -> None:
    assert str(await store.pool.fetchval("select queen.dedup_key($1)", tx)) == dedup_key(tx)


@pytest.mark.parametrize("names", [["a"], ["a", None], [None, "a"], [None, None, "a"], ["b", None, "a"], ["b", "a"]])
@pytest.mark.parametrize("neighbours", [[], [item(0, "other", tx="a")]])
async def test_a_duplicate_is_told_where_the_first_one_stands(
    store: Store, names: list[str | None], neighbours: list[PushItem]
) -> None:
    first = await store.push([*[item(n, tx=name) for n, name in enumerate(names)], *neighbours])
    [again] = await store.push([item(9, tx="a")])
    place = names.index("a")
    assert (again.status, again.seq, again.message_id) == ("duplicate", place + 1, first[place].message_id)


@pytest.mark.parametrize("partitions", [["Default"], ["Default", "other"]])
async def test_no_plain_text_is_stored_when_a_queue_was_encrypted_unnoticed(
    store: Store, partitions: list[str]
) -> None:
    await store.push([item(1, partition) for partition in partitions])
    await Store(store.pool).configure("orders", encryptionEnabled=True)
    verdicts = await store.push([item(2, partition) for partition in partitions])
    assert {verdict.status for verdict in verdicts} == {"failed"}
    assert {payload for _, payload in await stored(store)} == {"1"}


@pytest.mark.parametrize("partitions", [["Default"], ["Default", "other"]])
async def test_times_do_not_go_back_with_the_clock(store: Store, partitions: list[str]) -> None:
    await store.push([item(1, partition) for partition in partitions])
    await store.pool.execute("update queen.partition_lookup set last_message_created_at = '2999-01-01'")
    await store.push([item(2, partition) for partition in partitions])
    times = await store.pool.fetch("select created_at::date::text as day from queen.messages where payload = '2'")
    assert [row["day"] for row in times] == ["2999-01-01"] * len(partitions)


async def test_a_deleted_queue_is_made_anew_by_the_next_push(store: Store) -> None:
    await store.push([item(1, tx="t")])
    other = Store(store.pool)
    await other.delete_queue("orders")
    verdict = (await store.push([item(2, tx="t")]))[0]
    assert (verdict.status, verdict.seq) == ("queued", 1)
    assert await stored(store) == [(1, "2")]


async def test_optional_columns_come_back(store: Store) -> None:
    trace = "0196c2f5-1111-7000-8000-000000000000"
    await store.push(
        [
            PushItem("orders", b"1", trace_id=trace),
            PushItem("orders", b"2", producer_sub="alice"),
            PushItem("orders", b'{"encrypted":"x"}', encrypted=True),
        ]
    )
    messages = (await store.pop("orders", batch=3)).messages()
    assert [(m.trace_id, m.producer_sub, m.encrypted) for m in messages] == [
        (trace, None, False),
        (None, "alice", False),
        (None, None, True),
    ]
    rows = await store.pool.fetch("select trace_id::text, producer_sub, encrypted from queen.messages order by seq")
    assert [tuple(row) for row in rows] == [(trace, None, False), (None, "alice", False), (None, None, True)]


class TestMaxSize:
    async def test_a_full_queue_stores_nothing_and_leaves_its_neighbours_alone(self, store: Store) -> None:
        await store.configure("small", maxSize=3)
        verdicts = await store.push([item(n, queue="small") for n in range(2)])
        assert [verdict.status for verdict in verdicts] == ["queued", "queued"]
        verdicts = await store.push([item(8, queue="small"), item(9, queue="small"), item(1, queue="free")])
        assert [verdict.status for verdict in verdicts] == ["queue_full", "queue_full", "queued"]
        assert "maxSize is 3" in (verdicts[0].error or "")
        assert len(await stored(store, queue="small")) == 2

    async def test_room_comes_back_when_every_group_has_consumed(self, store: Store) -> None:
        await store.configure("small", maxSize=2)
        await store.push([item(1, queue="small"), item(2, queue="small")])
        await store.pop("small", "a", batch=2, auto_ack=True)
        await store.pop("small", "b", batch=1, auto_ack=True)
        assert [v.status for v in await store.push([item(3, queue="small"), item(4, queue="small")])] == [
            "queue_full"
        ] * 2
        assert [v.status for v in await store.push([item(3, queue="small")])] == ["queued"]

    @pytest.mark.parametrize("partitions", [["Default"], ["Default", "other"]])
    async def test_a_limit_set_later_holds_for_a_store_that_has_not_heard_of_it(
        self, store: Store, partitions: list[str]
    ) -> None:
        items = [item(1, partition, queue="small") for partition in partitions]
        await store.push(items)
        await Store(store.pool).configure("small", maxSize=len(items))
        assert {v.status for v in await store.push(items)} == {"queue_full"}
        await Store(store.pool).configure("small", maxSize=0)
        assert {v.status for v in await store.push(items)} == {"queued"}

    async def test_concurrent_pushes_never_pass_the_limit(self, store: Store) -> None:
        await store.configure("small", maxSize=10)
        answers = await asyncio.gather(*[store.push([item(n, f"p{n}", queue="small")]) for n in range(25)])
        assert sum(answer[0].status == "queued" for answer in answers) == 10


class TestTheGuardOfSegments:
    async def test_a_segment_that_was_not_allocated_is_refused(self, store: Store) -> None:
        await store.push([item(1)])
        with pytest.raises(asyncpg.PostgresError, match=r"written by queen\.push_v2"):
            await store.pool.execute(
                "insert into queen.segments (partition_id, last_seq, created_at, n, base, data)"
                " select partition_id, 2, now(), 1, gen_random_uuid(), '1' from queen.partitions"
            )
        assert await stored(store) == [(1, "1")]

    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    async def test_a_push_outside_read_committed_is_refused(self, store: Store, level: str) -> None:
        async with store.pool.acquire() as connection:
            await connection.execute(f"set default_transaction_isolation = '{level}'")
            with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED"):
                await connection.execute("insert into queen.messages (queue, payload) values ('orders', '1')")
        assert await stored(store) == []


class TestBadInput:
    @pytest.mark.parametrize(
        ("bad", "complaint"),
        [
            (PushItem("", b"1"), r"items\[1\].queue must be"),
            (PushItem("orders", b"1", "x" * 256), r"items\[1\].partition must be"),
            (PushItem("orders", b"1", "a\x1eb"), r"items\[1\].partition must be"),
            (PushItem("orders", b"1", transaction_id="a\x1eb"), r"items\[1\].transactionId must be"),
            (PushItem("orders", b"1", transaction_id="x" * 256), r"items\[1\].transactionId must be"),
            (PushItem("orders", b"1", trace_id="nope"), r"items\[1\].traceId must be a UUID"),
            (PushItem("orders", b"{"), r"items\[1\].payload must be valid JSON"),
            (PushItem("orders", b'"\\u0000"'), r"items\[1\].payload must be JSON without"),
            (PushItem("orders", b'"\xff"'), r"items\[1\].payload must be valid UTF-8"),
            (PushItem("orders", b"1e999999"), r"items\[1\].payload must be JSON with numbers"),
        ],
    )
    async def test_it_is_named_and_nothing_is_stored(self, store: Store, bad: PushItem, complaint: str) -> None:
        with pytest.raises(InvalidValue, match=complaint):
            await store.push([item(1), bad])
        assert await stored(store) == []

    async def test_a_separator_cannot_get_into_a_segment_by_any_way(self, store: Store) -> None:
        """The engine's hot path checks its input elsewhere; if it ever failed to, the layout must not break."""
        for bad in (PushItem("orders", b'"\x1e"'), PushItem("orders", b"1", transaction_id="a\x1eb")):
            with pytest.raises(InvalidValue, match="0x1E"):
                await push(store.pool, store.directory, [item(1), bad])
        assert await stored(store) == []


class TestLargePushes:
    """Much for one partition is stored in several segments, and nobody can tell."""

    @staticmethod
    def large(tx: str | None, *, count: int = 10) -> list[PushItem]:
        big = [item(f'"{"x" * 99_990}{n}"', "big", tx=tx and f"{tx}-{n}") for n in range(count)]
        return [*big[:4], item(1, "small"), *big[4:], item(2, "small")]

    @pytest.mark.parametrize("tx", ["t", None])
    async def test_it_is_numbered_and_named_through(self, store: Store, tx: str | None) -> None:
        verdicts = await store.push(self.large(tx))
        assert await store.pool.fetchval("select count(*) from queen.segments") > 4
        rows = await store.pool.fetch(
            "select seq, id::text, transaction_id, right(payload::text, 2) as last from queen.messages"
            " where partition = 'big' order by seq"
        )
        assert [(row["seq"], row["last"]) for row in rows] == [(n + 1, f'{n}"') for n in range(10)]
        big = [verdict for verdict in verdicts if verdict.partition_id == verdicts[0].partition_id]
        assert [(row["seq"], row["id"], row["transaction_id"]) for row in rows] == [
            (verdict.seq, verdict.message_id, verdict.transaction_id) for verdict in big
        ]
        assert await stored(store, "small") == [(1, "1"), (2, "2")]
        assert await store.pool.fetchval("select count(*) from queen.partition_lookup_check()") == 0

    @pytest.mark.parametrize("tx", ["t", None])
    async def test_a_repeated_attempt_is_recognised(self, store: Store, tx: str | None) -> None:
        plan = PushPlan([Parcel.of(self.large(tx))], store.directory)
        encoded = await plan.prepare(store.pool)
        await store.pool.fetch(sql.query("push"), *encoded.arguments())
        await execute(store.pool, plan)
        assert {verdict.status for verdict in plan.verdicts()} == {"queued"}
        big = [verdict.seq for verdict in plan.verdicts() if verdict.partition_id == plan.verdicts()[0].partition_id]
        assert big == list(range(1, 11))
        assert await store.pool.fetchval("select count(*) from queen.messages") == 12

    async def test_a_duplicate_in_the_middle_is_left_out(self, store: Store) -> None:
        first = (await store.push([item(0, "big", tx="t-5")]))[0]
        verdicts = await store.push(self.large("t"))
        assert [verdict.status for verdict in verdicts].count("queued") == 11
        assert [verdict.message_id for verdict in verdicts if verdict.status == "duplicate"] == [first.message_id]
        rows = await store.pool.fetch(
            "select right(payload::text, 2) as last from queen.messages where partition = 'big' order by seq"
        )
        assert [row["last"] for row in rows] == ["0", *(f'{n}"' for n in range(10) if n != 5)]

    async def test_a_small_pop_reads_a_piece_of_it(self, store: Store) -> None:
        await store.push(self.large("t"))
        for number in range(5):
            (claim,) = (await store.pop("orders", "g", partition="big", batch=2)).claims
            assert [message.seq for message in claim.messages()] == [2 * number + 1, 2 * number + 2]
            assert sum(row.n for row in claim.segments) <= 4
            done = [AckItem(claim.partition_uid, f"t-{n}", group="g", lease_id=claim.lease_id) for n in range(10)]
            results = await store.ack(done[2 * number : 2 * number + 2])
            assert [result.success for result in results] == [True, True]
        assert (await store.pop("orders", "g", partition="big")).claims == []
