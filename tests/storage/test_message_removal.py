"""Taking messages out by hand: deleting one, dead-lettering one, clearing a queue, also while traffic runs."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID, uuid4

import pytest

from queenmq import sql
from queenmq.domain.segments import Parcel, PushItem
from queenmq.storage import dlq, messages
from queenmq.storage.ack import AckItem
from queenmq.storage.errors import MessageNeeded, MessageNotFound
from queenmq.storage.pop import QUEUE_MODE
from queenmq.storage.push import PushPlan, execute
from queenmq.storage.store import Store

from .shorthand import QUEUE, ack, claim, cursor, numbers, push
from .time_travel import expire_leases, pass_time
from .waiting import is_waiting

TRACE = "0196c2f5-1111-7000-8000-000000000000"


async def push_named(store: Store, *names: int, partition: str = "p", queue: str = QUEUE) -> UUID:
    """One push of messages with the transactionIds t1, t2, ...; returns the partition's uid."""
    verdicts = await store.push([PushItem(queue, str(name).encode(), partition, f"t{name}") for name in names])
    assert {verdict.status for verdict in verdicts} == {"queued"}
    return UUID(verdicts[0].partition_id)


async def stored(store: Store) -> list[int]:
    rows = await store.pool.fetch("select payload::text from queen.messages order by queue, partition, seq")
    return [int(row["payload"]) for row in rows]


async def consistent(store: Store) -> bool:
    return await store.pool.fetch("select * from queen.partition_lookup_check()") == []


class TestDelete:
    async def test_what_stands_behind_it_no_longer_waits_for_its_retry(self, store: Store) -> None:
        await store.configure(QUEUE, retryDelay=3_600_000)
        partition = await push_named(store, 1, 2)
        assert await ack(store, await claim(store), 1, "failed")
        assert numbers(await store.pop(QUEUE)) == []
        await messages.delete(store.pool, partition, "t1")
        assert numbers(await store.pop(QUEUE)) == [2]

    @pytest.mark.parametrize("gone", [1, 2, 3, 4, 5])
    async def test_its_neighbours_stay_as_they_are(self, store: Store, gone: int) -> None:
        items = [
            PushItem(QUEUE, str(n).encode(), "p", f"t{n}" if n % 2 else None, TRACE if n == 2 else None)
            for n in range(1, 6)
        ]
        items[3].producer_sub, items[4].encrypted = "alice", True
        pushed = await store.push(items)
        partition = UUID(pushed[0].partition_id)
        before = await store.pool.fetch("select * from queen.messages order by seq")
        assert await messages.delete(store.pool, partition, pushed[gone - 1].transaction_id) == messages.Deleted(
            True, 0
        )
        after = await store.pool.fetch("select * from queen.messages order by seq")
        assert after == [row for row in before if row["seq"] != gone]
        assert [row["seq"] for row in after] == [n for n in range(1, 6) if n != gone]
        for n, verdict in enumerate(pushed, 1):
            found = await messages.get(store.pool, partition, verdict.transaction_id)
            assert (found is None) == (n == gone)
        assert await consistent(store)
        popped = (await store.pop(QUEUE, batch=10)).messages()
        assert [(m.id, m.trace_id, m.producer_sub, m.encrypted) for m in popped] == [
            (str(row["id"]), row["trace_id"] and str(row["trace_id"]), row["producer_sub"], row["encrypted"])
            for row in after
        ]

    async def test_nothing_there(self, store: Store) -> None:
        partition = await push_named(store, 1)
        assert await messages.delete(store.pool, partition, "t2") == messages.Deleted(False, 0)
        assert await messages.delete(store.pool, uuid4(), "t1") == messages.Deleted(False, 0)
        await messages.delete(store.pool, partition, "t1")
        assert await messages.delete(store.pool, partition, "t1") == messages.Deleted(False, 0)
        assert await stored(store) == []

    async def test_its_transaction_id_is_free_again_and_no_other(self, store: Store) -> None:
        partition = await push_named(store, 1, 2, 3)
        await messages.delete(store.pool, partition, "t2")
        verdicts = await store.push([PushItem(QUEUE, str(n).encode(), "p", f"t{n}") for n in (1, 2, 3)])
        assert [(verdict.status, verdict.seq) for verdict in verdicts] == [
            ("duplicate", 1),
            ("queued", 4),
            ("duplicate", 3),
        ]
        assert all(verdict.message_id is not None for verdict in verdicts)
        assert await consistent(store)

    async def test_numbers_are_not_given_out_again(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        await messages.delete(store.pool, partition, "t2")
        await push(store, 3)
        assert numbers(await store.pop(QUEUE, batch=5)) == [1, 3]
        rows = await store.pool.fetch("select seq from queen.messages order by seq")
        assert [row["seq"] for row in rows] == [1, 3]
        assert await consistent(store)

    async def test_its_dead_letters_go_with_it(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        for group in ("a", "b"):
            won = await claim(store, group=group)
            await ack(store, won, 1, "dlq", group=group)
        assert await messages.delete(store.pool, partition, "t1") == messages.Deleted(True, 2)
        assert (await dlq.list_dead_letters(store.pool)).total == 0

    async def test_a_dead_letter_whose_message_is_gone_can_be_deleted_this_way(self, store: Store) -> None:
        partition = await push_named(store, 1)
        won = await claim(store)
        await ack(store, won, 1, "dlq")
        await messages.clear(store.pool, QUEUE)
        assert await messages.delete(store.pool, partition, "t1") == messages.Deleted(False, 1)

    @pytest.mark.parametrize("gone", [1, 2, 3])
    async def test_while_it_is_leased(self, store: Store, gone: int) -> None:
        partition = await push_named(store, 1, 2, 3)
        await push(store, 4)
        won = await claim(store, 3)
        await messages.delete(store.pool, partition, f"t{gone}")
        answers = await store.ack([AckItem(str(partition), f"t{n}", lease_id=won.lease_id) for n in (1, 2, 3)])
        assert [answer.success for answer in answers] == [n != gone for n in (1, 2, 3)]
        assert answers[gone - 1].error == "Message not found"
        assert numbers(await store.pop(QUEUE, batch=10)) == [4]  # the lease has ended

    async def test_the_only_leased_one_ends_the_lease(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        won = await claim(store, 1)
        await messages.delete(store.pool, partition, "t1")
        assert numbers(await store.pop(QUEUE, batch=10)) == [2]
        answer = (await store.ack([AckItem(str(partition), "t1", lease_id=won.lease_id)]))[0]
        assert (answer.success, answer.error) == (False, "Message not found")

    async def test_the_last_open_one_of_a_lease_ends_it(self, store: Store) -> None:
        partition = await push_named(store, 1, 2, 3)
        won = await claim(store, 2)
        await ack(store, won, 1)
        await messages.delete(store.pool, partition, "t2")
        assert numbers(await store.pop(QUEUE, batch=10)) == [3]

    async def test_an_expired_lease_on_it_counts_against_nobody(self, store: Store) -> None:
        await store.configure(QUEUE, retryLimit=0)
        partition = await push_named(store, 1, 2)
        await claim(store, 1)
        await expire_leases(store.pool)
        await messages.delete(store.pool, partition, "t1")
        assert numbers(await store.pop(QUEUE, batch=10)) == [2]
        assert (await dlq.list_dead_letters(store.pool)).total == 0

    async def test_a_group_behind_the_gap_goes_on(self, store: Store) -> None:
        partition = await push_named(store, 1, 2, 3)
        await store.pop(QUEUE, "g", batch=1, auto_ack=True)
        await messages.delete(store.pool, partition, "t2")
        await messages.delete(store.pool, partition, "t3")
        assert numbers(await store.pop(QUEUE, "g", batch=10)) == []
        assert (await cursor(store, group="g"))["ready_at"] is None
        await push(store, 4)
        assert numbers(await store.pop(QUEUE, "g", batch=10)) == [4]

    async def test_a_repeated_push_is_still_recognised_when_one_of_its_messages_was_deleted(self, store: Store) -> None:
        """The answer of a push was lost and a message deleted before the push is repeated."""
        plan = PushPlan([Parcel.of([PushItem(QUEUE, str(n).encode(), "p") for n in (1, 2, 3)])], store.directory)
        encoded = await plan.prepare(store.pool)
        await store.pool.fetch(sql.query("push"), *encoded.arguments())
        first = encoded.bases[0]
        await messages.delete(
            store.pool, UUID(await store.pool.fetchval("select uid::text from queen.partitions")), first
        )
        await execute(store.pool, plan)
        assert [verdict.status for verdict in plan.verdicts()] == ["queued"] * 3
        assert await stored(store) == [2, 3]

    @pytest.mark.parametrize("seed", range(5))
    async def test_in_any_order_until_none_is_left(self, store: Store, seed: int) -> None:
        chance = random.Random(seed)
        expected: dict[str, int] = {}
        for start in (0, 40, 80):
            items = [
                PushItem(
                    QUEUE,
                    str(start + n).encode(),
                    "p",
                    chance.choice([None, f"t{start + n}"]),
                    chance.choice([None, TRACE]),
                )
                for n in range(chance.randint(1, 40))
            ]
            pushed = await store.push(items)
            expected |= {verdict.transaction_id: int(item.payload) for verdict, item in zip(pushed, items, strict=True)}
        partition = await store.pool.fetchval("select uid from queen.partitions")
        names = list(expected)
        chance.shuffle(names)
        for name in names:
            assert await messages.delete(store.pool, partition, name) == messages.Deleted(True, 0)
            del expected[name]
            if chance.random() < 0.2:
                rows = await store.pool.fetch("select transaction_id, payload::text from queen.messages order by seq")
                assert {row["transaction_id"]: int(row["payload"]) for row in rows} == expected
                assert await consistent(store)
        assert await store.pool.fetchval("select count(*) from queen.segments") == 0
        assert (await store.pop(QUEUE, batch=10)).messages() == []

    async def test_many_at_once_from_one_segment(self, store: Store) -> None:
        partition = await push_named(store, *range(1, 61))
        gone = random.Random(2).sample(range(1, 61), 45)
        answers = await asyncio.gather(
            *[messages.delete(store.pool, partition, f"t{name}") for name in [*gone, *gone[:9]]]
        )
        assert sum(answer.message for answer in answers) == 45
        assert await stored(store) == [name for name in range(1, 61) if name not in gone]
        assert await consistent(store)

    @pytest.mark.parametrize("lock", ["partition_lookup", "partition_consumers"])
    async def test_it_waits_for_the_push_and_the_pop_that_are_at_the_partition(self, store: Store, lock: str) -> None:
        partition = await push_named(store, 1)
        await push(store, 2, partition="other")
        await store.pop(QUEUE, partition="other")
        async with store.pool.acquire() as other, other.transaction():
            await other.execute(f"select from queen.{lock} for no key update")
            deleting = asyncio.create_task(messages.delete(store.pool, partition, "t1"))
            assert await is_waiting(store, deleting)
        assert (await deleting).message

    async def test_while_consumers_and_producers_are_at_work(self, store: Store) -> None:
        """Whatever is not deleted is delivered exactly once, in order, and no lease gets stuck."""
        partition = await push_named(store, *range(1, 101))
        chance = random.Random(1)
        gone = chance.sample(range(1, 101), 40)
        delivered: list[int] = []

        async def consume() -> None:
            while True:
                result = await store.pop(QUEUE, batch=chance.randint(1, 5))
                if not result.claims and await store.pool.fetchval(
                    "select bool_and(lease_id is null and ready_at is null) from queen.partition_consumers"
                ):
                    return
                for won in result.claims:
                    batch = list(won.messages())
                    delivered.extend(int(message.payload) for message in batch)  # while nobody else can have more
                    for message in batch:
                        await store.ack([AckItem(won.partition_uid, message.transaction_id, lease_id=won.lease_id)])

        async def delete() -> None:
            for name in gone:
                await messages.delete(store.pool, partition, f"t{name}")

        async def produce() -> None:
            for name in range(101, 131):
                await push_named(store, name)

        await asyncio.gather(consume(), consume(), delete(), produce())
        await consume()
        assert delivered == sorted(set(delivered))
        assert set(delivered) | set(gone) == set(range(1, 131))
        assert await consistent(store)


class TestDeadLetter:
    async def test_the_next_message_of_a_group_is_skipped_by_it_alone(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        await store.pop(QUEUE, "other")
        await expire_leases(store.pool)
        assert numbers(await store.pop(QUEUE, "g")) == [1]
        await expire_leases(store.pool)
        assert await messages.dead_letter(store.pool, partition, "t1", "g", reason="poison") == "skipped"
        letter = (await dlq.list_dead_letters(store.pool)).dead_letters[0]
        assert (letter.group, letter.seq, letter.error) == ("g", 1, "poison")
        assert numbers(await store.pop(QUEUE, "g", batch=10)) == [2]
        assert numbers(await store.pop(QUEUE, "other", batch=10)) == [1, 2]

    async def test_over_a_gap_too(self, store: Store) -> None:
        partition = await push_named(store, 1, 2, 3)
        await store.pop(QUEUE, batch=1, auto_ack=True)
        await messages.delete(store.pool, partition, "t2")
        assert await messages.dead_letter(store.pool, partition, "t3") == "skipped"

    async def test_in_the_middle_it_is_removed_when_nobody_else_needs_it(self, store: Store) -> None:
        partition = await push_named(store, 1, 2, 3)
        await store.pop(QUEUE, "done", batch=10, auto_ack=True)
        await store.pop(QUEUE, batch=1)
        await expire_leases(store.pool)
        assert await messages.dead_letter(store.pool, partition, "t2") == "removed"
        assert numbers(await store.pop(QUEUE, batch=10)) == [1, 3]
        letter = (await dlq.list_dead_letters(store.pool)).dead_letters[0]
        assert (letter.group, letter.payload, letter.error) == (QUEUE_MODE, b"2", messages.BY_HAND)

    async def test_in_the_middle_it_is_kept_for_those_who_need_it(self, store: Store) -> None:
        partition = await push_named(store, 1, 2, 3)
        for group in ("a", "b", "c"):
            await store.pop(QUEUE, group)
        await expire_leases(store.pool)
        with pytest.raises(MessageNeeded, match="b, c") as refused:
            await messages.dead_letter(store.pool, partition, "t2", "a")
        assert refused.value.detail == "b, c"
        assert (await dlq.list_dead_letters(store.pool)).total == 0
        assert await stored(store) == [1, 2, 3]

    async def test_for_all_groups_that_need_it(self, store: Store) -> None:
        partition = await push_named(store, 1, 2, 3)
        await store.pop(QUEUE, "done", batch=10, auto_ack=True)
        for group in ("a", "b"):
            await store.pop(QUEUE, group)
        await expire_leases(store.pool)
        assert await messages.dead_letter(store.pool, partition, "t2", None) == "removed"
        assert {letter.group for letter in (await dlq.list_dead_letters(store.pool)).dead_letters} == {"a", "b"}
        assert numbers(await store.pop(QUEUE, "a", batch=10)) == [1, 3]

    async def test_nobody_has_consumed_yet(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        assert await messages.dead_letter(store.pool, partition, "t1") == "removed"
        assert numbers(await store.pop(QUEUE, batch=10)) == [2]
        assert [letter.group for letter in (await dlq.list_dead_letters(store.pool)).dead_letters] == [QUEUE_MODE]

    async def test_a_consumed_message_is_only_copied(self, store: Store) -> None:
        partition = await push_named(store, 1)
        await store.pop(QUEUE, auto_ack=True)
        assert await messages.dead_letter(store.pool, partition, "t1") == "copied"
        assert await stored(store) == [1]

    async def test_a_leased_one(self, store: Store) -> None:
        """The consumer that holds it may still ack, and is told that it is dead."""
        partition = await push_named(store, 1, 2)
        won = await claim(store, 2)
        assert await messages.dead_letter(store.pool, partition, "t1") == "skipped"
        answers = await store.ack([AckItem(str(partition), name, lease_id=won.lease_id) for name in ("t1", "t2")])
        assert [answer.success for answer in answers] == [True, True]
        assert (await store.pop(QUEUE)).messages() == []

    async def test_it_is_kept_where_the_queue_discards_failures(self, store: Store) -> None:
        await store.configure(QUEUE, deadLetterQueue=False)
        partition = await push_named(store, 1)
        await store.pop(QUEUE)
        await expire_leases(store.pool)
        assert await messages.dead_letter(store.pool, partition, "t1") == "skipped"
        assert (await dlq.list_dead_letters(store.pool)).total == 1

    async def test_nothing_there(self, store: Store) -> None:
        with pytest.raises(MessageNotFound):
            await messages.dead_letter(store.pool, uuid4(), "t1")


class TestClear:
    async def test_all_messages_of_a_queue_go_and_their_ids_are_free(self, store: Store) -> None:
        await push_named(store, 1, 2, 3)
        await push(store, 4, 5, partition="other")
        await push(store, 1, queue="untouched")
        await store.pop(QUEUE, "g", batch=1, auto_ack=True)
        assert await messages.clear(store.pool, QUEUE) == 5
        assert await messages.clear(store.pool, QUEUE) == 0
        assert await stored(store) == [1]
        assert numbers(await store.pop(QUEUE, "g", batch=10, partitions=5)) == []
        assert await store.pool.fetchval("select count(*) from queen.dedup") == 1
        assert await store.pool.fetch("select from queen.partition_lookup where trimmed_seq <> dedup_floor") == []
        assert await consistent(store)
        await push_named(store, 1, 2)
        assert numbers(await store.pop(QUEUE, "g", batch=10)) == [1, 2]
        assert numbers(await store.pop(QUEUE, "later", batch=10)) == [1, 2]

    async def test_one_partition(self, store: Store) -> None:
        await push(store, 1, 2)
        await push(store, 3, partition="other")
        assert await messages.clear(store.pool, QUEUE, "p") == 2
        assert await stored(store) == [3]
        assert await messages.clear(store.pool, QUEUE, "none") == 0
        assert await messages.clear(store.pool, "none") == 0

    async def test_leases_end(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        won = await claim(store, 2)
        await messages.clear(store.pool, QUEUE)
        answer = (await store.ack([AckItem(str(partition), "t1", lease_id=won.lease_id)]))[0]
        assert (answer.success, answer.error) == (False, "Message not found")
        assert not await ack(store, won, 2)
        await push(store, 3)
        assert numbers(await store.pop(QUEUE)) == [3]

    async def test_a_push_on_its_way_is_cleared_too(self, store: Store) -> None:
        await push(store, 1)
        await store.pop(QUEUE, auto_ack=True)
        async with store.pool.acquire() as other, other.transaction():
            await other.execute("insert into queen.messages (queue, partition, payload) values ($1, 'p', '2')", QUEUE)
            clearing = asyncio.create_task(messages.clear(store.pool, QUEUE))
            assert await is_waiting(store, clearing)
        assert await clearing == 2
        assert await stored(store) == []
        await push(store, 3)
        assert numbers(await store.pop(QUEUE)) == [3]

    async def test_a_full_queue_has_room_again(self, store: Store) -> None:
        await store.configure(QUEUE, maxSize=2)
        await push(store, 1, 2)
        assert (await store.push([PushItem(QUEUE, b"3", "p")]))[0].status == "queue_full"
        await messages.clear(store.pool, QUEUE)
        assert (await store.push([PushItem(QUEUE, b"3", "p")]))[0].status == "queued"

    async def test_it_is_on_record(self, store: Store) -> None:
        partition = await push_named(store, 1, 2)
        await messages.delete(store.pool, partition, "t1")
        await messages.clear(store.pool, QUEUE)
        rows = await store.pool.fetch("select kind, queue_name, messages from queen.retention_history order by id")
        assert [tuple(row) for row in rows] == [("deleted", QUEUE, 1), ("deleted", QUEUE, 1)]

    async def test_dead_letters_stay(self, store: Store) -> None:
        await push(store, 1)
        won = await claim(store)
        await ack(store, won, 1, "dlq")
        await pass_time(store.pool, 10)
        await messages.clear(store.pool, QUEUE)
        assert len(await dlq.retry_all(store.pool, QUEUE)) == 1
        assert numbers(await store.pop(QUEUE)) == [1]

    async def test_while_producers_and_consumers_are_at_work(self, store: Store) -> None:
        """What was pushed after the clear is delivered; nothing gets stuck."""
        await push(store, 0)

        async def produce(start: int) -> None:
            for number in range(start, start + 20):
                await push(store, number, partition=f"p{number % 3}")

        async def consume() -> None:
            for _ in range(30):
                for won in (await store.pop(QUEUE, batch=3, partitions=2)).claims:
                    await ack(store, won, won.to_seq)

        async def clear() -> None:
            for _ in range(5):
                await messages.clear(store.pool, QUEUE)

        await asyncio.gather(produce(100), produce(200), consume(), consume(), clear())
        await expire_leases(store.pool)
        left = await stored(store)
        await push(store, 999)
        got: list[int] = []
        while batch := numbers(await store.pop(QUEUE, batch=10, partitions=5, auto_ack=True)):
            got += batch
        assert set(got) <= {*left, 999}
        assert 999 in got
        assert await consistent(store)
