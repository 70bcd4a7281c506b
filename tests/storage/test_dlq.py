"""Dead letters: listing, deleting, and pushing them again without losing or doubling one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage import dlq
from queenmq.storage.ack import AckItem
from queenmq.storage.errors import QueueFull
from queenmq.storage.pop import QUEUE_MODE
from queenmq.storage.store import Store
from queenmq.wire.names import InvalidValue

from .shorthand import QUEUE, ack, numbers, push
from .time_travel import pass_time
from .waiting import is_waiting

TRACE = "0196c2f5-1111-7000-8000-000000000000"


async def give_up(store: Store, *, group: str = QUEUE_MODE, queue: str = QUEUE, batch: int = 10) -> None:
    """Every message of one partition that a pop brings is dead-lettered."""
    won = (await store.pop(queue, group, batch=batch)).claims[0]
    for message in won.messages():
        assert await ack(store, won, message.seq, "dlq", group=group, error=f"bad {message.seq}")


async def seqs(store: Store, **filters: object) -> list[int]:
    page = await dlq.list_dead_letters(store.pool, **filters)  # type: ignore[arg-type]
    return [letter.seq for letter in page.dead_letters]


async def test_a_dead_letter_has_everything_of_its_message(store: Store) -> None:
    item = PushItem(QUEUE, b'{"a": 1}', "p", "tx-1", TRACE, "alice", encrypted=True)
    pushed = (await store.push([item]))[0]
    await give_up(store, group="g")
    page = await dlq.list_dead_letters(store.pool)
    letter = page.dead_letters[0]
    assert page.total == 1
    assert (letter.queue, letter.partition, letter.group, letter.seq) == (QUEUE, "p", "g", 1)
    assert (letter.transaction_id, str(letter.message_id), str(letter.trace_id)) == ("tx-1", pushed.message_id, TRACE)
    assert (letter.payload, letter.encrypted, letter.producer_sub) == (b'{"a": 1}', True, "alice")
    assert (letter.error, letter.retry_count) == ("bad 1", 0)
    assert letter.failed_at > letter.created_at
    assert await dlq.get(store.pool, letter.id) == letter
    assert await dlq.find(store.pool, UUID(pushed.partition_id), "tx-1") == [letter]
    assert await dlq.find(store.pool, UUID(pushed.partition_id), "tx-1", "other") == []
    assert await dlq.get(store.pool, uuid4()) is None


class TestList:
    @pytest.fixture
    async def several(self, store: Store) -> Store:
        """Failures 1..4 of q1 an hour old, 1 of q1/other now, 1 and 2 of q2 by another group now."""
        await push(store, 1, 2, 3, 4, queue="q1")
        await give_up(store, queue="q1")
        await pass_time(store.pool, 3600, "q1")
        await push(store, 1, queue="q1", partition="other")
        await give_up(store, queue="q1")
        await push(store, 1, 2, queue="q2")
        await give_up(store, queue="q2", group="g")
        return store

    async def test_newest_failure_first(self, several: Store) -> None:
        page = await dlq.list_dead_letters(several.pool, queue="q1")
        assert page.total == 5
        assert (page.dead_letters[0].partition, page.dead_letters[0].seq) == ("other", 1)
        times = [letter.failed_at for letter in page.dead_letters]
        assert times == sorted(times, reverse=True)

    async def test_filters_are_combined(self, several: Store) -> None:
        assert len(await seqs(several)) == 7
        assert sorted(await seqs(several, queue="q2")) == [1, 2]
        assert await seqs(several, queue="q1", group="g") == []
        assert sorted(await seqs(several, group="g")) == [1, 2]
        assert await seqs(several, queue="q1", partition="other") == [1]
        assert await seqs(several, queue="none") == []

    async def test_time_is_the_time_of_the_failure(self, several: Store) -> None:
        newest = (await dlq.list_dead_letters(several.pool, queue="q1")).dead_letters[0].failed_at
        recent = newest - timedelta(minutes=10)
        assert await seqs(several, queue="q1", since=recent) == [1]
        assert sorted(await seqs(several, queue="q1", until=recent)) == [1, 2, 3, 4]
        assert await seqs(several, queue="q1", since=newest, until=newest) == [1]

    async def test_pages_follow_each_other_and_the_total_does_not_change(self, several: Store) -> None:
        whole = await seqs(several, queue="q1")
        pages = [
            await dlq.list_dead_letters(several.pool, queue="q1", limit=2, offset=offset) for offset in (0, 2, 4, 6)
        ]
        assert [page.total for page in pages] == [5, 5, 5, 5]
        assert [letter.seq for page in pages for letter in page.dead_letters] == whole
        assert pages[3].dead_letters == []


class TestDelete:
    async def test_one(self, store: Store) -> None:
        await push(store, 1, 2)
        await give_up(store)
        first = (await dlq.list_dead_letters(store.pool)).dead_letters[-1]
        assert await dlq.delete(store.pool, first.id)
        assert not await dlq.delete(store.pool, first.id)
        assert len(await seqs(store)) == 1

    async def test_by_message_queue_and_group(self, store: Store) -> None:
        await push(store, 1, 2)
        for group in ("a", "b"):
            await give_up(store, group=group)
        await push(store, 1, queue="q2")
        await give_up(store, queue="q2")
        letter = (await dlq.list_dead_letters(store.pool, queue=QUEUE, group="a")).dead_letters[0]
        assert await dlq.delete_message(store.pool, letter.partition_uid, letter.transaction_id, "nobody") == 0
        assert await dlq.delete_message(store.pool, letter.partition_uid, letter.transaction_id) == 2
        assert await dlq.delete_all(store.pool, QUEUE, "a") == 1
        assert await dlq.delete_all(store.pool, QUEUE) == 1
        assert await dlq.delete_all(store.pool, QUEUE) == 0
        assert [letter.queue for letter in (await dlq.list_dead_letters(store.pool)).dead_letters] == ["q2"]


class TestRetry:
    async def test_the_copy_becomes_a_new_message_and_the_dead_letter_goes(self, store: Store) -> None:
        await store.push(
            [PushItem(QUEUE, b'{"a": 1}', "p", "tx-1", TRACE, "alice", encrypted=True), PushItem(QUEUE, b"2", "p")]
        )
        await give_up(store)
        letter = (await dlq.list_dead_letters(store.pool)).dead_letters[-1]
        retried = await dlq.retry(store.pool, [letter.id, uuid4()])
        assert [(done.dead_letter, done.queue, done.partition, done.seq) for done in retried] == [
            (letter.id, QUEUE, "p", 3)
        ]
        assert await seqs(store) == [2]
        message = (await store.pop(QUEUE, batch=10)).messages()[0]
        assert (message.seq, message.payload, message.encrypted) == (3, b'{"a": 1}', True)
        assert (message.trace_id, message.producer_sub) == (TRACE, "alice")
        assert message.id == str(retried[0].message_id) == message.transaction_id == retried[0].transaction_id
        assert message.id != str(letter.message_id)
        assert await store.pool.fetch("select * from queen.partition_lookup_check()") == []

    async def test_a_new_message_is_acknowledged_like_any_other(self, store: Store) -> None:
        await push(store, 1, 2, 3)
        await give_up(store)
        retried = await dlq.retry_all(store.pool, QUEUE)
        won = (await store.pop(QUEUE, batch=10)).claims[0]
        answers = await store.ack([
            AckItem(won.partition_uid, done.transaction_id, lease_id=won.lease_id) for done in retried
        ])  # fmt: skip
        assert [answer.success for answer in answers] == [True] * 3
        assert (await store.pop(QUEUE, batch=10)).messages() == []

    async def test_again_finds_nothing(self, store: Store) -> None:
        """What a caller does whose first answer was lost."""
        await push(store, 1)
        await give_up(store)
        letter = (await dlq.list_dead_letters(store.pool)).dead_letters[0]
        assert len(await dlq.retry(store.pool, [letter.id])) == 1
        assert await dlq.retry(store.pool, [letter.id]) == []
        assert await store.pool.fetchval("select count(*) from queen.messages") == 2

    async def test_by_partition_and_transaction_id(self, store: Store) -> None:
        pushed = (await store.push([PushItem(QUEUE, b"1", "p", "tx-1")]))[0]
        await give_up(store, group="a")
        await give_up(store, group="b")
        partition = UUID(pushed.partition_id)
        assert await dlq.retry_message(store.pool, partition, "tx-2") == []
        retried = await dlq.retry_message(store.pool, partition, "tx-1")
        assert len(retried) == 2  # two dead letters,
        assert {done.seq for done in retried} == {2}  # one message
        assert await seqs(store) == []
        assert numbers(await store.pop(QUEUE, "a", batch=10)) == [1]

    async def test_of_one_group_leaves_the_dead_letter_of_the_other(self, store: Store) -> None:
        pushed = (await store.push([PushItem(QUEUE, b"1", "p", "tx-1")]))[0]
        await give_up(store, group="a")
        await give_up(store, group="b")
        assert len(await dlq.retry_message(store.pool, UUID(pushed.partition_id), "tx-1", "a")) == 1
        assert [letter.group for letter in (await dlq.list_dead_letters(store.pool)).dead_letters] == ["b"]

    async def test_many_keep_their_old_order_in_batches(self, store: Store) -> None:
        for number in range(1, 6):  # one segment each, and failed in the opposite order
            await push(store, number)
            await push(store, 10 + number, partition="other")
        for _ in range(2):
            await give_up(store)
        await store.pool.execute("update queen.dead_letter_queue set failed_at = now() - seq * interval '1 s'")
        done = []
        while batch := await dlq.retry_all(store.pool, QUEUE, limit=3):
            assert len(batch) <= 3
            done += batch
        assert len(done) == 10
        assert numbers(await store.pop(QUEUE, batch=10, partition="p")) == [1, 2, 3, 4, 5]
        assert numbers(await store.pop(QUEUE, batch=10, partition="other")) == [11, 12, 13, 14, 15]

    async def test_a_group_of_a_queue_only(self, store: Store) -> None:
        await push(store, 1, 2)
        await give_up(store, group="a")
        await give_up(store, group="b", batch=1)
        assert len(await dlq.retry_all(store.pool, QUEUE, "b")) == 1
        assert sorted(await seqs(store, group="a")) == [1, 2]
        assert await seqs(store, group="b") == []

    async def test_a_drained_consumer_is_woken(self, store: Store) -> None:
        await push(store, 1)
        await give_up(store)
        assert (await store.pop(QUEUE)).messages() == []
        await dlq.retry_all(store.pool, QUEUE)
        assert numbers(await store.pop(QUEUE)) == [1]

    async def test_a_partition_that_is_gone_is_made_again_with_its_groups(self, store: Store) -> None:
        await push(store, 1)
        await give_up(store)
        await store.pool.execute(
            "with p as (delete from queen.partitions), l as (delete from queen.partition_lookup),"
            " s as (delete from queen.segments) delete from queen.partition_consumers"
        )
        retried = await dlq.retry_all(store.pool, QUEUE)
        assert [(done.partition, done.seq) for done in retried] == [("p", 1)]
        assert numbers(await store.pop(QUEUE)) == [1]
        assert await seqs(store) == []

    async def test_a_full_queue_changes_nothing(self, store: Store) -> None:
        await store.configure(QUEUE, maxSize=2)
        await push(store, 1, 2)
        await give_up(store)
        await push(store, 3)
        with pytest.raises(QueueFull):
            await dlq.retry_all(store.pool, QUEUE)
        assert len(await seqs(store)) == 2
        assert len(await dlq.retry_all(store.pool, QUEUE, limit=1)) == 1
        assert len(await seqs(store)) == 1

    async def test_a_failure_after_the_push_undoes_both(self, store: Store) -> None:
        """As if the server had died in the middle: the dead letters cannot be removed."""
        await push(store, 1)
        await give_up(store)
        await store.pool.execute(
            "create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$;"
            " create trigger refuse before delete on queen.dead_letter_queue execute function refuse()"
        )
        with pytest.raises(Exception, match="no"):
            await dlq.retry_all(store.pool, QUEUE)
        assert await seqs(store) == [1]
        assert await store.pool.fetchval("select count(*) from queen.messages") == 1

    async def test_concurrent_retries_push_each_message_once(self, store: Store) -> None:
        await push(store, *range(1, 31))
        await give_up(store, batch=30)
        letters = [letter.id for letter in (await dlq.list_dead_letters(store.pool)).dead_letters]
        deleting = [asyncio.create_task(dlq.delete(store.pool, letter)) for letter in letters[:5]]
        answers = await asyncio.gather(
            *[dlq.retry_all(store.pool, QUEUE, limit=7) for _ in range(8)],
            *[dlq.retry(store.pool, letters[start : start + 10]) for start in (0, 5, 15)],
        )
        deleted = sum(await asyncio.gather(*deleting))
        done = [entry for answer in answers for entry in answer]
        while batch := await dlq.retry_all(store.pool, QUEUE):
            done += batch
        assert len({entry.dead_letter for entry in done}) == len(done) == 30 - deleted
        got = numbers(await store.pop(QUEUE, batch=100))
        assert len(got) == len(set(got)) == 30 - deleted
        assert await seqs(store) == []

    async def test_one_that_is_deleted_meanwhile_is_not_pushed(self, store: Store) -> None:
        await push(store, 1)
        await give_up(store)
        letter = (await dlq.list_dead_letters(store.pool)).dead_letters[0]
        async with store.pool.acquire() as other, other.transaction():
            await other.execute("delete from queen.dead_letter_queue")
            retrying = asyncio.create_task(dlq.retry(store.pool, [letter.id]))
            assert await is_waiting(store, retrying)
        assert await retrying == []
        assert await store.pool.fetchval("select count(*) from queen.messages") == 1

    async def test_a_queue_deleted_meanwhile_is_not_made_again(self, store: Store) -> None:
        await push(store, 1)
        await give_up(store)
        letter = (await dlq.list_dead_letters(store.pool)).dead_letters[0]
        async with store.pool.acquire() as holder:
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("select queen.delete_queue_v1($1)", QUEUE)
            waiting = asyncio.create_task(dlq.retry(store.pool, [letter.id]))
            assert await is_waiting(store, waiting)
            await transaction.commit()
        assert await waiting == []
        assert await store.pool.fetchval("select count(*) from queen.queues") == 0

    async def test_too_many_at_once_are_refused(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="at most 1000"):
            await dlq.retry(store.pool, [uuid4()] * 1001)
