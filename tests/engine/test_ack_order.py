"""Acks of one cursor take effect in the order in which they arrived, whatever shares their request or their flush.

A completed ack settles everything before it. One that overtook the failure of an earlier message would lose that
message: it would neither come again nor be a dead letter, although both acks were answered with success.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import asyncpg
import pytest

from queenmq.engine.acks import Stretch
from queenmq.engine.broker import Broker
from queenmq.engine.persistence import Unfinished
from queenmq.storage.ack import AckResult
from queenmq.storage.pool import connect
from queenmq.storage.pop import PopResult
from queenmq.wire.requests import AckEntry
from tests.engine.relay import Relay
from tests.engine.saying import QUEUE, acks_of, ask, push, read, successes
from tests.storage.engine_store import results_of
from tests.storage.waiting import is_waiting

HELD = "Not acknowledged: an earlier message of this partition is to be delivered again"
PASSED = "Not applied: this message or a later one of its partition is acknowledged already"
DEAD = "select convert_from(data, 'UTF8') from queen.dead_letter_queue"
Request = list[AckEntry]


async def leased(broker: Broker, *partitions: str) -> list[Request]:
    """The acks of two messages in each partition, all under one lease."""
    for number, name in enumerate(partitions, 1):
        await push(broker, 10 * number + 1, 10 * number + 2, partition=name)
    won = await broker.pop(ask(partitions=len(partitions)))
    claims = {claim.partition: acks_of(PopResult([claim], None)) for claim in won.claims}
    return [claims[name] for name in partitions]


def said(entry: AckEntry, status: str) -> AckEntry:
    return AckEntry(entry.transaction_id, entry.partition_id, status, entry.lease_id)


def errors(stretches: list[Stretch]) -> list[str | None]:
    return [result.error for result in results_of(stretches)]


async def dead(broker: Broker) -> list[int]:
    return sorted(int(row[0]) for row in await broker.store.pool.fetch(DEAD))


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_what_is_to_come_again_is_not_overtaken_in_its_own_request(broker: Broker, status: str) -> None:
    await broker.store.configure(QUEUE, retryDelay=0)
    (m1, m2), (n1, _) = await leased(broker, "a", "b")
    answer = await broker.ack([said(m1, status), said(n1, "completed"), said(m2, "completed")])
    assert errors(answer) == [None, None, HELD]
    assert read(await broker.pop(ask(partition="a"))) == [11, 12]


async def test_a_dead_letter_is_not_overtaken_in_its_own_request(broker: Broker) -> None:
    (m1, m2), (n1, _) = await leased(broker, "a", "b")
    answer = await broker.ack([said(m1, "dlq"), said(n1, "completed"), said(m2, "completed")])
    assert successes(answer) == [True, True, True]
    assert await dead(broker) == [11]


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
async def test_one_request_is_settled_in_the_order_of_its_messages(broker: Broker, status: str) -> None:
    await broker.store.configure(QUEUE, retryDelay=0)
    (m1, m2), (n1, _) = await leased(broker, "a", "b")
    answer = await broker.ack([said(m2, "completed"), said(n1, "completed"), said(m1, status)])
    assert errors(answer) == [None if status == "dlq" else HELD, None, None]
    assert await dead(broker) == ([11] if status == "dlq" else [])


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_requests_that_share_a_flush_do_not_overtake_each_other(broker: Broker, status: str) -> None:
    await broker.store.configure(QUEUE, retryDelay=0)
    (m1, m2), (n1, _) = await leased(broker, "a", "b")
    answers = await asyncio.gather(
        *[broker.ack([said(n1, "completed")]), broker.ack([said(m1, status)]), broker.ack([said(m2, "completed")])]
    )
    assert broker.stats()["operations"]["ack"]["flushes"] == 1
    assert [successes(answer) for answer in answers] == [[True], [True], [False]]
    assert read(await broker.pop(ask(partition="a"))) == [11, 12]


async def test_the_order_of_the_messages_does_not_reorder_requests(broker: Broker) -> None:
    """The later message was given up first; what comes then about the earlier one comes too late."""
    ((m1, m2),) = await leased(broker, "a")
    answers = await asyncio.gather(broker.ack([said(m2, "dlq")]), broker.ack([said(m1, "failed")]))
    assert broker.stats()["operations"]["ack"]["flushes"] == 1
    assert [errors(answer) for answer in answers] == [[None], [PASSED]]
    assert await dead(broker) == [12]


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
@pytest.mark.parametrize("together", [True, False])
async def test_a_verdict_that_comes_too_late_is_not_answered_with_success(
    broker: Broker, status: str, together: bool
) -> None:
    """The message was settled by the ack of a later one: it neither comes again nor becomes a dead letter."""
    ((m1, m2),) = await leased(broker, "a")
    first = broker.ack([said(m2, "completed")])
    if not together:
        await first
    late = await broker.ack([said(m1, status)])
    assert successes(await first) == [True]
    assert errors(late) == [PASSED]
    assert await dead(broker) == []


async def test_a_later_lease_on_the_cursor_does_not_overtake_an_earlier_one(broker: Broker) -> None:
    """Two leases of one partition in one flush: only one is current, and it waits for its turn."""
    ((m1, m2),) = await leased(broker, "a")
    stale = AckEntry(m1.transaction_id, m1.partition_id, "completed", "00000000-0000-4000-8000-000000000000")
    answers = await asyncio.gather(
        *[
            broker.ack([stale]),
            broker.ack([said(m1, "retry")]),
            broker.ack([stale]),
            broker.ack([said(m2, "completed")]),
        ]
    )
    assert [successes(answer) for answer in answers] == [[False], [True], [False], [False]]


@pytest.fixture
async def other(broker: Broker, database: str) -> asyncpg.Connection:
    return await connect(database)


async def test_flushes_side_by_side_do_not_overtake_each_other(broker: Broker, other: asyncpg.Connection) -> None:
    """The first flush waits for a row of another partition, and holds none of this one."""
    await broker.store.configure(QUEUE, retryDelay=0)
    (n1, _), (m1, m2), *more = await leased(broker, "b", "a", *[f"c{number}" for number in range(10)])
    async with other.transaction():
        await other.execute(
            "select from queen.partition_lookup l join queen.partitions p using (partition_id)"
            " where p.name = 'b' for update of l"
        )
        first = broker.ack([said(m1, "failed"), said(n1, "retry")])
        assert await is_waiting(broker.store, first)
        second = broker.ack([said(m2, "completed")])
        beside = [broker.ack(each) for each in more]
        await asyncio.wait(beside, return_when=asyncio.FIRST_COMPLETED)
        assert not second.done(), "it did not wait for the flush before it"
    await other.close()
    assert successes(await first) == [True, True]
    assert successes(await second) == [False]
    assert all([all(successes(await each)) for each in beside])
    assert read(await broker.pop(ask(partition="a"))) == [21, 22]


async def test_a_refused_plain_ack_is_settled_before_those_behind_it(broker: Broker) -> None:
    """The first is a repetition, which the plain statement refuses; the second must not pass it on another road."""
    await broker.store.configure(QUEUE, retryDelay=0)
    await push(broker, 1, 2, 3)
    m1, m2, m3 = acks_of(await broker.pop(ask()))
    assert successes(await broker.ack([m1])) == [True]
    answers = await asyncio.gather(
        *[broker.ack([m1]), broker.ack([said(m2, "retry")]), broker.ack([m3]), broker.ack([m1])]
    )
    assert [successes(answer) for answer in answers] == [[True], [True], [False], [True]]
    assert read(await broker.pop(ask())) == [2, 3]


class History:
    """What was delivered and answered for, round by round."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.delivered: dict[object, int] = {}  # the last round of each message
        self.accepted: list[tuple[int, object, str]] = []

    def requests(self, won: PopResult, payloads: Sequence[object]) -> list[list[tuple[object, AckEntry]]]:
        """Random verdicts on a random part, in random order, cut into requests anywhere."""
        named = list(zip(payloads, acks_of(won), strict=True))
        chosen = [each for each in named if self.choice.random() < 0.9]
        self.choice.shuffle(chosen)
        for _, entry in chosen:
            entry.status = self.choice.choice(["completed", "completed", "completed", "failed", "retry", "dlq"])
        requests: list[list[tuple[object, AckEntry]]] = [[] for _ in range(self.choice.randint(1, 4))]
        for each in chosen:
            self.choice.choice(requests).append(each)
        return [request for request in requests if request]

    def note(self, round_: int, request: list[tuple[object, AckEntry]], results: list[AckResult]) -> None:
        for (payload, entry), result in zip(request, results, strict=True):
            if result.success:
                self.accepted.append((round_, payload, entry.status or ""))

    def check(self, dead: list[int]) -> None:
        """Nothing is swallowed, and nothing that is done comes back."""
        for round_, payload, status in self.accepted:
            came_again = self.delivered[payload] > round_
            if status == "completed":
                assert not came_again, (payload, round_)
            elif status == "dlq":
                assert payload in dead, (payload, round_)
            else:
                assert came_again or payload in dead, (status, payload, round_)


@pytest.mark.parametrize("seed", range(8))
async def test_no_verdict_is_swallowed_whatever_is_mixed_and_whatever_reply_is_lost(
    relay: Relay, relayed: Broker, seed: int
) -> None:
    history = History(seed)
    await relayed.store.configure(QUEUE, retryLimit=1, retryDelay=0)
    for number in range(3):
        await push(relayed, *[10 * number + each for each in range(1, 7)], partition=f"p{number}")
    for round_ in range(200):
        won = await relayed.pop(ask(partitions=3))
        if not won.claims:
            break
        payloads = read(won)
        history.delivered |= dict.fromkeys(payloads, round_)
        requests = history.requests(won, payloads)
        relay.lose_replies(history.choice.choice([0, 1, 1, 2]), history.choice.randint(0, 2))
        futures = [relayed.ack([entry for _, entry in request]) for request in requests]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        relay.lose_replies(0)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, Unfinished), answer
            else:
                history.note(round_, request, results_of(answer))
        for lease in {claim.lease_id for claim in won.claims}:
            await relayed.store.release(lease or "")
    history.check(await dead(relayed))
    assert len(history.delivered) == 18
