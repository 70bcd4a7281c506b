"""PgBouncer mode: directly always, and through a real PgBouncer where one is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import asyncpg
import pytest

from queenmq import sql
from queenmq.domain.segments import PushItem
from queenmq.storage import session
from queenmq.storage.ack import AckItem
from queenmq.storage.errors import AccessRefused, DatabaseUnavailable, UnsupportedDatabase
from queenmq.storage.migrate import check, migrate, status
from queenmq.storage.pool import connect, connect_unchecked, create_pool
from queenmq.storage.store import Store
from tests.conftest import Server
from tests.storage.bouncer import POOL_SIZE, PROGRAM, TRACKS, bouncing, run

DIRECT = "direct"
WAYS = [DIRECT, "pgbouncer"] if TRACKS else [DIRECT]
Way = Callable[[str], str]


@pytest.fixture
async def empty(embedded_server: Server) -> AsyncIterator[str]:
    """A database without our schema, whose stored settings go with it."""
    name = await embedded_server.create(template="template0")
    yield embedded_server.database(name)
    await embedded_server.drop(name)


@pytest.fixture
async def migrated(embedded_server: Server) -> AsyncIterator[str]:
    name = await embedded_server.create()
    yield embedded_server.database(name)
    await embedded_server.drop(name)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """How the mode's connections reach a database."""
    with ExitStack() as stack:
        yield (lambda dsn: dsn) if request.param == DIRECT else (lambda dsn: stack.enter_context(bouncing(dsn)))


async def named_at_start(connection: asyncpg.Connection) -> set[str]:
    """The settings that came with the start of the connection."""
    rows = await connection.fetch("select lower(name) as name from pg_settings where source = 'client'")
    return {row["name"] for row in rows}


async def test_nothing_is_named_at_the_start_that_pgbouncer_refuses(migrated: str) -> None:
    accepted = {"application_name", "timezone", "client_encoding"}
    connection = await connect_unchecked(migrated, pgbouncer=True)
    assert await named_at_start(connection) == accepted
    await connection.close()
    connection = await connect(migrated)
    assert await named_at_start(connection) == accepted | set(session.NEEDED) | {"statement_timeout"}
    await connection.close()


async def use_pool(dsn: str) -> None:
    """A pool opens its connections when they are used."""
    pool = await create_pool(dsn, size=2, pgbouncer=True)
    try:
        async with pool.acquire():
            pass
    finally:
        pool.terminate()


async def test_without_the_settings_a_connection_is_refused(migrated: str) -> None:
    for attempt in (connect(migrated, pgbouncer=True), use_pool(migrated)):
        with pytest.raises(UnsupportedDatabase, match="plan_cache_mode is auto, not force_generic_plan") as refused:
            await attempt
        assert "queen db migrate" in refused.value.message


async def test_one_wrong_setting_is_enough_to_be_refused(migrated: str) -> None:
    await migrate(migrated, pgbouncer=True)
    await run(
        migrated,
        "do $$ begin execute format('alter role %I in database %I set default_transaction_isolation to serializable', "
        "current_user, current_database()); end $$",
    )
    with pytest.raises(UnsupportedDatabase, match="default_transaction_isolation is serializable, not read committed"):
        await connect(migrated, pgbouncer=True)


async def test_migrating_stores_the_settings_once_and_for_this_database_only(
    migrated: str, empty: str, way: Way
) -> None:
    through, reports = way(migrated), list[str]()
    await migrate(through, pgbouncer=True, report=reports.append)
    assert [report for report in reports if "storing session settings" in report] == reports[:1]
    connection = await connect(through, pgbouncer=True)
    assert await connection.fetchval("show plan_cache_mode") == "force_generic_plan"
    assert await connection.fetchval("show timezone") == "UTC"
    await connection.close()
    await migrate(through, pgbouncer=True, report=reports.append)
    assert len(reports) == 1
    other = await asyncpg.connect(empty)
    assert await other.fetchval("show plan_cache_mode") == "auto"
    await other.close()


async def test_an_ordinary_role_stores_its_own_settings(migrated: str) -> None:
    await run(migrated, "drop role if exists ordinary", "create role ordinary")
    connection = await connect_unchecked(migrated, pgbouncer=True)
    await connection.execute("set role ordinary")
    await session.store(connection)
    stored = await connection.fetchval("select setconfig from pg_db_role_setting where setrole = 'ordinary'::regrole")
    assert sorted(stored) == sorted(f"{name}={value}" for name, value in session.NEEDED.items())
    await connection.close()
    await run(
        migrated,
        "do $$ begin execute format('alter role ordinary in database %I reset all', current_database()); end $$",
    )
    await run(migrated, "drop role ordinary")


async def test_a_role_that_may_not_is_told_what_an_administrator_has_to_run(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(session.NEEDED, "log_statement", "ddl")
    await run(migrated, "drop role if exists powerless", "create role powerless")
    connection = await connect_unchecked(migrated, pgbouncer=True)
    await connection.execute("set role powerless")
    with pytest.raises(AccessRefused, match="set log_statement to 'ddl'"):
        await session.store(connection)
    assert (
        await connection.fetchval("select count(*) from pg_db_role_setting where setrole = 'powerless'::regrole") == 0
    )
    await connection.close()
    await run(migrated, "drop role powerless")


async def test_servers_that_start_together_migrate_once(empty: str, way: Way) -> None:
    through = way(empty)
    reports = await asyncio.gather(*[migrate(through, pgbouncer=True) for _ in range(5)])
    applied = [name for report in reports for name in report.applied]
    assert sorted(applied) == [script.name for script in sql.migrations()]  # those that run online come last
    assert sum(report.procedures_replaced for report in reports) == 1
    assert {state.state for state in await status(through, pgbouncer=True)} == {"applied"}
    assert await check(through, pgbouncer=True) == []


async def test_a_migration_leaves_no_lock_behind(empty: str, way: Way) -> None:
    before = await connect_unchecked(empty, pgbouncer=True)
    await session.store(before)  # otherwise the migration ends every session that might hold one
    await before.close()
    await migrate(way(empty), pgbouncer=True)
    connection = await asyncpg.connect(empty)
    assert await connection.fetchval("select count(*) from pg_locks where locktype = 'advisory' and granted") == 0
    await connection.close()


async def test_a_migration_waits_for_one_that_runs_directly(empty: str, way: Way) -> None:
    through, holder = way(empty), await asyncpg.connect(empty)
    key = 0x7175_6565_6E
    await holder.execute(f"select pg_advisory_lock({key})")
    waiting = asyncio.Event()
    work = asyncio.create_task(migrate(through, pgbouncer=True, report=lambda _: waiting.set()))
    await asyncio.wait_for(waiting.wait(), 20)
    assert not work.done()
    await holder.close()
    assert (await work).applied


async def test_messages_pass_with_more_connections_than_sessions(migrated: str, way: Way) -> None:
    through = way(migrated)
    await migrate(through, pgbouncer=True)
    store = Store(await create_pool(through, size=4 * POOL_SIZE, pgbouncer=True, statement_timeout_ms=30_000))
    got: dict[str, list[int]] = {f"p{number}": [] for number in range(6)}
    moved = set[str]()

    async def produce(partition: str) -> None:
        for number in range(0, 60, 3):
            items = [PushItem("jobs", b"%d" % n, partition, f"{partition}-{n}") for n in range(number, number + 3)]
            verdicts = await store.push(items)
            assert [verdict.status for verdict in verdicts] == ["queued"] * 3

    async def consume() -> None:
        while sum(map(len, got.values())) < 360:
            for claim in (await store.pop("jobs", "workers", batch=7)).claims:
                messages = list(claim.messages())
                got[claim.partition] += [int(message.payload) for message in messages]
                acks = [
                    AckItem(claim.partition_uid, message.transaction_id, group="workers", lease_id=claim.lease_id)
                    for message in messages
                ]
                pushes = [PushItem("done", b"1", claim.partition, message.transaction_id) for message in messages]
                if len(messages) % 2:
                    assert all(result.success for result in await store.ack(acks))
                    assert len(await store.push(pushes)) == len(pushes)
                else:
                    await store.commit(store.transaction(acks, pushes, [claim.lease_id or ""]))
                moved.update(message.transaction_id for message in messages)

    async with asyncio.timeout(60):
        await asyncio.gather(*[produce(partition) for partition in got], *[consume() for _ in range(8)])
    assert got == {partition: list(range(60)) for partition in got}
    assert len(moved) == 360
    assert await store.pool.fetchval("select count(*) from queen.messages where queue = 'done'") == 360
    await store.close()


async def test_every_transaction_runs_with_the_settings(migrated: str, way: Way) -> None:
    through = way(migrated)
    await migrate(through, pgbouncer=True)
    pool = await create_pool(through, size=4 * POOL_SIZE, pgbouncer=True)
    question = (
        "select current_setting('plan_cache_mode'), current_setting('enable_seqscan'), pg_backend_pid(), pg_sleep(0.02)"
    )
    rows = [row for [row] in await asyncio.gather(*[pool.fetch(question) for _ in range(60)])]
    assert {tuple(row)[:2] for row in rows} == {("force_generic_plan", "off")}
    assert len({row[2] for row in rows}) >= 2
    await pool.close()


async def test_a_statement_that_takes_too_long_is_ended(migrated: str, way: Way) -> None:
    through = way(migrated)
    await migrate(through, pgbouncer=True)
    store = Store(await create_pool(through, size=2, pgbouncer=True, statement_timeout_ms=300))
    await store.configure("jobs")
    holder = await asyncpg.connect(migrated)
    await holder.execute("begin; lock table queen.queues in access exclusive mode")
    async with asyncio.timeout(20):
        with pytest.raises(DatabaseUnavailable):
            await store.configure("jobs", leaseTime=7)
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    deadline = asyncio.get_running_loop().time() + 20
    while await holder.fetchval(waiting):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await holder.close()
    await store.configure("jobs", leaseTime=9)
    await store.close()


async def only_two_are_left(dsn: str) -> None:
    """The sessions of a migration and of a transaction that it waits for, of those there were."""
    connection = await asyncpg.connect(dsn)
    deadline = asyncio.get_running_loop().time() + 20
    while (
        await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend'"
        )
        > 2
    ):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await connection.close()


if TRACKS:

    async def test_sessions_that_pgbouncer_opened_before_are_replaced(migrated: str) -> None:
        with bouncing(migrated) as through:
            early = [await asyncpg.connect(through) for _ in range(POOL_SIZE)]
            await asyncio.gather(*[connection.execute("select pg_sleep(0.1)") for connection in early])
            busy = early[0].transaction()
            await busy.start()
            work = asyncio.create_task(migrate(through, pgbouncer=True))
            await only_two_are_left(migrated)
            assert not work.done()
            await busy.rollback()
            await work
            connections = await asyncio.gather(*[connect(through, pgbouncer=True) for _ in range(3 * POOL_SIZE)])
            for connection in [*early, *connections]:
                assert await connection.fetchval("show plan_cache_mode") == "force_generic_plan"
                await connection.close()

    async def test_a_connection_that_meets_an_earlier_session_replaces_it(migrated: str) -> None:
        with bouncing(migrated) as through:
            early = [await asyncpg.connect(through) for _ in range(POOL_SIZE)]
            await asyncio.gather(*[connection.execute("select pg_sleep(0.1)") for connection in early])
            direct = await connect_unchecked(migrated, pgbouncer=True)
            await session.store(direct)
            await direct.close()
            assert await early[0].fetchval("show plan_cache_mode") == "auto"
            pool = await create_pool(through, size=2, pgbouncer=True)
            assert await pool.fetchval("show plan_cache_mode") == "force_generic_plan"
            connection = await connect(through, pgbouncer=True)
            assert await connection.fetchval("show plan_cache_mode") == "force_generic_plan"
            await connection.close()
            await pool.close()
            for each in early:
                await each.close()


if PROGRAM is not None:

    async def test_a_pgbouncer_that_does_not_track_prepared_statements_is_refused(migrated: str) -> None:
        settings = {"max_prepared_statements": 0} if TRACKS else {}
        with bouncing(migrated, **settings) as through:
            for attempt in (
                connect(through, pgbouncer=True),
                use_pool(through),
                migrate(through, pgbouncer=True),
            ):
                with pytest.raises(UnsupportedDatabase, match=r"1\.21 or newer, with max_prepared_statements above 0"):
                    await attempt
