"""Roles other than the owner: the grants of docs/sql.md are enough to push and to read, and good for nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final

import asyncpg
import pytest

from queenmq.storage.store import Store

from .shorthand import QUEUE, ack, claim, numbers, push

PAGE: Final = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
GRANTS, TOGETHER = (
    re.search(rf"```sql\n({start}.*?)```", PAGE, re.DOTALL).group(1)  # type: ignore[union-attr]
    for start in ("CREATE ROLE", "BEGIN;")
)
INSERT: Final = "insert into queen.messages (queue, partition, payload) values ('orders', 'p', $1)"


class Roles:
    """The roles of the page under names of their own, since roles belong to the whole server."""

    def __init__(self, dsn: str, owner: asyncpg.Connection) -> None:
        self._dsn = dsn
        self._owner = owner
        self._suffix = token_hex(4)
        self._made: list[str] = []

    def named(self, text: str) -> str:
        return re.sub(r"\b(queen_producer|queen_reader)\b", rf"\1_{self._suffix}", text)

    async def grant(self) -> None:
        self._made += [self.named("queen_producer"), self.named("queen_reader")]
        await self._owner.execute(self.named(GRANTS))

    @asynccontextmanager
    async def login(self, *roles: str) -> AsyncIterator[asyncpg.Connection]:
        """A session of a new role that is a member of these, with a schema of its own in front of its search_path."""
        name, password = f"shop_{token_hex(4)}", token_hex(16)
        members = "".join(f"grant {self.named(role)} to {name};" for role in roles)
        await self._owner.execute(
            f"create role {name} login password '{password}'; {members} create schema {name} authorization {name}"
        )
        self._made.append(name)
        session = await asyncpg.connect(self._dsn, user=name, password=password)
        try:
            await session.execute(f"set search_path = {name}, pg_catalog")
            yield session
        finally:
            await session.close()

    async def drop(self) -> None:
        for name in reversed(self._made):
            await self._owner.execute(f"drop owned by {name} cascade; drop role {name}")


@pytest.fixture
async def roles(dsn: str, store: Store) -> AsyncIterator[Roles]:
    owner = await asyncpg.connect(dsn)
    made = Roles(dsn, owner)
    await made.grant()
    yield made
    await made.drop()
    await owner.close()


@pytest.fixture
async def producer(roles: Roles) -> AsyncIterator[asyncpg.Connection]:
    async with roles.login("queen_producer") as session:
        yield session


@pytest.fixture
async def reader(roles: Roles) -> AsyncIterator[asyncpg.Connection]:
    async with roles.login("queen_reader") as session:
        yield session


class TestGranted:
    async def test_a_producer_pushes_its_row_and_the_message_together(
        self, store: Store, producer: asyncpg.Connection
    ) -> None:
        await producer.execute("create table orders (id integer, total integer)")
        await producer.execute(TOGETHER.replace("COMMIT", "ROLLBACK"))
        assert await producer.fetchval("select count(*) from orders") == 0
        assert (await store.pop(QUEUE)).messages() == []
        await producer.execute(TOGETHER)
        assert await producer.fetchval("select id from orders") == 1002
        [message] = (await store.pop(QUEUE)).messages()
        assert (message.transaction_id, message.seq) == ("order-1002", 1)

    async def test_a_reader_reads(self, store: Store, reader: asyncpg.Connection) -> None:
        await push(store, 1, 2)
        rows = await reader.fetch("select seq, payload::text from queen.messages where queue = 'orders' order by seq")
        assert [tuple(row) for row in rows] == [(1, "1"), (2, "2")]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.execute(INSERT, "3")

    async def test_both_together_return_what_was_stored(self, store: Store, roles: Roles) -> None:
        async with roles.login("queen_producer", "queen_reader") as session:
            row = await session.fetchrow(f"{INSERT} returning seq, id, queue", "1")
            stored = await session.fetchrow("select seq, id, queue from queen.messages")
        assert row == stored

    async def test_the_rules_of_a_push_hold(self, store: Store, producer: asyncpg.Connection) -> None:
        await store.configure(QUEUE, maxSize=1)
        await producer.execute(INSERT, "1")
        with pytest.raises(asyncpg.PostgresError, match="maxSize is 1"):
            await producer.execute(INSERT, "2")
        await store.configure(QUEUE, maxSize=0, encryptionEnabled=True)
        with pytest.raises(asyncpg.PostgresError, match="queue orders is encrypted: push to it through the server"):
            await producer.execute(INSERT, "3")
        await store.configure(QUEUE, encryptionEnabled=False)
        async with producer.transaction(isolation="repeatable_read"):
            with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED"):
                await producer.execute(INSERT, "4")
        with pytest.raises(asyncpg.CheckViolationError, match="queue must be a text"):
            await producer.execute("insert into queen.messages (queue) values ('')")
        assert numbers(await store.pop(QUEUE, batch=9)) == [1]

    async def test_groups_that_wait_are_woken(self, store: Store, producer: asyncpg.Connection) -> None:
        assert (await store.pop(QUEUE, "g")).messages() == []
        await producer.execute(INSERT, "1")
        await store.pop(QUEUE, "g", auto_ack=True)
        await producer.execute(INSERT, "2")
        assert numbers(await store.pop(QUEUE, "g")) == [2]


FORBIDDEN: Final = [
    "select * from queen.queues",
    "select * from queen.segments",
    "select * from queen.dead_letter_queue",
    "select * from queen.partition_lookup",
    "select * from queen.schema_migrations",
    "insert into queen.segments (partition_id, last_seq, created_at, n, base, data)"
    " values (1, 9, now(), 1, gen_random_uuid(), '1')",
    "update queen.messages set payload = '9'",
    "delete from queen.messages",
    "truncate queen.segments",
    "select * from queen.consume('orders')",
    "select * from queen.configure_v1('orders', null, null, '{}')",
    "select queen.delete_queue_v1('orders')",
    "select queen.clear_v1('orders', null)",
    "select * from queen.push_v1('{1}', '{1}', array[gen_random_uuid()], array[gen_random_uuid()], '{null}', '{9}',"
    " null, null, null, array[gen_random_uuid()], '{0}', '{}')",
    "select queen.push_segment_v1(1, 1, gen_random_uuid(), gen_random_uuid(), null, '9', null, null, null,"
    " array[gen_random_uuid()], null, null)",
    "select * from queen.find_partitions_v1('{orders}', '{p}')",
    "select * from queen.ensure_partitions_v1('{fresh}', '{p}')",
    "create function queen.mine() returns integer language sql return 1",
]

INTERNAL: Final = [
    "select queen.reserve_depth('{1}', '{1}', '{1}', '{1}')",
    "select queen.lock_queue('orders', true)",
    "select queen.refuse_given('{1}', array[gen_random_uuid()])",
    "select queen.remembered(1, gen_random_uuid())",
    "select queen.check_text('queue', 'orders', 1)",
    "select queen.refuse_place(1)",
    "select queen.refuse_stale(true)",
]


class TestNotGranted:
    @pytest.mark.parametrize("statement", FORBIDDEN)
    async def test_everything_else_is_refused(self, store: Store, roles: Roles, statement: str) -> None:
        await push(store, 1, 2)
        await ack(store, await claim(store), 1, "dlq")
        before = await self.everything(store)
        async with roles.login("queen_producer", "queen_reader") as session:
            with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
                await session.execute(statement)
        assert await self.everything(store) == before

    async def test_without_a_grant_nothing_is_pushed_or_read(self, store: Store, roles: Roles) -> None:
        async with roles.login() as session:
            for statement in ("insert into queen.messages (queue) values ('orders')", "table queen.messages"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await session.execute(statement)

    async def test_a_producer_does_not_read(self, store: Store, producer: asyncpg.Connection) -> None:
        for statement in ("table queen.messages", "insert into queen.messages (queue) values ('orders') returning id"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await producer.execute(statement)

    async def test_the_trigger_cannot_be_attached_to_another_table(
        self, store: Store, reader: asyncpg.Connection
    ) -> None:
        await reader.execute("create view mine as select * from queen.messages")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="messages_insert"):
            await reader.execute(
                "create trigger mine instead of insert on mine for each row execute function queen.messages_insert()"
            )

    @staticmethod
    async def everything(store: Store) -> list[asyncpg.Record]:
        return await store.pool.fetch(
            "select m::text from queen.messages m union all select d::text from queen.dead_letter_queue d"
            " union all select c::text from queen.partition_consumers c union all select q::text from queen.queues q"
        )


class TestNothingOfTheCallerRunsWithTheRightsOfTheOwner:
    """The caller's schema holds traps: whatever of it is used notes as whom it ran."""

    TRAP: Final = """
        create table caught (as_user name, what text);
        create function trap(what text) returns boolean language plpgsql as
            $$ begin insert into {schema}.caught values (current_user, what); return true; end $$;
        create function {schema}.clock_timestamp() returns timestamptz language sql as
            $$ select pg_catalog.clock_timestamp() from (select {schema}.trap('clock')) x $$;
        create function {schema}.convert_to(text, text) returns bytea language sql as
            $$ select pg_catalog.convert_to($1, $2::name) from (select {schema}.trap('convert_to')) x $$;
        create function {schema}.current_setting(text) returns text language sql as
            $$ select 'read committed' from (select {schema}.trap('current_setting')) x $$;
        create function {schema}.split_part(text, text, integer) returns text language sql as
            $$ select '' from (select {schema}.trap('split_part')) x $$;
        create function {schema}.equal(text, text) returns boolean language sql as
            $$ select $1 operator(pg_catalog.=) $2 and {schema}.trap('operator') $$;
        create operator {schema}.= (leftarg = text, rightarg = text, function = {schema}.equal);
        create domain {schema}.timestamptz as pg_catalog.timestamptz check ({schema}.trap('timestamptz'));
        create domain {schema}.uuid as pg_catalog.uuid check ({schema}.trap('uuid'));
        create domain {schema}.record as pg_catalog.text check ({schema}.trap('record'));
        create domain {schema}.text as pg_catalog.text check ({schema}.trap('text'));
        create domain {schema}.jsonb as pg_catalog.jsonb check ({schema}.trap('jsonb'));
        create domain {schema}.bytea as pg_catalog.bytea check ({schema}.trap('bytea'));
    """

    @pytest.mark.parametrize("path", ["{schema}, pg_catalog", "{schema}, queen, pg_catalog", "pg_temp, pg_catalog"])
    async def test_traps_in_front_of_the_search_path(self, store: Store, roles: Roles, path: str) -> None:
        async with roles.login("queen_producer") as session:
            mine = await session.fetchval("select current_user")
            schema = await self.schema(session) if path.startswith("pg_temp") else mine
            await session.execute(f"set search_path = {schema}, pg_catalog")
            await session.execute(self.TRAP.replace("{schema}", schema))
            await session.execute("set search_path = " + path.replace("{schema}", schema))
            await self.call_everything(session)
            for payload in ("1", "2"):
                await session.execute("insert into queen.messages (queue, payload) values ('orders.x', $1)", payload)
            caught = await session.fetch(f"select distinct as_user::pg_catalog.text, what from {schema}.caught")
        assert {row["as_user"] for row in caught} <= {mine}
        assert numbers(await store.pop("orders.x", batch=9)) == [1, 2]

    @staticmethod
    async def schema(session: asyncpg.Connection) -> str:
        """The schema of this session's temporary objects."""
        await session.execute("create temp table first (x integer)")
        return str(await session.fetchval("select nspname from pg_namespace where oid = pg_my_temp_schema()"))

    @staticmethod
    async def call_everything(session: asyncpg.Connection) -> None:
        """PL/pgSQL keeps a function as the first call of the session has read it, with the search_path of that call."""
        for statement in FORBIDDEN + INTERNAL:
            try:
                await session.execute(statement)
            except asyncpg.PostgresError:
                continue

    async def test_one_function_has_the_rights_of_the_owner_and_only_the_view_may_use_it(self, store: Store) -> None:
        rows = await store.pool.fetch(
            "select p.proname as name, p.proconfig, has_function_privilege('public', p.oid, 'execute') as open"
            " from pg_proc p where p.pronamespace = 'queen'::regnamespace and p.prosecdef"
        )
        assert [(row["name"], row["proconfig"], row["open"]) for row in rows] == [
            ("messages_insert", ["search_path=pg_catalog, pg_temp"], False)
        ]

    async def test_every_function_that_it_reaches_names_the_schema_of_its_types(self, store: Store) -> None:
        rows = await store.pool.fetch(
            "select proname, prosrc from pg_proc where pronamespace = 'queen'::regnamespace and prokind = 'f'"
        )
        sources = {row["proname"]: row["prosrc"] for row in rows}
        reached = {"messages_insert", "segments_inserted"}
        while (
            more := {
                name for each in reached for name in re.findall(r"queen\.(\w+)\(", sources[each]) if name in sources
            }
            - reached
        ):
            reached |= more
        assert {"push_v2", "reserve_depth", "ensure_partitions_v2", "lock_queue", "remembered"} <= reached
        for name in reached:
            declared = re.search(r"\bdeclare\b(.*?)\bbegin\b", sources[name], re.DOTALL)
            for line in declared.group(1).strip().splitlines() if declared else []:
                assert re.match(r"\s*\w+ (bigint|integer|boolean|pg_catalog\.\w+|queen\.\w+)(\[\])?(;| :=)", line), (
                    name,
                    line,
                )
