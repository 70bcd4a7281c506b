"""The engine as its callers see it: waiting, waking, leaving, isolation, limits, stopping."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from queenmq.domain.cipher import Cipher
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.errors import Overloaded, Stopping
from queenmq.storage.errors import DatabaseUnavailable
from queenmq.storage.pop import PopResult
from tests.engine.saying import QUEUE, acks_of, ask, entry, parked, push, read, successes, until

POISON = """
    create function queen.poison() returns trigger language plpgsql as $$ begin
        if new.data like '%poison%'::bytea then raise exception 'poisoned' using errcode = 'XX123'; end if;
        return new;
    end $$;
    create trigger poison before insert on queen.segments for each row execute function queen.poison();
"""
FULL_DISK = """
    create function queen.full_disk() returns trigger language plpgsql as $$ begin
        raise exception 'could not extend file: No space left on device' using errcode = 'disk_full';
    end $$;
    create trigger full_disk before insert on queen.segments for each row execute function queen.full_disk();
"""
BY_SQL = "insert into queen.messages (queue, partition, payload) values ($1, 'p', '1')"
ENCRYPT = """select queen.configure_v1($1, null, null, '{"encryption_enabled": true}')"""
FREE = "select count(*) from queen.partition_consumers where lease_id is null and ready_at <= clock_timestamp()"


async def wait_for(broker: Broker, **more: object) -> asyncio.Future[PopResult]:
    """A pop that is parked."""
    before = parked(broker)
    future = broker.pop(ask(**{"wait": 30.0, **more}))  # type: ignore[arg-type]
    await until(lambda: parked(broker) > before)
    return future


class Unreachable:
    """A database that nobody may ask."""


class TestLargeMessages:
    """A pop gets as many messages as fit, and always one."""

    @pytest.mark.parametrize(
        "how",
        [{}, {"partition": "p"}, {"auto_ack": True}, {"partitions": 10}, {"group": "g"}, {"queue": None, "task": ""}],
        ids=str,
    )
    async def test_everything_comes_in_order_in_pieces_that_fit(self, database: str, how: dict[str, object]) -> None:
        sizes = [30_000, 30_000, 10_000, 60_000, 200_000, 1_000, 64_000, 30_000, 30_000]
        config = EngineConfig(dsn=database, connections=2, admin_connections=1, max_pop_bytes=1)
        broker = await Broker.open(config)
        try:
            for size in sizes:
                await push(broker, "x" * (size - 2))
            got: list[list[int]] = []
            while (won := await broker.pop(ask(**how))).claims:  # type: ignore[arg-type]
                got.append([len(str(payload)) + 2 for payload in read(won)])
                if not how.get("auto_ack"):
                    group = str(how.get("group") or "__QUEUE_MODE__")
                    assert all(successes(await broker.ack(acks_of(won), group)))
        finally:
            await broker.close()
        assert got == [[30_000, 30_000], [10_000], [60_000], [200_000], [1_000, 64_000], [30_000, 30_000]]

    async def test_partitions_share_the_room_of_a_pop(self, database: str) -> None:
        config = EngineConfig(dsn=database, connections=2, admin_connections=1, max_pop_bytes=1)
        broker = await Broker.open(config)
        try:
            for number in range(6):
                await push(broker, "x" * 40_000, partition=f"p{number}")
            got = [len((await broker.pop(ask(partitions=6))).claims) for _ in range(4)]
        finally:
            await broker.close()
        assert got == [2, 2, 2, 0]


class TestWaiting:
    async def test_a_push_on_this_worker_wakes_at_once(self, broker: Broker) -> None:
        waiting = await wait_for(broker)
        statements = broker.stats()["operations"]["pop"]["flushes"]
        await push(broker, 1)
        assert read(await waiting) == [1]
        assert broker.stats()["operations"]["pop"]["flushes"] == statements + 1, "it did not find it by polling"

    async def test_a_queue_that_does_not_exist_yet_is_waited_for(self, broker: Broker) -> None:
        waiting = await wait_for(broker, queue="later", group="g")
        await push(broker, 1, queue="later")
        assert read(await waiting) == [1]

    async def test_a_push_by_somebody_else_is_found(self, broker: Broker) -> None:
        await push(broker, 0)
        await broker.ack(acks_of(await broker.pop(ask())))
        waiting = await wait_for(broker)
        await broker.store.pool.execute(BY_SQL, QUEUE)
        assert read(await waiting) == [1]

    async def test_an_ack_wakes_who_waits_for_the_rest_of_the_partition(self, broker: Broker) -> None:
        await push(broker, 1, 2)
        won = await broker.pop(ask(batch=1))
        waiting = await wait_for(broker)
        await broker.ack(acks_of(won))
        assert read(await waiting) == [2]

    async def test_many_acks_that_free_one_partition_wake_one_waiter(self, broker: Broker) -> None:
        await push(broker, *range(20))
        won = await broker.pop(ask())
        waiting = [await wait_for(broker) for _ in range(20)]
        looks = broker.stats()["operations"]["pop"]["requests"]
        acks = acks_of(won)
        acks[-1].status = "retry"
        await broker.ack(acks)
        await until(lambda: any(future.done() for future in waiting))
        assert broker.stats()["operations"]["pop"]["requests"] - looks < 5
        for future in waiting:
            future.cancel()

    async def test_a_failed_message_comes_again_when_its_delay_is_over(self, broker: Broker) -> None:
        await broker.store.configure(QUEUE, retryDelay=150)
        await push(broker, 1)
        won = await broker.pop(ask())
        await broker.ack(acks_of(won, "failed"))
        assert read(await broker.pop(ask())) == []
        assert read(await broker.pop(ask(wait=30.0))) == [1]

    async def test_a_lease_that_runs_out_wakes_who_waits_for_it(self, broker: Broker) -> None:
        await broker.store.configure(QUEUE, leaseTime=1)
        await push(broker, 1)
        await broker.pop(ask())
        assert read(await broker.pop(ask(wait=30.0))) == [1]

    async def test_groups_wait_for_themselves(self, broker: Broker) -> None:
        one, other = await wait_for(broker, group="one"), await wait_for(broker, group="other")
        await push(broker, 1)
        assert [read(await one), read(await other)] == [[1], [1]]

    async def test_a_wait_for_one_partition_is_not_ended_by_another(self, broker: Broker) -> None:
        mine = await wait_for(broker, partition="mine")
        await push(broker, 1, partition="theirs")
        assert not mine.done()
        await push(broker, 2, partition="mine")
        assert read(await mine) == [2]

    async def test_a_partition_that_was_deleted_and_made_again_is_found(self, broker: Broker) -> None:
        await push(broker, 1, partition="mine")
        assert read(await broker.pop(ask(partition="mine", auto_ack=True))) == [1]
        waiting = await wait_for(broker, partition="mine")
        await broker.store.delete_queue(QUEUE)
        await push(broker, 2, partition="mine")
        assert read(await waiting) == [2]

    async def test_a_namespace_is_waited_for_and_says_which_queue_it_was(self, broker: Broker) -> None:
        waiting = await wait_for(broker, queue=None, namespace="shop")
        await push(broker, 1, queue="shop.orders")
        result = await waiting
        assert (read(result), result.claims[0].queue) == ([1], "shop.orders")

    async def test_its_time_being_up_it_is_answered_with_nothing(self, broker: Broker) -> None:
        assert read(await broker.pop(ask(wait=0.05))) == []
        assert parked(broker) == 0

    async def test_a_database_that_hangs_does_not_hold_it_much_longer(self, broker: Broker) -> None:
        await push(broker, 1)
        async with broker.store.pool.acquire() as other, other.transaction():
            await other.execute("lock table queen.partition_consumers")
            async with asyncio.timeout(10):
                assert read(await broker.pop(ask(wait=0.05))) == []
        async with asyncio.timeout(10):  # what it wins after that is given back
            assert read(await broker.pop(ask(wait=30.0))) == [1]

    async def test_an_empty_partition_is_not_looked_up_again_by_the_next_push(self, broker: Broker) -> None:
        await push(broker, 1)
        assert read(await broker.pop(ask(partition="p", auto_ack=True))) == [1]
        assert read(await broker.pop(ask(partition="p"))) == []
        known = await broker.store.directory.find(Unreachable(), [(QUEUE, "p")])  # type: ignore[arg-type]
        assert list(known) == [(QUEUE, "p")]

    async def test_many_wait_and_each_message_goes_to_one(self, broker: Broker) -> None:
        waiting = [broker.pop(ask(wait=30.0, batch=1)) for _ in range(50)]
        await until(lambda: parked(broker) == 50)
        await asyncio.gather(*[push(broker, n, partition=f"p{n}") for n in range(50)])
        results = await asyncio.gather(*waiting)
        assert sorted(str(read(result)[0]) for result in results) == sorted(map(str, range(50)))

    @pytest.mark.parametrize("how", ["their time is up", "they leave", "the server stops"])
    async def test_many_who_end_at_the_same_moment_disturb_nobody(self, database: str, how: str) -> None:
        broker = await Broker.open(EngineConfig(dsn=database, connections=2, admin_connections=1))
        broken: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        waiting = [broker.pop(ask(wait=0.5 if how == "their time is up" else 30.0)) for _ in range(20)]
        await until(lambda: parked(broker) == 20)
        if how == "they leave":
            for each in waiting:
                each.cancel()
        elif how == "the server stops":
            await broker.drain()
        await asyncio.wait(waiting)
        await until(lambda: broker.stats()["waiting"] == {"parked": 0, "keys": 0})
        assert broken == []
        await broker.close()


class TestLeaving:
    async def test_who_leaves_while_parked_takes_nothing(self, broker: Broker) -> None:
        waiting = await wait_for(broker)
        waiting.cancel()
        await until(lambda: parked(broker) == 0)
        await push(broker, 1)
        assert read(await broker.pop(ask())) == [1]

    async def test_who_leaves_while_his_pop_is_under_way_gives_the_lease_back(self, broker: Broker) -> None:
        await push(broker, 1)
        await broker.ack(acks_of(await broker.pop(ask())))
        await push(broker, 2)
        leaving = broker.pop(ask())
        before = broker.stats()["pop_states"]["leasing"]["entered"]
        while broker.stats()["pop_states"]["leasing"]["entered"] == before:  # noqa: ASYNC110  it must not end meanwhile
            await asyncio.sleep(0)
        leaving.cancel()
        await broker.pops.idle()
        assert await broker.store.pool.fetchval(FREE) == 1
        assert broker.stats()["leases"]["given_back"] == 1
        assert read(await broker.pop(ask())) == [2]


class TestIsolation:
    async def test_one_message_that_postgres_refuses_fails_alone(self, broker: Broker) -> None:
        await push(broker, 0)
        await broker.store.pool.execute(POISON)
        answers = await asyncio.gather(
            *[broker.push([entry("poison" if n == 5 else n, f"p{n % 3}")]) for n in range(12)], return_exceptions=True
        )
        assert isinstance(answers[5], asyncpg.PostgresError)
        assert all(not isinstance(answer, BaseException) for n, answer in enumerate(answers) if n != 5)
        assert broker.stats()["operations"]["push"]["isolated"] > 0
        stored = await broker.store.pool.fetch("select payload::text from queen.messages")
        assert sorted(row[0] for row in stored) == sorted(["0", *[str(n) for n in range(12) if n != 5]])

    async def test_a_full_disk_is_told_as_a_database_that_cannot_do_it_now(self, database: str) -> None:
        broker = await Broker.open(EngineConfig(dsn=database, connections=2, retry_timeout=0.1))
        try:
            await push(broker, 1)
            await broker.store.pool.execute(FULL_DISK)
            with pytest.raises(DatabaseUnavailable):
                await push(broker, 2)
            assert broker.stats()["operations"]["push"]["retries"] > 0
        finally:
            await broker.close()


class TestLimits:
    async def test_more_than_may_wait_is_refused_and_nothing_is_kept_of_it(self, database: str) -> None:
        config = EngineConfig(dsn=database, connections=2, admin_connections=1, max_pending_bytes=1000)
        broker = await Broker.open(config)
        try:
            first = broker.push([entry(1)], None, 900)
            with pytest.raises(Overloaded) as refused:
                broker.push([entry(2)], None, 200)
            assert refused.value.retry_after > 0
            await first
            assert broker.stats()["pending_bytes"] == 0
            await broker.push([entry(3)], None, 5000)
            assert read(await broker.pop(ask())) == [1, 3]
        finally:
            await broker.close()


class TestStopping:
    async def test_parked_pops_are_answered_work_is_finished_and_nothing_new_is_taken(self, database: str) -> None:
        broker = await Broker.open(EngineConfig(dsn=database, connections=2, admin_connections=1))
        waiting = await wait_for(broker)
        pushing = broker.push([entry(1)])
        await broker.drain()
        assert read(await waiting) == []
        assert pushing.done()
        for call in (lambda: broker.push([entry(2)]), lambda: broker.pop(ask()), lambda: broker.renew("x", 1)):
            with pytest.raises(Stopping):
                call()
        assert await broker.store.pool.fetchval("select count(*) from queen.messages") == 1
        await broker.close()


class TestEncryption:
    KEY = bytes(range(32))

    async def test_payloads_are_encrypted_at_rest_and_come_back_readable(self, database: str) -> None:
        broker = await Broker.open(EngineConfig(dsn=database, connections=2), Cipher(self.KEY))
        try:
            await broker.store.configure(QUEUE, encryptionEnabled=True)
            await push(broker, "canary", "other")
            raw = await broker.store.pool.fetchval("select data from queen.segments")
            assert b"canary" not in raw
            assert read(await broker.pop(ask())) == ["canary", "other"]
        finally:
            await broker.close()

    async def test_a_worker_that_has_not_heard_of_it_does_not_store_clear_text(self, database: str) -> None:
        broker = await Broker.open(EngineConfig(dsn=database, connections=2), Cipher(self.KEY))
        try:
            await push(broker, "before")
            await broker.store.pool.execute(ENCRYPT, QUEUE)
            await push(broker, "canary")
            raw = await broker.store.pool.fetch("select data from queen.segments order by last_seq")
            assert [b"canary" in row[0] for row in raw] == [False, False]
            assert read(await broker.pop(ask())) == ["before", "canary"]
        finally:
            await broker.close()

    async def test_without_a_key_nothing_is_stored(self, broker: Broker) -> None:
        await broker.store.configure(QUEUE, encryptionEnabled=True)
        refused, fine = (await broker.push([entry(1), entry(2, queue="open")])).verdicts()
        assert (refused.status, fine.status) == ("failed", "queued")
        assert "QUEEN_ENCRYPTION_KEY" in (refused.error or "")

    @pytest.mark.parametrize("auto_ack", [True, False])
    async def test_what_cannot_be_read_is_delivered_as_it_is_stored(
        self, broker: Broker, database: str, auto_ack: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An error would lose it (autoAck) or stop its partition; nobody learns what is in it."""
        await broker.store.configure(QUEUE, encryptionEnabled=True)
        keeper = await Broker.open(EngineConfig(dsn=database, connections=2), Cipher(self.KEY))
        await push(keeper, "canary")
        await keeper.close()
        ((envelope,), again) = (read(await broker.pop(ask(auto_ack=auto_ack))), read(await broker.pop(ask())))
        assert isinstance(envelope, dict)
        assert envelope.keys() == {"encrypted", "iv", "authTag"}
        assert again == []
        assert [record.message for record in caplog.records if "canary" in record.message] == []
        assert any(QUEUE in record.message for record in caplog.records)


async def test_many_pops_for_partitions_are_answered_by_few_statements(broker: Broker) -> None:
    await broker.push([entry(n, f"p{n}") for n in range(200)])
    before = broker.stats()["operations"]["pop"]["flushes"]
    results = await asyncio.gather(*[broker.pop(ask(partition=f"p{n}")) for n in range(200)])
    assert [read(result) for result in results] == [[n] for n in range(200)]
    assert broker.stats()["operations"]["pop"]["flushes"] - before <= 2
    states = broker.stats()["pop_states"]
    assert states["completed"]["entered"] == 200
    answers = await asyncio.gather(*[broker.ack(acks_of(result)) for result in results])
    assert all(all(successes(answer)) for answer in answers)


async def test_acks_of_one_lease_that_arrive_together_are_one_run(broker: Broker) -> None:
    await push(broker, *range(20))
    won = await broker.pop(ask())
    answers = await asyncio.gather(*[broker.ack([each]) for each in acks_of(won)])
    assert all(all(successes(answer)) for answer in answers)
    assert broker.stats()["operations"]["ack"]["flushes"] <= 2
    assert read(await broker.pop(ask())) == []


async def test_a_group_deleted_behind_our_back_is_registered_again(broker: Broker) -> None:
    await push(broker, 1)
    assert read(await broker.pop(ask(group="g", auto_ack=True))) == [1]
    await broker.store.pool.execute("select queen.delete_group_v1($1, $2, true)", "g", QUEUE)
    assert read(await broker.pop(ask(group="g"))) == [1]


@pytest.mark.parametrize(("requests", "each", "limit", "stored"), [(3, 1, 2, 2), (10, 3, 10, 9), (4, 5, 4, 0)])
async def test_a_full_queue_refuses_requests_and_not_the_flush(
    broker: Broker, requests: int, each: int, limit: int, stored: int
) -> None:
    """Requests that arrive together share a flush, and each is told what became of its own messages."""
    await broker.store.configure(QUEUE, maxSize=limit)
    spread = [[entry(number, partition=f"p{index % 2}") for number in range(each)] for index in range(requests)]
    verdicts = [receipt.verdicts() for receipt in await asyncio.gather(*[broker.push(items) for items in spread])]
    assert sum(verdict.status == "queued" for one in verdicts for verdict in one) == stored
    assert all(len({verdict.status for verdict in one}) == 1 for one in verdicts)
    refused = [one[0].error for one in verdicts if one[0].status == "queue_full"]
    assert len(refused) == requests - stored // each
    assert all(f"maxSize is {limit}" in (error or "") and f"{each} given" in (error or "") for error in refused)
    assert all(("never takes more" in (error or "")) == (each > limit) for error in refused)


async def test_a_push_that_waits_for_a_lock_holds_up_no_other_partition(broker: Broker, database: str) -> None:
    """Also not when a flush before it waited for a minute, which says nothing about how long flushes take."""
    await push(broker, 1, partition="a")
    await push(broker, 1, partition="b")
    batcher = broker.pushes.batcher
    batcher._usual, batcher._least = 60.0, 0.001
    other = await asyncpg.connect(database)
    async with other.transaction():
        await other.execute("insert into queen.messages (queue, partition) values ($1, 'a')", QUEUE)
        waiting = broker.push([entry(2, "a")])
        await until(lambda: batcher.stats.in_flight == 1 and len(batcher) == 0)
        async with asyncio.timeout(30):
            await push(broker, 2, partition="b")
        assert not waiting.done()
    assert (await waiting).complete
    await other.close()
