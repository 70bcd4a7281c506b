"""The migration to wide numbers on tables with rows, beside servers of version 1: nothing waits, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from queenmq import sql
from queenmq.storage.ddl import Way
from queenmq.storage.migrate import migrate, status
from queenmq.storage.online import finish
from queenmq.storage.pool import connect, connect_unchecked
from tests.conftest import Server

WIDE: Final = next(script for script in sql.migrations() if script.name == "0010_wide_numbers")
ROWS: Final = int(100_000 * float(os.environ.get("PROOF_SCALE", "1")))
TABLES: Final = (
    *("queues", "partitions", "partition_lookup", "consumer_groups_metadata", "partition_consumers"),
    *("queue_depth", "dead_letter_queue", "message_traces", "archive_holds"),
)
_TEXT: Final = Path(__file__).with_name("version_1.sql").read_text()
OLDER: Final = dict(re.findall(r"^-- name: (\w+)\n(.*?);\n", _TEXT, re.MULTILINE | re.DOTALL))

FILL: Final = """
    select queen.configure_v1('big', '', '', '{"max_size": 1000000}'), queen.register_group_v1('big', 'g', 'all', null);
    insert into queen.partitions (queue_id, name)
        select q.queue_id, 'p' || i from queen.queues q, generate_series(1, %(rows)d) i;
    insert into queen.partition_lookup (partition_id, queue_id)
        select p.partition_id, p.queue_id from queen.partitions p on conflict do nothing;
    insert into queen.partition_consumers (partition_id, group_id, queue_id, batches)
        select p.partition_id, g.group_id, p.queue_id, p.partition_id
        from queen.partitions p, queen.consumer_groups_metadata g on conflict do nothing;
    insert into queen.dead_letter_queue (queue_id, partition_id, partition_uid, partition_name, consumer_group, seq,
        message_id, transaction_id, data, error_message, created_at)
        select queue_id, partition_id, uid, name, 'g', 1, uid, 't', '1', 'e', now() from queen.partitions limit 5000;
    insert into queen.message_traces (id, queue_id, partition_uid, transaction_id, data)
        select gen_random_uuid(), queue_id, uid, 't', '{}' from queen.partitions limit 5000;
    select queen.acquire_hold_v1('big', 'h', null, 60);
"""
CONTENT: Final = """
    with big as (select queue_id from queen.queues where name = 'big')
    select md5(string_agg(x, ',' order by x)) from (
        select 'c' || (partition_id, group_id, queue_id, batches)::text
            from queen.partition_consumers join big using (queue_id)
        union all select 'p' || (partition_id, queue_id, name)::text from queen.partitions join big using (queue_id)
        union all select 'l' || (partition_id, queue_id)::text from queen.partition_lookup join big using (queue_id)
        union all select 'd' || (id, queue_id)::text from queen.dead_letter_queue
        union all select 't' || (id, queue_id)::text from queen.message_traces
        union all select 'h' || (holder, queue_id)::text from queen.archive_holds
        union all select 'q' || (name, queue_id)::text from queen.queues
        union all select 's' || queue_id from queen.queue_depth) x (x)
"""
# Everything about these tables but the types: what a changed column might take with it.
SHAPE: Final = """
    select string_agg(x, E'\\n' order by x) from (
        select pg_get_indexdef(oid) from pg_class where relnamespace = 'queen'::regnamespace and relkind = 'i'
        union all select conrelid::regclass || ' ' || conname || ' ' || convalidated || pg_get_constraintdef(oid)
            from pg_constraint where connamespace = 'queen'::regnamespace and contype <> 'n'
        union all select tgrelid::regclass || ' ' || tgname from pg_trigger where not tgisinternal
        union all select concat(relname, relacl, reloptions) from pg_class where relnamespace = 'queen'::regnamespace
            and relkind in ('r', 'v')
        union all select 'view ' || pg_get_viewdef('queen.messages'::regclass)
        union all select concat(c.relname, '.', a.attname, a.attnotnull, a.attidentity, a.attacl)
                || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
            from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
            where c.relnamespace = 'queen'::regnamespace and c.relkind = 'r'
        union all select proname from pg_proc
            where pronamespace = 'queen'::regnamespace and proname like 'widen%') x (x)
"""
NARROW: Final = """
    select count(*) from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.relnamespace = 'queen'::regnamespace and c.relkind = 'r'
    and a.attname in ('queue_id', 'group_id', 'batches') and a.atttypid <> 'bigint'::regtype
"""
_PLACES: Final = [f"queen.{table}" for table in TABLES]
FILES: Final = "select array_agg(relfilenode order by relname) from pg_class where oid = any ($1::text[]::regclass[])"
GRANTS: Final = """
    grant select on queen.messages to public;
    grant select (queue_id, name) on queen.queues to public;
    grant update (batches) on queen.partition_consumers to public;
    alter view queen.messages set (security_barrier = true);
"""
BATCHES: Final = """
    select sum(c.batches)::bigint from queen.partition_consumers c join queen.queues q using (queue_id)
    where q.name like 'busy%'
"""
DELETE: Final = "select queen.delete_queue_v1(name) from queen.queues where name like 'busy%'"


@pytest.fixture
async def narrow(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A database with the tables as they were, procedures of this version, and a role that may read the view."""
    name = await server.create(template="template0")
    with monkeypatch.context() as before:
        scripts = tuple(script for script in sql.migrations() if script != WIDE)
        before.setattr(sql, "migrations", lambda: scripts)
        await migrate(server.database(name))
    await run(server.database(name), GRANTS)
    yield server.database(name)
    await server.drop(name)


async def run(dsn: str, query: str, *arguments: Any) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        if arguments:
            return await connection.fetchval(query, *arguments)
        if query.lstrip().startswith("select") and ";" not in query:
            return await connection.fetchval(query)
        return await connection.execute(query)
    finally:
        await connection.close()


class Interrupted(Exception):
    """As a crash is: between two steps, or in one."""


class Worker:
    """What a server of version 1 sends for a producer and a consumer, over and over: push, pop, ack."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.rounds = 0
        self.acked: dict[int, int] = {}

    async def work(self, dsn: str, stop: asyncio.Event) -> None:
        connection = await connect(dsn)
        try:
            names = [f"p{number}" for number in range(3)]
            places = await connection.fetch(OLDER["ensure_partitions"], [self.queue] * 3, names)
            [row] = await connection.fetch(OLDER["register_group"], self.queue, "g", "all", None)
            while not stop.is_set():
                await self._round(connection, [place["partition_id"] for place in places], row["group_id"])
        finally:
            await connection.close()

    async def _round(self, connection: asyncpg.Connection, places: list[int], group: int) -> None:
        place, lease = places[self.rounds % 3], uuid.uuid4()
        await self._push(connection, place)
        rows = await connection.fetch(OLDER["pop_any"], group, f"{{{lease},{lease},{lease}}}", "{1,1,1}", 3, 10**6)
        [row] = [row for row in rows if row["reason"] is None]
        settled = (f"{{{place}}}", f"{{{group}}}", f"{{{lease}}}", f"{{{row['to_seq']}}}")
        assert [each["released"] for each in await connection.fetch(OLDER["ack_plain"], *settled)] == [True]
        self._delivered(place, row)
        # The same by procedures, whose plans a session keeps: a pop that acknowledges.
        await self._push(connection, place)
        asked = (f"{{{group}}}", "{1}", "{1}", f"{{{place}}}", "{1}", "{1}", f"{{{lease}}}", "{t}", [None], None, None)
        [row] = await connection.fetch(OLDER["pop"], *asked)
        self._delivered(place, row)
        self.rounds += 1

    async def _push(self, connection: asyncpg.Connection, place: int) -> None:
        base = uuid.uuid4()
        one = (place, 1, base, base, None, b"1", None, None, None, f"{{{base}}}", None, None, None)
        await connection.fetch(OLDER["push_segment"], *one)

    def _delivered(self, place: int, row: Any) -> None:
        assert (row["partition_id"], row["from_seq"]) == (place, self.acked.get(place, 0)), "in order, once"
        self.acked[place] = row["to_seq"]


async def test_it_runs_beside_servers_of_version_1(narrow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await run(narrow, FILL % {"rows": ROWS})
    before = [await run(narrow, query) for query in (CONTENT, SHAPE)], await run(narrow, FILES, _PLACES)
    said, steps = listen_to(monkeypatch)
    workers, stop = [Worker(f"busy{number}") for number in range(3)], asyncio.Event()
    traffic = [asyncio.create_task(worker.work(narrow, stop)) for worker in workers]
    while any(worker.rounds == 0 for worker in workers):
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in traffic), [task.exception() for task in traffic if task.done()]
    shape = await run(narrow, SHAPE)
    assert (await migrate(narrow, report=steps.append)).applied == (WIDE.name,)
    after = [worker.rounds for worker in workers]
    while any(worker.rounds < rounds + 5 for worker, rounds in zip(workers, after, strict=True)):
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in traffic), [task.exception() for task in traffic if task.done()]
    stop.set()
    await asyncio.gather(*traffic)
    assert await run(narrow, NARROW) == 0
    assert await run(narrow, BATCHES) == 2 * sum(worker.rounds for worker in workers)
    await run(narrow, DELETE)
    assert await run(narrow, CONTENT) == before[0][0]
    assert await run(narrow, SHAPE) == before[0][1] == shape
    assert await run(narrow, FILES, _PLACES) == before[1], "a table was rewritten"
    assert {state.state for state in await status(narrow)} == {"applied"}
    # In the transactions that hold tables exclusively, PostgreSQL read no table.
    assert not [line for line in said if re.search("rewriting table|verifying table|validating", line)], said


def listen_to(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """What PostgreSQL says about the migration's exclusive transactions, and the steps reported."""
    said: list[str] = []
    steps: list[str] = []
    exclusive = {str(number) for number, step in enumerate(WIDE.steps, 1) if "access exclusive" in step.text}
    assert len(exclusive) == 3

    def hear(_: object, message: Any) -> None:
        if steps and (found := re.search(r"step (\d+) of", steps[-1])) and found[1] in exclusive:
            said.append(str(message))

    async def connected(*arguments: Any, **options: Any) -> asyncpg.Connection:
        connection = await connect_unchecked(*arguments, **options)
        connection.add_log_listener(hear)
        await connection.execute("set client_min_messages = debug1")
        return connection

    monkeypatch.setattr("queenmq.storage.migrate.connect_unchecked", connected)
    return said, steps


def test_exclusive_locks_are_waited_for_less_than_a_deadlock_takes() -> None:
    """All in one statement, with a limit; everything that needs such a lock comes behind it."""
    words = r"\b(drop|rename|add|create trigger|set not null)\b"
    changing = [step for step in WIDE.steps if re.search(words, step.text)]
    assert {step.kind for step in changing} == {"transaction"}
    for step in changing:
        limit, lock, *_ = step.text.split(";\n")
        assert limit == "set local statement_timeout = 500"
        assert re.findall(r"queen\.(\w+)", lock) == list(TABLES)
        assert lock.endswith(" in access exclusive mode")


async def test_an_interrupted_migration_goes_on_where_it_was(narrow: str) -> None:
    await run(narrow, FILL % {"rows": 300})
    shape, content = await run(narrow, SHAPE), await run(narrow, CONTENT)
    for number, step in enumerate(WIDE.steps, 1):

        def stop(line: str, number: int = number) -> None:
            if f"step {number} of" in line:
                raise Interrupted

        with suppress(Interrupted):
            await migrate(narrow, report=stop)
            raise AssertionError(f"step {number} was not reached")
        [state] = [each for each in await status(narrow) if each.name == WIDE.name]
        assert (state.state, state.steps) == ("pending", (number - 1, len(WIDE.steps)))
        assert not state.needed, "servers start meanwhile"
        if step.kind == "index":  # as if the server had crashed while it built it
            await run(narrow, step.text.replace(" concurrently", ""))
            await run(narrow, f"update pg_index set indisvalid = false where indexrelid = '{step.subject}'::regclass")
        await run(narrow, "insert into queen.messages (queue, partition, payload) values ('big', 'p1', '1')")
    assert (await migrate(narrow)).applied == (WIDE.name,)
    assert await run(narrow, SHAPE) == shape
    assert await run(narrow, CONTENT) == content
    assert await run(narrow, NARROW) == 0
    assert (await migrate(narrow)).applied == ()


async def test_it_gives_way_to_a_long_transaction(narrow: str) -> None:
    """Between its attempts others get through, and it does not end before that transaction."""
    blocker = await asyncpg.connect(narrow)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("select from queen.archive_holds")
    gave_way = asyncio.Event()

    def report(line: str) -> None:
        if "waits for running transactions" in line:
            gave_way.set()

    migration = asyncio.create_task(migrate(narrow, report=report))
    await asyncio.wait_for(gave_way.wait(), 60)
    await run(narrow, "insert into queen.messages (queue, payload) values ('others', '1')")
    await transaction.commit()
    await blocker.close()
    assert (await asyncio.wait_for(migration, 120)).applied == (WIDE.name,)


async def test_sessions_that_share_a_pooler_do_it_once(narrow: str) -> None:
    """Without locks of their own they overlap in every step."""
    await run(narrow, FILL % {"rows": 300})
    shape, content = await run(narrow, SHAPE), await run(narrow, CONTENT)
    connections = [await asyncpg.connect(narrow) for _ in range(3)]
    await asyncio.gather(*[finish(each, Way(2000, True, lambda _: None, 0)) for each in connections])
    for each in connections:
        await each.close()
    assert [await run(narrow, query) for query in (SHAPE, CONTENT)] == [shape, content]
    assert await run(narrow, NARROW) == 0
