"""Long polls of one worker on a real database, as the checklist for them says, and what it leaves out.

| line of the checklist | where |
|---|---|
| single-node mode: notifications still work locally | test_broker: test_a_push_on_this_worker_wakes_at_once |
| backoff increases after consecutive empty results | TestBackoff, test_waiters_timing: TestBackoff |
| backoff resets on push notification | TestBackoff, test_waiters_timing: test_news_and_what_is_found_… |
| group locking prevents duplicate queries | TestGroupLocking |
| timeout fires correctly (empty response at deadline) | TestTimeout, test_broker: test_its_time_being_up_… |
| early return when messages found | TestEarlyReturn |
| consumer group isolation | test_broker: test_groups_wait_for_themselves, test_waiters: …_is_told_to_its_group |
| partition-specific long-polling | test_broker: test_a_wait_for_one_partition_is_not_ended_by_another |
| mixed wait=true and wait=false | TestMixed |
| high concurrency | TestHighConcurrency |

`SELDOM` looks by itself once a minute: what happens earlier has another reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from queenmq.engine import pops
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.waiters import Key, Line
from queenmq.storage.pop import QUEUE_MODE, PopResult
from tests.engine.saying import QUEUE, acks_of, ask, parked, push, read, until

KEY = Key(QUEUE_MODE, QUEUE)
SELDOM = {"poll_first": 60.0, "poll_max": 60.0}
BY_SQL = "insert into queen.messages (queue, partition, payload) values ($1, $2, $3)"
HELD_BACK: dict[str, dict[str, Any]] = {
    "delayed": {"delayedProcessing": 1},
    "window": {"windowBuffer": 1},
    "retry": {"retryDelay": 700},
    "lease": {"leaseTime": 1},
}
LEASED = "select count(*) from queen.partition_consumers where lease_expires_at > clock_timestamp()"
BROKEN = """
    create function queen.broken() returns trigger language plpgsql as $$ begin
        raise exception 'broken' using errcode = 'XX123';
    end $$;
    create trigger broken before update on queen.partition_consumers for each row execute function queen.broken();
"""
STUCK = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@asynccontextmanager
async def serving(database: str, **more: Any) -> AsyncIterator[Broker]:
    opened = await Broker.open(EngineConfig(**{"dsn": database, "connections": 4, "admin_connections": 3, **more}))
    try:
        yield opened
    finally:
        await opened.drain()
        await opened.close()


@pytest.fixture
async def seldom(database: str) -> AsyncIterator[Broker]:
    async with serving(database, **SELDOM) as opened:
        yield opened


@asynccontextmanager
async def stuck(broker: Broker) -> AsyncIterator[Callable[[], Any]]:
    """A database in which no pop comes to an end. Yields how many have come so far as to wait."""
    async with broker.store.pool.acquire() as other, other.transaction():
        await other.execute("lock table queen.partition_consumers")
        yield lambda: broker.store.pool.fetchval(STUCK)


def line(broker: Broker) -> Line[Any]:
    return broker.pops.waiters._lines[KEY]


def looks(broker: Broker) -> int:
    return int(broker.stats()["operations"]["pop"]["requests"])


async def further_looks(broker: Broker, count: int) -> None:
    enough = looks(broker) + count
    await until(lambda: looks(broker) >= enough)


async def wait_for(broker: Broker, count: int, **more: object) -> list[asyncio.Future[PopResult]]:
    """Pops that are parked, in this order."""
    before = parked(broker)
    futures = [broker.pop(ask(**{"wait": 30.0, "batch": 1, **more})) for _ in range(count)]  # type: ignore[arg-type]
    await until(lambda: parked(broker) == before + count)
    return futures


async def empty(broker: Broker, *queues: str) -> None:
    """Queues that exist, with nothing in them and a group that is known."""
    for queue in queues or (QUEUE,):
        await push(broker, 0, queue=queue)
        assert read(await broker.pop(ask(queue=queue, auto_ack=True))) == [0]


class TestBackoff:
    async def test_it_increases_after_consecutive_empty_results(self, database: str) -> None:
        async with serving(database, poll_first=0.001, poll_max=0.008) as broker:
            await empty(broker)
            intervals: list[float] = []
            park = broker.pops.waiters.park

            def noting(*found: Any) -> None:
                park(*found)
                intervals.append(line(broker).interval)

            broker.pops.waiters.park = noting  # type: ignore[method-assign, assignment]
            await wait_for(broker, 1)
            await until(lambda: len(intervals) >= 7)
            assert intervals[:7] == [0.001, 0.001, 0.002, 0.004, 0.008, 0.008, 0.008]
            assert broker.pops.waiters.stats()["groups_backed_off"] == 1

    async def test_it_resets_on_a_push(self, database: str) -> None:
        """Once backed off, they look once a minute. A push announces one message, and says that something goes on."""
        async with serving(database, poll_first=0.01, poll_multiplier=1e9, poll_max=60.0) as broker:
            await empty(broker)
            waiting = await wait_for(broker, 2)
            await until(lambda: line(broker).interval == 60.0 and parked(broker) == 2)
            await broker.store.pool.execute(BY_SQL, QUEUE, "unannounced", "1")
            await push(broker, 2, partition="announced")
            assert sorted([*read(await waiting[0]), *read(await waiting[1])], key=str) == [1, 2]

    async def test_lines_that_have_backed_off_look_together_in_one_statement(self, database: str) -> None:
        queues = [f"q{number}" for number in range(30)]
        async with serving(database, poll_first=0.01, poll_threshold=1, poll_max=0.1) as broker:
            await empty(broker, *queues)
            for queue in queues:
                await wait_for(broker, 2, queue=queue)
            lines = list(broker.pops.waiters._lines.values())
            await until(lambda: all(each.interval == 0.1 for each in lines))
            statements = counted(broker)
            async with asyncio.timeout(20):  # at first they may still be finding to each other
                while not statements or len(statements) > 5:
                    statements.clear()
                    await further_looks(broker, 3 * len(queues))


def counted(broker: Broker) -> list[str]:
    """What is asked on the connections for pops from now on."""
    statements: list[str] = []
    links = broker._pop_links
    connect = links._connect

    def note(record: Any) -> None:
        statements.append(record.query)

    async def connected() -> asyncpg.Connection:
        link = await connect()
        link.add_query_logger(note)
        return link

    links._connect = connected
    for link in links._idle:
        link.add_query_logger(note)
    return statements


async def all_noted() -> None:
    """A statement is noted one turn of the loop after its end."""
    await asyncio.sleep(0)


class TestGroupLocking:
    async def test_while_one_looks_for_all_nobody_else_asks(self, database: str) -> None:
        async with serving(database, poll_first=0.005, poll_max=0.005) as broker:
            await empty(broker)
            waiting = await wait_for(broker, 50)
            async with stuck(broker) as waiting_backends:
                await until(lambda: parked(broker) == 49)
                for _ in range(5):
                    line(broker).due = 0.0
                    broker.pops.waiters._schedule(KEY, line(broker), 0.001)
                    await until(lambda: not line(broker).due)
                assert await waiting_backends() == 1
                assert (parked(broker), line(broker).looking) == (49, 1)
            for future in waiting:
                future.cancel()


class TestTimeout:
    def test_the_moment_that_counts_longer_is_short(self) -> None:
        assert pops._OVERTIME <= 0.03

    async def test_an_empty_answer_comes_at_the_deadline_not_before(self, seldom: Broker) -> None:
        loop = asyncio.get_running_loop()
        await empty(seldom)
        deadline = loop.time() + 0.05
        assert read(await seldom.pop(ask(wait=0.05))) == []
        assert loop.time() >= deadline

    @pytest.mark.parametrize("auto_ack", [False, True])
    async def test_on_its_way_in_a_slow_database_it_is_answered_and_gives_back_what_it_wins_later(
        self, seldom: Broker, auto_ack: bool
    ) -> None:
        await push(seldom, 1)
        async with stuck(seldom) as waiting_backends:
            assert read(await seldom.pop(ask(wait=0.05, auto_ack=auto_ack))) == []
            assert await waiting_backends() == 1, "it is still on its way"
        await until(lambda: seldom.stats()["leases"]["given_back"] == 1)
        await seldom.pops.idle()
        assert await seldom.store.pool.fetchval(LEASED) == 0
        assert read(await seldom.pop(ask())) == [1]

    async def test_what_acknowledges_itself_does_not_begin_after_the_deadline(self, database: str) -> None:
        async with serving(database, connections=2) as broker:  # one statement at a time
            await empty(broker, "other")
            await push(broker, 1)
            async with stuck(broker) as waiting_backends:
                first = broker.pop(ask(wait=30.0, queue="other"))
                await until(lambda: broker.stats()["pop_states"]["leasing"]["entered"] == 2)
                assert read(await broker.pop(ask(wait=0.05, auto_ack=True))) == []
                assert await waiting_backends() == 1
            first.cancel()
            assert read(await broker.pop(ask())) == [1], "nobody has acknowledged it"


class TestEarlyReturn:
    async def test_what_is_there_is_not_waited_for(self, seldom: Broker) -> None:
        await push(seldom, 1)
        async with asyncio.timeout(20):
            assert read(await seldom.pop(ask(wait=30.0))) == [1]
        assert seldom.stats()["pop_states"]["empty"]["entered"] == 0

    async def test_a_batch_is_not_waited_for_until_it_is_full(self, seldom: Broker) -> None:
        (waiting,) = await wait_for(seldom, 1, batch=100)
        await push(seldom, 1, 2)
        async with asyncio.timeout(20):
            assert read(await waiting) == [1, 2]


class TestMixed:
    async def test_who_does_not_wait_neither_stands_in_line_nor_disturbs_it(self, seldom: Broker) -> None:
        first, second = await wait_for(seldom, 2)
        before = seldom.pops.waiters.stats()
        assert read(await seldom.pop(ask())) == []
        assert seldom.pops.waiters.stats() == before
        await push(seldom, 1, partition="p")
        assert read(await first) == [1]
        assert read(await seldom.pop(ask())) == []
        await push(seldom, 2, partition="q")
        assert read(await second) == [2]

    async def test_both_take_from_what_is_there(self, seldom: Broker) -> None:
        for number in range(4):
            await push(seldom, number, partition=f"p{number}")
        results = await asyncio.gather(*[seldom.pop(ask(wait=wait, batch=1)) for wait in (0.0, 30.0, 0.0, 30.0)])
        assert sorted(str(payload) for result in results for payload in read(result)) == ["0", "1", "2", "3"]


class TestHighConcurrency:
    async def test_one_message_for_a_thousand_waiters_is_one_delivery_and_one_statement(self, seldom: Broker) -> None:
        await empty(seldom)
        statements = counted(seldom)
        waiting = await wait_for(seldom, 1000)
        await all_noted()
        assert len(statements) <= 5, "who comes at one moment looks together"
        statements.clear()
        await push(seldom, 1)
        done, _ = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        await seldom.pops.batcher.idle()
        await all_noted()
        assert [read(future.result()) for future in done] == [[1]]
        assert done == {waiting[0]}
        assert len(statements) == 1
        assert (parked(seldom), await seldom.store.pool.fetchval(LEASED)) == (999, 1)

    async def test_an_error_for_one_is_not_sought_by_all(self, seldom: Broker) -> None:
        await empty(seldom)
        waiting = await wait_for(seldom, 20)
        await seldom.store.pool.execute(BY_SQL, QUEUE, "p", "1")
        await seldom.store.pool.execute(BROKEN)
        seldom.pops.waiters.pushed(QUEUE, "p")
        with pytest.raises(asyncpg.PostgresError, match="broken"):
            await waiting[0]
        await seldom.pops.batcher.idle()
        assert parked(seldom) == 19


class TestTimers:
    """Woken by the end of what holds a message back, with nobody looking in between."""

    async def test_each_end_wakes_its_waiter(self, seldom: Broker) -> None:
        for queue, options in HELD_BACK.items():
            await seldom.store.configure(queue, **options)
            await push(seldom, queue, queue=queue)
        failed = await seldom.pop(ask(queue="retry"))
        await seldom.ack(acks_of(failed, "failed"))
        assert read(await seldom.pop(ask(queue="lease"))) == ["lease"]
        before = looks(seldom)
        waiting = [(await wait_for(seldom, 2, queue=queue))[0] for queue in HELD_BACK]
        async with asyncio.timeout(10):
            assert [read(await future) for future in waiting] == [[queue] for queue in HELD_BACK]
        assert looks(seldom) - before <= 6 * len(HELD_BACK)

    async def test_the_next_end_is_kept_to_after_the_first(self, seldom: Broker) -> None:
        await seldom.store.configure(QUEUE, delayedProcessing=1)
        first, second = await wait_for(seldom, 2)
        await push(seldom, 1, partition="p")
        await push(seldom, 2, partition="q")
        async with asyncio.timeout(10):
            assert [read(await first), read(await second)] == [[1], [2]]


class TestFairness:
    async def test_the_longest_waiter_is_first_also_after_a_look_in_vain(self, seldom: Broker) -> None:
        await empty(seldom)
        waiting = await wait_for(seldom, 3)
        before = looks(seldom)
        seldom.pops.waiters.pushed(QUEUE, "p")
        await until(lambda: looks(seldom) == before + 1 and parked(seldom) == 3)
        for number, future in enumerate(waiting):
            await push(seldom, number, partition=f"p{number}")
            assert read(await future) == [number]

    async def test_who_comes_later_does_not_take_what_the_longest_waiter_has_not_seen(self, seldom: Broker) -> None:
        await empty(seldom)
        (first,) = await wait_for(seldom, 1)
        await nobody_looks(seldom)
        await seldom.store.pool.execute(BY_SQL, QUEUE, "p", "1")
        second = seldom.pop(ask(wait=30.0))
        assert read(await first) == [1]
        assert not second.done()
        second.cancel()


async def nobody_looks(broker: Broker) -> None:
    """Nobody has looked for a while: who comes now would look himself."""
    await until(lambda: asyncio.get_running_loop().time() - line(broker).empty_at > 0.03)


class TestLeaving:
    async def test_who_has_left_takes_no_message(self, seldom: Broker) -> None:
        await empty(seldom)
        waiting = await wait_for(seldom, 40)
        for future in waiting[::2]:
            future.cancel()
        await asyncio.gather(*[push(seldom, number, partition=f"p{number}") for number in range(40)])
        async with asyncio.timeout(20):
            got = await asyncio.gather(*waiting[1::2])
        await seldom.pops.idle()
        assert len({read(result)[0] for result in got}) == 20
        assert await seldom.store.pool.fetchval(LEASED) == 20

    async def test_who_leaves_when_it_is_woken_leaves_the_message_to_the_next(self, seldom: Broker) -> None:
        await empty(seldom)
        first, second = await wait_for(seldom, 2)
        await seldom.store.pool.execute(BY_SQL, QUEUE, "p", "1")
        seldom.pops.waiters.pushed(QUEUE, "p")
        first.cancel()
        async with asyncio.timeout(20):
            assert read(await second) == [1]
        assert await seldom.store.pool.fetchval(LEASED) == 1
        assert seldom.stats()["leases"]["given_back"] == 0, "it asked for nothing"
