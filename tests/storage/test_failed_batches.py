"""A batch that fails as a whole: no message pays for its neighbour.

Official clients hand a list to their handler and, when one call fails, answer `failed` for the whole list. The
consumer of these tests does the same, so its handler sees what a user's handler would see.
"""

from __future__ import annotations

import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.ack import AckItem
from queenmq.storage.pop import Claim
from queenmq.storage.store import Store
from tests.storage.shorthand import QUEUE, ack, ack_of, by_partition, claim, cursor, dead_letters, numbers, push
from tests.storage.time_travel import expire_leases


class Consumer:
    """Handles the messages of a list in order, and fails the list at the first bad one."""

    def __init__(self, store: Store, bad: set[int], *, batch: int = 6, partitions: int = 1) -> None:
        self._store = store
        self._bad = bad
        self._batch = batch
        self._partitions = partitions
        self.lists: list[list[int]] = []

    async def run(self) -> None:
        """Until nothing is left."""
        while (won := await self._store.pop(QUEUE, batch=self._batch, partitions=self._partitions)).claims:
            handled: list[int] = []
            for number in numbers(won):
                handled.append(number)
                if number in self._bad:
                    break
            self.lists.append(handled)
            status = "failed" if handled[-1] in self._bad else "completed"
            answers = [ack_of(each, seq, status) for each in won.claims for seq in seqs(each)]
            assert all(result.success for result in await self._store.ack(answers))

    def handled(self) -> list[int]:
        return [number for each in self.lists for number in each]


def seqs(won: Claim) -> list[int]:
    return [message.seq for message in won.messages()]


@pytest.fixture
async def orders(store: Store) -> Store:
    """retryLimit 1, no delay, and the messages 1 to 6 in one partition."""
    await store.configure(QUEUE, retryLimit=1, retryDelay=0)
    await push(store, *range(1, 7))
    return store


async def test_one_bad_message_is_the_only_dead_letter(orders: Store) -> None:
    consumer = Consumer(orders, {3})
    await consumer.run()
    assert consumer.lists == [[1, 2, 3], [1, 2, 3], [1], [2], [3], [4, 5, 6]]
    assert await dead_letters(orders) == [(3, 2, "Retries exhausted")]
    row = await cursor(orders)
    assert (row["acked_seq"], row["retries"], row["ready_at"]) == (6, None, None)


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
@pytest.mark.parametrize("bad", [{1}, {6}, {2, 5}, {1, 2, 3}, {1, 6}, set(range(1, 7))], ids=str)
async def test_exactly_the_bad_ones_are_dead_letters(store: Store, limit: int, bad: set[int]) -> None:
    await store.configure(QUEUE, retryLimit=limit, retryDelay=0)
    await push(store, *range(1, 7))
    consumer = Consumer(store, bad)
    await consumer.run()
    letters = await dead_letters(store)
    assert [seq for seq, _, _ in letters] == sorted(bad)
    firsts = list(dict.fromkeys(consumer.handled()))
    assert firsts == [1, 2, 3, 4, 5, 6], "the handler has seen every message, in order"
    for number in bad:  # its last delivery was one of its own
        assert [each for each in consumer.lists if number in each][-1] == [number]


async def test_a_large_batch_does_not_end_in_single_deliveries(store: Store) -> None:
    await store.configure(QUEUE, retryLimit=3, retryDelay=0)
    await push(store, *range(1, 101))
    consumer = Consumer(store, {1}, batch=100)
    await consumer.run()
    assert [seq for seq, _, _ in await dead_letters(store)] == [1]
    assert len(consumer.lists) < 30
    assert len(consumer.lists[-1]) > 10, "what was good made the next parts larger"


async def test_partitions_of_one_pop_do_not_pay_for_each_other(store: Store) -> None:
    """The list of a pop from several partitions fails as a whole too."""
    await store.configure(QUEUE, retryLimit=1, retryDelay=0)
    items = [PushItem(QUEUE, str(10 * p + n).encode(), f"p{p}") for p in (1, 2, 3) for n in (1, 2)]
    await store.push(items)
    consumer = Consumer(store, {21}, partitions=3)
    await consumer.run()
    rows = await store.pool.fetch("select partition_name, seq from queen.dead_letter_queue")
    assert [tuple(row) for row in rows] == [("p2", 1)]
    for p in (1, 2, 3):
        firsts = dict.fromkeys(number for number in consumer.handled() if number // 10 == p)
        assert list(firsts) == [10 * p + 1, 10 * p + 2]


async def test_one_failure_of_a_larger_lease_is_the_failure_of_that_message(orders: Store) -> None:
    """A consumer that answers for one message has told it from its neighbours."""
    assert await ack(orders, await claim(orders), 3, "failed")
    won = await claim(orders)
    assert seqs(won) == [1, 2, 3, 4, 5, 6], "nothing made the batch smaller"
    assert await orders.ack([ack_of(won, 1), ack_of(won, 2), ack_of(won, 3, "failed")])
    assert await dead_letters(orders) == [(3, 1, "Retries exhausted")]


async def test_retry_and_dlq_are_as_ever(orders: Store) -> None:
    won = await claim(orders)
    await orders.ack([ack_of(won, seq, "retry") for seq in seqs(won)])
    won = await claim(orders)
    assert seqs(won) == [1, 2, 3, 4, 5, 6]
    answers = await orders.ack([ack_of(won, seq, "dlq") for seq in seqs(won)])
    assert [answer.dlq for answer in answers] == [True] * 6


async def test_without_a_limit_the_parts_become_smaller_too(store: Store) -> None:
    await store.configure(QUEUE, retryLimit=0, retryDelay=0, dlqAfterMaxRetries=False)
    await push(store, *range(1, 7))
    sizes = []
    for _ in range(4):
        won = await claim(store)
        sizes.append(len(seqs(won)))
        await store.ack([ack_of(won, seq, "failed") for seq in seqs(won)])
    assert sizes == [6, 3, 1, 1]


async def test_a_part_given_back_or_expired_does_not_grow(orders: Store) -> None:
    won = await claim(orders)
    await orders.ack([ack_of(won, seq, "failed") for seq in seqs(won)])
    won = await claim(orders)
    assert len(seqs(won)) == 3
    await orders.release(won.lease_id or "")
    assert len(seqs(await claim(orders))) == 3
    await expire_leases(orders.pool)
    assert len(seqs(await claim(orders))) <= 3


async def test_auto_ack_takes_them_all(orders: Store) -> None:
    won = await claim(orders)
    await orders.ack([ack_of(won, seq, "failed") for seq in seqs(won)])
    assert numbers(await orders.pop(QUEUE, batch=6, auto_ack=True)) == [1, 2, 3, 4, 5, 6]


async def test_a_transaction_that_fails_a_batch_follows_the_same_rule(orders: Store) -> None:
    for size in (6, 3, 1):
        won = await claim(orders)
        acks: list[AckItem] = [ack_of(won, seq, "failed") for seq in seqs(won)]
        assert len(acks) == size
        await orders.commit(orders.transaction(acks, [], [won.lease_id or ""]))
    assert [seq for seq, _, _ in await dead_letters(orders)] == [1]


async def test_nothing_comes_with_a_message_that_must_come_alone(store: Store) -> None:
    await store.configure(QUEUE, retryLimit=0, retryDelay=0)
    await push(store, 1, 2, partition="a")
    won = await claim(store)
    await store.ack([ack_of(won, seq, "failed") for seq in seqs(won)])
    await push(store, 1, 2, partition="b")
    assert by_partition(await store.pop(QUEUE, batch=9, partitions=2)) == {"a": [1]}
    assert by_partition(await store.pop(QUEUE, batch=9, partitions=2)) == {"b": [1, 2]}
