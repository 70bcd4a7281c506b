"""Ids that the server gave to messages without a transactionId: within their partition they are transactionIds like any
other, and a push under one of them is a duplicate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest

from queenmq import sql
from queenmq.domain.cipher import Cipher
from queenmq.domain.ids import base_key, looks_given, message_id, new_segment_base
from queenmq.domain.segments import Parcel, PushItem, Verdict
from queenmq.storage import dlq, messages, retention
from queenmq.storage.ack import AckItem
from queenmq.storage.errors import DatabaseUnavailable
from queenmq.storage.push import PushPlan, execute
from queenmq.storage.store import Store

from .retaining import EXPIRED, trim
from .shorthand import QUEUE, ack, claim, cursor, held
from .time_travel import age_messages, age_retention

Way = Callable[[Store, Sequence[PushItem]], Awaitable[list[Verdict]]]


def item(tx: str | None = None, partition: str = "p", payload: bytes = b"1", queue: str = QUEUE) -> PushItem:
    return PushItem(queue, payload, partition, tx)


async def ids(store: Store, partition: str = "p", queue: str = QUEUE) -> list[str]:
    """The transactionIds that a partition holds, in order."""
    rows = await store.pool.fetch(
        "select transaction_id from queen.messages where queue = $1 and partition = $2 order by seq", queue, partition
    )
    return [row["transaction_id"] for row in rows]


async def give(store: Store, *names: str | None, queue: str = QUEUE) -> list[str]:
    """Push messages with these transactionIds in one call, and return their message ids."""
    verdicts = await store.push([item(name, queue=queue) for name in names])
    assert {verdict.status for verdict in verdicts} == {"queued"}
    return [str(verdict.message_id) for verdict in verdicts]


async def again(store: Store, names: Sequence[str], partition: str = "p") -> list[str]:
    return [verdict.status for verdict in await store.push([item(name, partition) for name in names])]


async def forget(store: Store) -> None:
    """Let retention remove everything, and then forget what it has removed."""
    await age_messages(store.pool, 61)
    await trim(store)
    await age_retention(store.pool, 3600)
    await trim(store)
    await store.pool.execute("select queen.note_forgettable(1000000)")
    while (await retention.sweep_dedup(store.pool)).more:
        pass


async def alone(store: Store, items: Sequence[PushItem]) -> list[Verdict]:
    return await store.push(items)


async def beside_another_partition(store: Store, items: Sequence[PushItem]) -> list[Verdict]:
    return (await store.push([*items, item(None, "elsewhere")]))[:-1]


async def in_a_transaction(store: Store, items: Sequence[PushItem]) -> list[Verdict]:
    return (await store.commit(store.transaction([], items))).pushes


WAYS = [alone, beside_another_partition, in_a_transaction]


@pytest.mark.parametrize("way", WAYS)
class TestEveryWayOfPushing:
    async def test_an_id_that_was_given_is_a_duplicate(self, store: Store, way: Way) -> None:
        first = await way(store, [item(), item(), item()])
        given = [str(verdict.message_id) for verdict in first]
        second = await way(store, [item(tx) for tx in given])
        assert [(verdict.status, verdict.message_id, verdict.seq) for verdict in second] == [
            ("duplicate", tx, seq) for seq, tx in enumerate(given, 1)
        ]
        assert await ids(store) == given

    async def test_a_single_one_that_is_not_the_first(self, store: Store, way: Way) -> None:
        given = [str(verdict.message_id) for verdict in await way(store, [item(), item(), item()])]
        [one] = await way(store, [item(given[2])])
        assert (one.status, one.message_id) == ("duplicate", given[2])
        assert [v.status for v in await way(store, [item(), item(given[1]), item("own")])] == [
            "queued",
            "duplicate",
            "queued",
        ]

    async def test_the_id_of_a_message_with_a_transaction_id_is_not_taken(self, store: Store, way: Way) -> None:
        """Whatever the place of the message in its flush: also the first, whose index is 0."""
        names = ["a", None, "b", None, None, "c"]
        given = [str(verdict.message_id) for verdict in await way(store, [item(tx) for tx in names])]
        verdicts = await way(store, [item(tx) for tx in given])
        expected = ["queued" if name else "duplicate" for name in names]
        assert [verdict.status for verdict in verdicts] == expected
        assert await again(store, given) == ["duplicate"] * 6
        assert len(await ids(store)) == 9

    async def test_in_another_partition_it_is_another_message(self, store: Store, way: Way) -> None:
        given = [str(verdict.message_id) for verdict in await way(store, [item(), item()])]
        assert [v.status for v in await way(store, [item(tx, "q") for tx in given])] == ["queued", "queued"]
        assert [v.status for v in await way(store, [item(tx, "q") for tx in given])] == ["duplicate", "duplicate"]
        assert await ids(store, "q") == given

    async def test_another_spelling_is_another_id(self, store: Store, way: Way) -> None:
        given = [str(verdict.message_id) for verdict in await way(store, [item(), item()])]
        others = [given[1].upper(), given[1].replace("-", ""), f"{{{given[1]}}}", base_key(given[1])]
        assert {v.status for v in await way(store, [item(tx) for tx in others])} == {"queued"}


async def test_every_piece_of_a_large_push_is_covered(store: Store) -> None:
    big = b'"%s"' % (b"x" * 100_000)
    first = await store.push([item("own" if n == 4 else None, payload=big) for n in range(9)])
    assert await store.pool.fetchval("select count(*) from queen.segments") > 3
    assert await store.pool.fetchval("select count(*) from queen.dedup") == 2
    for position, verdict in enumerate(first):
        [status] = await again(store, [str(verdict.message_id)])
        assert status == ("queued" if position == 4 else "duplicate")


async def test_an_id_beyond_the_flush_is_free(store: Store) -> None:
    base = (await give(store, None, None))[0]
    assert await again(store, [message_id(base, 2), message_id(base, 65535)]) == ["queued", "queued"]


async def test_twice_in_one_request_the_second_has_the_verdict_of_the_first(store: Store) -> None:
    given = await give(store, None, None)
    verdicts = await store.push([item(given[1]), item(given[1]), item(message_id(given[0], 9))] * 2)
    assert [verdict.status for verdict in verdicts] == ["duplicate", "duplicate", "queued"] + ["duplicate"] * 3
    assert verdicts[0].message_id == verdicts[1].message_id == given[1]


async def test_of_many_who_push_a_free_id_at_once_one_is_stored(store: Store) -> None:
    given = await give(store, None, None)
    partition = UUID(await store.pool.fetchval("select uid::text from queen.partitions"))
    await messages.delete(store.pool, partition, given[1])
    answers = await asyncio.gather(*[store.push([item(given[1]), item(given[0])]) for _ in range(10)])
    assert sorted(answer[0].status for answer in answers) == ["duplicate"] * 9 + ["queued"]
    assert {answer[1].status for answer in answers} == {"duplicate"}
    assert await ids(store) == given


async def test_a_deleted_message_frees_its_id_and_no_other(store: Store) -> None:
    given = await give(store, None, "own", None, None)
    partition = UUID(await store.pool.fetchval("select uid::text from queen.partitions"))
    for gone in (2, 0):
        await messages.delete(store.pool, partition, given[gone])
        assert await again(store, [given[gone]]) == ["queued"]
    assert await again(store, [given[0], given[2], given[3]]) == ["duplicate"] * 3
    assert await ids(store) == ["own", given[3], given[2], given[0]]


async def test_it_is_remembered_for_the_window_after_retention_and_no_longer(store: Store) -> None:
    await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=3600)
    given = await give(store, "a", None, None, "b", None)
    await age_messages(store.pool, 61)
    await trim(store)
    assert await ids(store) == []
    assert await again(store, [given[1], given[2], given[4]]) == ["duplicate"] * 3
    assert await again(store, ["a", given[0]]) == ["duplicate", "queued"]
    await forget(store)
    assert await again(store, [*given, "a"]) == ["queued"] * 6


async def test_the_ids_of_a_flush_are_forgotten_with_the_last_of_its_messages(store: Store) -> None:
    """Retention took the first pieces of the flush an hour before the others; then they are older than the window."""
    await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=3600)
    big = b'"%s"' % (b"x" * 150_000)
    given = [str(verdict.message_id) for verdict in await store.push([item(payload=big) for _ in range(4)])]
    await store.pool.execute("update queen.segments set created_at = created_at - interval '2 h' where last_seq <= 2")
    await trim(store)
    await age_messages(store.pool, 61)
    await trim(store)
    assert await ids(store) == []
    await store.pool.execute("update queen.partition_lookup set dedup_floor = 2")
    await store.pool.execute("select queen.note_forgettable(1000000)")
    while (await retention.sweep_dedup(store.pool)).more:
        pass
    assert await again(store, given[2:]) == ["duplicate", "duplicate"]


async def test_clearing_the_queue_frees_them(store: Store) -> None:
    given = await give(store, None, "own", None)
    await messages.clear(store.pool, QUEUE)
    assert await store.pool.fetchval("select count(*) from queen.dedup") == 0
    assert await again(store, given) == ["queued"] * 3


async def test_a_full_queue_still_knows_them(store: Store) -> None:
    await store.configure(QUEUE, maxSize=2)
    given = await give(store, None, None)
    assert await again(store, [given[1]]) == ["duplicate"]
    assert await again(store, [given[1], "own"]) == ["duplicate", "queue_full"]
    assert await ids(store) == given


async def test_in_an_encrypted_queue(store: Store) -> None:
    sealed = Store(store.pool, Cipher(bytes(range(32))))
    await sealed.configure(QUEUE, encryptionEnabled=True)
    given = await give(sealed, None, None)
    assert await again(sealed, given) == ["duplicate", "duplicate"]
    assert await store.pool.fetchval("select bool_and(encrypted) and count(*) = 2 from queen.messages")


@pytest.mark.parametrize("names", [[None], [None, "own"], ["own", None]])
@pytest.mark.parametrize("partitions", [["p"], ["p", "q"]])
async def test_a_push_whose_answer_was_lost_is_recognised(
    store: Store, names: list[str | None], partitions: list[str]
) -> None:
    """It holds ids that are taken, ids that are free, and messages without one."""
    given = await give(store, None, None)
    free = message_id(given[0], 7)
    items = [item(tx, partition) for partition in partitions for tx in (*names, given[1], free)]
    plan = PushPlan([Parcel.of(items)], store.directory)
    with pytest.raises(DatabaseUnavailable):
        await execute(LosesAnswers(store.pool), plan)
    before = await ids(store)
    await execute(store.pool, plan)
    duplicates = [at for at, verdict in enumerate(plan.verdicts()) if verdict.status == "duplicate"]
    assert duplicates == [len(names)]
    assert {verdict.status for verdict in plan.verdicts()} == {"duplicate", "queued"}
    assert await ids(store) == before
    assert len(before) == 2 + len(names) + 1


class LosesAnswers:
    """A connection on which every push that is stored ends without an answer."""

    def __init__(self, db: Any) -> None:
        self._db = db

    async def fetch(self, query: str, *arguments: Any) -> Any:
        rows = await self._db.fetch(query, *arguments)
        if query in (sql.query("push"), sql.query("push_segment")):
            raise ConnectionResetError
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


async def test_an_ack_by_such_an_id_without_a_lease_hits_that_message(store: Store) -> None:
    given = await give(store, None, None, "own", None)
    await again(store, given)
    won = await claim(store)
    await store.release(held(won))
    for seq in (2, 4):
        [answer] = await store.ack([AckItem(won.partition_uid, given[seq - 1])])
        assert answer.success
        assert (await cursor(store))["acked_seq"] == seq


class TestSql:
    async def test_the_same_ids_are_made_there(self, store: Store) -> None:
        base = str(await store.pool.fetchval("select queen.segment_base()"))
        for each in (base, new_segment_base(), message_id(new_segment_base(), 77)):
            assert looks_given(each)
            assert UUID(each).version == 7
            key = await store.pool.fetchval("select queen.base_key($1::text::uuid)::text", each)
            assert key == base_key(message_id(each, 0))
        assert base.endswith("-" + base[24:32] + "0000")

    async def test_what_an_insert_was_given_is_a_duplicate_for_a_push_and_the_other_way_round(
        self, store: Store
    ) -> None:
        insert = "insert into queen.messages (queue, partition, payload, transaction_id) values ($1, 'p', '1', $2)"
        inserted = str(await store.pool.fetchval(f"{insert} returning id", QUEUE, None))
        assert await again(store, [inserted]) == ["duplicate"]
        for tx in [inserted, *await give(store, None, None)]:
            assert await store.pool.execute(insert, QUEUE, tx) == "INSERT 0 0"
        assert len(await ids(store)) == 3

    async def test_the_ids_of_dead_letters_that_were_retried(self, store: Store) -> None:
        await give(store, "a", "b")
        won = await claim(store)
        await ack(store, won, 1, "dlq")
        await ack(store, won, 2, "dlq")
        letters = (await dlq.list_dead_letters(store.pool)).dead_letters
        retried = await dlq.retry(store.pool, [letter.id for letter in letters])
        assert await again(store, [str(each.message_id) for each in retried]) == ["duplicate"] * 2

    async def test_a_row_for_a_transaction_id_has_not_grown(self, store: Store) -> None:
        await give(store, "a")
        size = await store.pool.fetchval("select pg_column_size(d.*) from queen.dedup d")
        assert size == 24 + 16 + 8 + 8


class TestEarlierVersions:
    """Their ids carry no mark, and their rows do not say which ids they stand for."""

    @pytest.fixture
    async def given(self, store: Store) -> list[str]:
        given = await give(store, None, None, "own", None)
        unmarked = [tx.replace("-7e9c-", "-7123-") for tx in given]
        await store.pool.execute(
            "update queen.segments set base = replace(base::text, '-7e9c-', '-7123-')::uuid;"
            "update queen.dedup set h = (select base from queen.segments), given = null where given is not null"
        )
        return unmarked

    async def test_a_push_with_the_first_of_them_finds_all_that_are_stored(
        self, store: Store, given: list[str]
    ) -> None:
        assert await again(store, given) == ["duplicate", "duplicate", "queued", "duplicate"]
        assert len(await ids(store)) == 5

    async def test_sql_and_acks_find_each(self, store: Store, given: list[str]) -> None:
        insert = "insert into queen.messages (queue, partition, payload, transaction_id) values ($1, 'p', '1', $2)"
        answers = [await store.pool.execute(insert, QUEUE, tx) for tx in given]
        assert answers == ["INSERT 0 0", "INSERT 0 0", "INSERT 0 1", "INSERT 0 0"]
        pid = await store.pool.fetchval("select partition_id from queen.partitions")
        found = [await store.pool.fetchval("select queen.locate($1, $2)", pid, tx) for tx in given]
        assert found == [1, 2, 5, 4]

    async def test_a_server_of_an_earlier_version_pushes_as_before(self, store: Store) -> None:
        """It calls the procedures without the arguments that it does not know."""
        plan = PushPlan([Parcel.of([item(), item("own")])], store.directory)
        encoded = await plan.prepare(store.pool)
        only = [*encoded.only()[:13]]
        only[9] = only[9].replace(base_key(encoded.bases[0]), encoded.bases[0])  # type: ignore[union-attr,arg-type]
        statement = sql.query("push_segment").replace(",\n    $14::text::int4multirange[], $15::text::integer[]", "")
        assert "$14" not in statement
        await store.pool.fetch(statement, *only)
        assert await again(store, [encoded.bases[0], "own"]) == ["duplicate", "duplicate"]
        held = await store.pool.fetch(
            "select * from queen.stored_keys_v1($1, $2)", encoded.pids, [UUID(encoded.bases[0])]
        )
        assert [row["seq"] for row in held] == [1]


class Model:
    """What each partition holds and remembers, by transactionId."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[int, str]] = {}
        self.remembered: dict[str, dict[str, tuple[int, str]]] = {}
        self.lasts: dict[str, int] = {}

    def push(self, partition: str, tx: str | None, message: str | None) -> tuple[str, int, str | None]:
        """The verdict that a message must get; `message` is the id that it got."""
        known = self.remembered.setdefault(partition, {})
        held = self.stored.setdefault(partition, {})
        if tx is not None and tx in known:
            seq, first = known[tx]
            return "duplicate", seq, first if seq in held else None
        seq = self.lasts[partition] = self.lasts.get(partition, 0) + 1
        assert message is not None
        held[seq] = tx or message
        known[tx or message] = (seq, message)
        return "queued", seq, message

    def forget(self) -> None:
        for known in self.remembered.values():
            known.clear()


@pytest.mark.parametrize("seed", range(6))
async def test_any_mix_of_ids_deletions_and_retention(store: Store, seed: int) -> None:
    chance = Random(seed)
    model = Model()
    partitions = ["p", "q", "r"]
    seen: list[str] = []
    await store.configure(QUEUE, **EXPIRED, dedupWindowSeconds=3600)

    def some_tx() -> str | None:
        kind = chance.random()
        if kind < 0.35 or not seen:
            return None
        if kind < 0.45:
            return f"own-{chance.randint(1, 20)}"
        if kind < 0.5:
            return message_id(chance.choice(seen), chance.randint(0, 8)) if looks_given(seen[0]) else None
        return chance.choice(seen)

    async def push() -> None:
        items = [
            item(some_tx(), chance.choice(partitions[: chance.choice([1, 3])])) for _ in range(chance.randint(1, 12))
        ]
        verdicts = await chance.choice([alone, in_a_transaction])(store, items)
        # a message of each partition after the other, as they stand in the call
        expected = [
            model.push(str(each.partition), each.transaction_id, verdict.message_id)
            for each, verdict in zip(items, verdicts, strict=True)
        ]
        assert [(verdict.status, verdict.seq, verdict.message_id) for verdict in verdicts] == expected
        seen.extend(str(verdict.message_id) for verdict in verdicts if verdict.message_id)

    async def insert() -> None:
        tx, partition = some_tx(), chance.choice(partitions)
        row: Any = await store.pool.fetchrow(
            "insert into queen.messages (queue, partition, payload, transaction_id) values ($1, $2, '1', $3)"
            " returning seq, id::text",
            QUEUE,
            partition,
            tx,
        )
        status, seq, _ = model.push(partition, tx, (row and row["id"]) or "")
        assert (status == "queued") == (row is not None)
        assert row is None or row["seq"] == seq
        seen.extend([row["id"]] if row else [])

    async def delete() -> None:
        partition = chance.choice(partitions)
        if held := model.stored.get(partition):
            seq, tx = chance.choice([*held.items()])
            uid = await store.pool.fetchval("select uid from queen.partitions where name = $1", partition)
            assert (await messages.delete(store.pool, uid, tx)).message
            del held[seq], model.remembered[partition][tx]

    async def grow_old() -> None:
        await age_messages(store.pool, 61)

    async def retain() -> None:
        await trim(store)
        for partition in model.stored:
            left = set(
                await store.pool.fetchval(
                    "select coalesce(array_agg(seq), '{}') from queen.messages where partition = $1", partition
                )
            )
            model.stored[partition] = {seq: tx for seq, tx in model.stored[partition].items() if seq in left}

    async def forget_all() -> None:
        await forget(store)
        await retain()
        model.forget()

    steps = [push] * 8 + [insert] * 4 + [delete] * 4 + [grow_old, retain]
    for step in range(80):
        await (forget_all if step % 40 == 39 else chance.choice(steps))()
        if step % 8 == 7:
            for partition, held in model.stored.items():
                rows = await store.pool.fetch(
                    "select seq, transaction_id from queen.messages where partition = $1", partition
                )
                assert {row["seq"]: row["transaction_id"] for row in rows} == held
                for tx, (seq, _) in chance.sample(
                    [*model.remembered[partition].items()], k=min(5, len(model.remembered[partition]))
                ):
                    pid = await store.pool.fetchval(
                        "select partition_id from queen.partitions where name = $1", partition
                    )
                    found = await store.pool.fetchval("select queen.locate($1, $2)", pid, tx)
                    assert found == (seq if seq in held else None)
