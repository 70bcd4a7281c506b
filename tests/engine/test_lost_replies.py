"""PostgreSQL commits and its answer is lost: every operation is repeated, and is done once."""

from __future__ import annotations

import asyncio
import random

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.persistence import Unfinished
from queenmq.engine.requests import TransactionAsk
from queenmq.storage import session
from queenmq.storage.errors import DatabaseUnavailable
from queenmq.storage.pool import connect
from tests.engine.relay import Relay
from tests.engine.saying import QUEUE, acks_of, ask, entry, push, read, successes

HELD = "select count(*) from queen.partition_consumers where lease_id is not null"
CURSOR = (
    "select acked_seq, retries, lease_id from queen.partition_consumers"
    " where partition_id = (select partition_id from queen.partitions where name = 'p')"
)
STORED = "select payload::text::int from queen.messages where queue = $1 order by partition, seq"


FAIL_ONCE = """
    create sequence failures;
    create function fail_once() returns trigger language plpgsql as $$
    begin
        if new.group_id = (select group_id from queen.consumer_groups_metadata where name = 'second')
            and new.lease_id is not null and nextval('failures') = 1 then
            raise exception 'once' using errcode = 'serialization_failure';
        end if;
        return new;
    end $$;
    create trigger fail_once before update on queen.partition_consumers for each row execute function fail_once();
"""


MOVE_ON = """
    create sequence failures;
    create function move_on() returns trigger language plpgsql as $$
    begin
        if new.retries is not null and nextval('failures') = 1 then
            raise exception 'once' using errcode = 'serialization_failure';
        end if;
        if new.retries is null and new.lease_id is null and old.lease_id is not null then
            new.last_lease_id := gen_random_uuid();
        end if;
        return new;
    end $$;
    create trigger move_on before update on queen.partition_consumers for each row execute function move_on();
"""
"""The failure of a message fails once, and whoever ends a lease is at once followed by another that ends too."""


async def eventually_held(broker: Broker, count: int) -> None:
    async with asyncio.timeout(20):
        while await broker.store.pool.fetchval(HELD) != count:  # noqa: ASYNC110  nobody signals it
            await asyncio.sleep(0.01)


async def stored(broker: Broker, queue: str = QUEUE) -> list[int]:
    return [row[0] for row in await broker.store.pool.fetch(STORED, queue)]


@pytest.mark.parametrize("tx", ["mine", None])
async def test_a_push_is_stored_once_and_answered_queued(relay: Relay, relayed: Broker, tx: str | None) -> None:
    await push(relayed, 0)
    for number in range(1, 30):
        relay.lose_replies(random.choice([1, 1, 2]))
        receipt = await relayed.push([entry(number, tx=tx and f"{tx}-{number}")])
        (verdict,) = receipt.verdicts()
        assert (verdict.status, verdict.seq) == ("queued", number + 1)
    assert relay.lost >= 29
    assert await stored(relayed) == list(range(30))


async def test_pushes_that_shared_the_lost_flush_are_each_stored_once(relay: Relay, relayed: Broker) -> None:
    await push(relayed, 0, partition="p0")
    for round_ in range(8):
        relay.lose_replies(1)
        receipts = await asyncio.gather(
            *[
                relayed.push([entry(round_ * 10 + n, f"p{n % 3}"), entry(1000, f"p{n % 3}", f"{round_}-{n}")])
                for n in range(10)
            ]
        )
        assert {verdict.status for receipt in receipts for verdict in receipt.verdicts()} == {"queued"}
    found = await stored(relayed)
    assert sorted(found) == sorted([0, *range(80), *[1000] * 80])
    assert relay.lost == 8


async def test_a_duplicate_of_somebody_elses_message_stays_one(relay: Relay, relayed: Broker) -> None:
    first = (await relayed.push([entry(1, tx="t")])).verdicts()[0]
    relay.lose_replies(1)
    again, fresh = (await relayed.push([entry(2, tx="t"), entry(3, tx="u")])).verdicts()
    assert (again.status, again.message_id, fresh.status) == ("duplicate", first.message_id, "queued")
    assert await stored(relayed) == [1, 3]


@pytest.mark.parametrize("tx", ["mine", None])
async def test_a_push_that_has_filled_its_queue_is_not_refused(relay: Relay, relayed: Broker, tx: str | None) -> None:
    """It is there, and will be delivered: whoever hears that it is not would send it again."""
    await relayed.store.configure(QUEUE, maxSize=2)
    await push(relayed, 0)
    relay.lose_replies(1)
    (verdict,) = (await relayed.push([entry(1, tx=tx)])).verdicts()
    assert (relay.lost, verdict.status, verdict.seq) == (1, "queued", 2)
    assert (await relayed.push([entry(2)])).verdicts()[0].status == "queue_full"
    assert await stored(relayed) == [0, 1]


async def test_a_transaction_that_has_filled_a_queue_happened(relay: Relay, relayed: Broker) -> None:
    await relayed.store.configure(QUEUE, maxSize=2)
    await relayed.transaction(TransactionAsk([[entry(0)]]))
    relay.lose_replies(1)
    committed = await relayed.transaction(TransactionAsk([[entry(1)]]))
    assert (relay.lost, [verdict.status for verdict in committed.pushes]) == (1, ["queued"])
    assert await stored(relayed) == [0, 1]


async def test_a_pop_whose_reply_is_lost_holds_nothing_but_what_it_delivers(relay: Relay, relayed: Broker) -> None:
    for number in range(6):
        await push(relayed, number, partition=f"p{number}")
    got = []
    for _ in range(6):
        relay.lose_replies(1)
        won = await relayed.pop(ask())
        assert successes(await relayed.ack(acks_of(won))) == [True]
        got += read(won)
    assert sorted(map(str, got)) == [str(number) for number in range(6)]
    assert await relayed.store.pool.fetchval(HELD) == 0


async def test_a_pop_given_up_leaves_no_lease_behind(relay: Relay) -> None:
    """PostgreSQL has won it, and then is away for longer than we try: it is given back as soon as that is possible."""
    broker = await Broker.open(EngineConfig(dsn=relay.dsn, connections=2, admin_connections=1, retry_timeout=0.1))
    try:
        await push(broker, 1)
        assert successes(await broker.ack(acks_of(await broker.pop(ask())))) == [True]
        await push(broker, 2)
        relay.lose_replies(1)
        relay.refuse()
        with pytest.raises(DatabaseUnavailable):
            await broker.pop(ask())
        relay.up()
        assert relay.lost == 1
        await eventually_held(broker, 0)
        assert read(await broker.pop(ask())) == [2]
    finally:
        await broker.close()


async def test_a_pop_that_postgres_carries_out_late_holds_nothing(relay: Relay, relayed: Broker) -> None:
    """It was repeated meanwhile, and the client has the answer of that."""
    await push(relayed, 1, partition="p1")
    assert successes(await relayed.ack(acks_of(await relayed.pop(ask())))) == [True]
    await push(relayed, 2, partition="p1")
    await push(relayed, 3, partition="p2")
    relay.hold_statement()
    assert read(await relayed.pop(ask())) == [2]
    await relay.pass_on()
    await eventually_held(relayed, 1)
    assert read(await relayed.pop(ask())) == [3]


async def test_a_pop_that_is_repeated_after_a_part_of_it_was_done_holds_nothing_else(relayed: Broker) -> None:
    """The pops of two groups share a flush, each with its own statement, and the second statement fails once."""
    await push(relayed, 1, partition="p1")
    await push(relayed, 2, partition="p2")
    for group in ("first", "second"):  # both are known: the next pops have nothing to do but to pop
        assert read(await relayed.pop(ask(group=group, subscription_mode="new"))) == []
    await push(relayed, 3, partition="p1")
    await push(relayed, 4, partition="p2")
    await relayed.store.pool.execute(FAIL_ONCE)
    won = await asyncio.gather(*[relayed.pop(ask(group=group)) for group in ("first", "second")])
    assert [len(read(one)) for one in won] == [1, 1]
    assert relayed.stats()["operations"]["pop"]["retries"] == 1
    assert await relayed.store.pool.fetchval(HELD) == 2


async def test_a_connection_that_says_nothing_any_more_is_not_asked_again(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SILENCE", 0.1)
    broker = await Broker.open(EngineConfig(dsn=relay.dsn, connections=2, statement_timeout_ms=200))
    try:
        await push(broker, 1)
        relay.fall_silent()
        assert [verdict.status for verdict in await push(broker, 2)] == ["queued"]
        assert broker.stats()["operations"]["push"]["retries"] == 1
        assert await stored(broker) == [1, 2]
    finally:
        await broker.close()


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
async def test_an_ack_counts_once(relay: Relay, relayed: Broker, status: str) -> None:
    await relayed.store.configure(QUEUE, retryDelay=0)
    await push(relayed, 1, 2)
    won = await relayed.pop(ask())
    relay.lose_replies(1)
    assert successes(await relayed.ack(acks_of(won, status))) == [True, True]
    assert relay.lost == 1
    row = await relayed.store.pool.fetchrow(CURSOR)
    retries = {"failed": '{"1": 1, "2": 1}', "retry": '{"1": 0, "2": 0}'}.get(status)
    assert row is not None
    assert tuple(row) == (2 if retries is None else 0, retries, None)
    letters = await relayed.store.pool.fetchval("select count(*) from queen.dead_letter_queue")
    assert letters == (2 if status == "dlq" else 0)


@pytest.mark.parametrize("after", [0, 1])
async def test_a_transaction_happens_once(relay: Relay, relayed: Broker, after: int) -> None:
    """It first looks for its messages; that answer is lost, or the one to the transaction itself."""
    await push(relayed, 1)
    won = await relayed.pop(ask())
    (done,) = acks_of(won)
    await relayed.transaction(TransactionAsk([[entry(0, queue="out")]]))
    relay.lose_replies(1, after)
    committed = await relayed.transaction(
        TransactionAsk([[entry(1, queue="out")], done, [entry(2, queue="out")]], [done.lease_id or ""])
    )
    assert [verdict.status for verdict in committed.pushes] == ["queued", "queued"]
    assert [result.success for result in committed.acks] == [True]
    assert relay.lost == 1
    assert await stored(relayed, "out") == [0, 1, 2]
    assert read(await relayed.pop(ask())) == []


async def test_a_renewal_is_repeated(relay: Relay, relayed: Broker) -> None:
    await push(relayed, 1)
    won = await relayed.pop(ask())
    relay.lose_replies(1)
    assert (await relayed.renew(won.claims[0].lease_id or "", 500)).renewed == 1


async def test_every_connection_cut_at_any_moment_under_load(relay: Relay, relayed: Broker, database: str) -> None:
    """Producers and a consumer go on while connections break: nothing is lost, doubled or out of order."""
    done = asyncio.Event()

    async def produce(name: str) -> None:
        for number in range(60):
            await relayed.push([entry(number, name)])

    async def cut() -> None:
        while not done.is_set():
            await asyncio.sleep(random.uniform(0.05, 0.2))
            await relay.cut()

    cutter = asyncio.ensure_future(cut())
    got: dict[str, list[object]] = {"a": [], "b": [], "c": []}

    async def consume() -> None:
        while sum(map(len, got.values())) < 180:
            won = await relayed.pop(ask(wait=1.0, partitions=3))
            stretches = await relayed.ack(acks_of(won))
            assert all(successes(stretches))
            for claim in won.claims:
                got[claim.partition] += [int(message.payload) for message in claim.messages()]

    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*[produce(name) for name in got], consume())
    finally:
        done.set()
        await cutter
    assert got == {name: list(range(60)) for name in got}
    direct = await connect(database)
    assert await direct.fetchval("select count(*) from queen.messages") == 180
    await direct.close()


async def test_postgres_away_longer_than_we_try_is_told_and_afterwards_everything_goes_on(relay: Relay) -> None:
    broker = await Broker.open(EngineConfig(dsn=relay.dsn, connections=2, admin_connections=1, retry_timeout=0.1))
    try:
        await push(broker, 1)
        await relay.down()
        for future in (broker.push([entry(2)]), broker.pop(ask())):
            with pytest.raises(DatabaseUnavailable):
                await future
        assert not broker.stats()["connections"]["healthy"]
        relay.up()
        await push(broker, 3)
        assert read(await broker.pop(ask())) == [1, 3]
        assert broker.stats()["connections"]["healthy"]
    finally:
        await broker.close()


async def test_a_short_absence_costs_time_only(relay: Relay, relayed: Broker) -> None:
    await push(relayed, 1)
    await relay.down()
    waiting = relayed.push([entry(2)])
    asyncio.get_running_loop().call_later(0.1, relay.up)
    assert (await waiting).verdicts()[0].status == "queued"
    assert relayed.stats()["operations"]["push"]["retries"] > 0


async def test_an_ack_that_is_repeated_for_the_sake_of_its_neighbours_is_not_refused(relayed: Broker) -> None:
    """It ended its lease, and while the others of its flush were tried again, another lease has come and gone."""
    await push(relayed, 1, 2, partition="p1")
    await push(relayed, 1, 2, partition="p2")
    one, two = [await relayed.pop(ask(batch=1, partition=name)) for name in ("p1", "p2")]
    await relayed.store.pool.execute(MOVE_ON)
    answers = await asyncio.gather(relayed.ack(acks_of(one)), relayed.ack(acks_of(two, "failed")))
    assert relayed.stats()["operations"]["ack"]["retries"] == 1
    assert [successes(stretches) for stretches in answers] == [[True], [True]]


async def test_an_ack_of_which_nobody_can_say_whether_it_counted_is_not_called_refused(
    relay: Relay, relayed: Broker
) -> None:
    """Who hears that it was refused undoes his work, and it does not come again."""
    await push(relayed, 1)
    won = await relayed.pop(ask())
    await relayed.store.pool.execute(MOVE_ON)
    relay.lose_replies(1)
    with pytest.raises(Unfinished):
        await relayed.ack(acks_of(won))
    assert relay.lost == 1
    assert successes(await relayed.ack(acks_of(won))) == [False]
