"""Sessions of servers, and the tag of a partition: what servers that share a database must agree on."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import asyncpg
import pytest

from queenmq.domain.ids import partition_tag
from queenmq.domain.segments import PushItem
from queenmq.storage.servers import begin_session
from queenmq.storage.store import Store
from tests.conftest import Server

NOW_MS = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"


@pytest.fixture
def server(embedded_server: Server) -> Server:
    """What is tested here does not depend on PostgreSQL's version."""
    return embedded_server


class TestSessions:
    @pytest.mark.parametrize("started", ["never", "before"])
    async def test_a_session_is_the_databases_time(self, store: Store, started: str) -> None:
        if started == "before":
            await store.pool.execute("insert into queen.servers (server_id, session) values ('one', 5)")
        before = await store.pool.fetchval(NOW_MS)
        session, now_ms, floors = await begin_session(store.pool, "one")
        assert before - 1 <= session <= now_ms <= await store.pool.fetchval(NOW_MS)
        assert floors == {}

    async def test_sessions_rise_also_when_the_clock_is_set_back(self, store: Store) -> None:
        first = await begin_session(store.pool, "one")
        await store.pool.execute("update queen.servers set session = session + 1000000000")
        second = await begin_session(store.pool, "one")
        third = await begin_session(store.pool, "one")
        assert [second.session, third.session] == [first.session + 1_000_000_001, first.session + 1_000_000_002]
        assert third.now_ms < third.session

    async def test_starts_at_the_same_moment_get_different_sessions(self, store: Store) -> None:
        begun = await asyncio.gather(*[begin_session(store.pool, "one") for _ in range(20)])
        assert len({session.session for session in begun}) == 20

    async def test_the_sessions_of_the_others_are_told(self, store: Store) -> None:
        one = await begin_session(store.pool, "one")
        two = await begin_session(store.pool, "two")
        again = await begin_session(store.pool, "one")
        assert two.floors == {"one": one.session}
        assert again.floors == {"two": two.session}

    async def test_servers_that_have_not_started_for_long_are_forgotten(self, store: Store) -> None:
        far = 7 * max([(await begin_session(store.pool, name)).session for name in ("gone", "own", "there")])
        age = "update queen.servers set started_at = started_at - $1::interval, session = $2 where server_id = any ($3)"
        await store.pool.execute(age, timedelta(days=366), far, ["gone", "own"])
        await store.pool.execute(age, timedelta(days=364), far, ["there"])
        own = await begin_session(store.pool, "own")
        assert own.floors == {"there": far}
        assert own.session == far + 1

    async def test_nobody_waits_for_a_forgotten_server_that_is_just_starting(
        self, store: Store, other: asyncpg.Connection
    ) -> None:
        await begin_session(store.pool, "old")
        await store.pool.execute("update queen.servers set started_at = '2000-01-01'")
        async with other.transaction(), asyncio.timeout(20):
            old = await begin_session(other, "old")
            await begin_session(store.pool, "fresh")
        assert (await begin_session(store.pool, "fresh")).floors == {"old": old.session}

    @pytest.mark.parametrize("name", ["", "x" * 32])
    async def test_a_name_that_fits_into_no_packet_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(asyncpg.CheckViolationError):
            await begin_session(store.pool, name)


class TestTags:
    async def test_sql_and_python_agree(self, store: Store) -> None:
        """Names of all lengths, from all of Unicode but what PostgreSQL cannot store."""
        dice = random.Random(7)

        def name() -> str:
            width = dice.choice([0x7F, 0x2FF, 0xD7FF, 0x10FFFF])
            letters = (chr(dice.randint(1, width)) for _ in range(dice.choice([0, 1, 7, 60, 255])))
            return "".join(letter for letter in letters if not "\ud800" <= letter <= "\udfff")

        names = [("", ""), ("a", "Default"), ("ümläut", "🐘"), *[(name(), name()) for _ in range(500)]]
        rows = await store.pool.fetch(
            "select queen.partition_tag(q, p) from unnest($1::text[], $2::text[]) with ordinality n (q, p, i)",
            [queue for queue, _ in names],
            [partition for _, partition in names],
        )
        assert [row[0] for row in rows] == [partition_tag(*pair) for pair in names]

    def test_the_tag_is_what_it_was(self) -> None:
        """Rows hold it: another formula would refuse every one of them."""
        assert [partition_tag("orders", "Default"), partition_tag("a", "b"), partition_tag("ümläut", "🐘")] == [
            1987871483,
            -754314834,
            89708033,
        ]

    def test_the_boundary_between_the_names_counts(self) -> None:
        assert partition_tag("ab", "c") != partition_tag("a", "bc")

    @pytest.mark.parametrize("how", ["a push", "configuring", "sql"])
    async def test_every_partition_gets_its_tag(self, store: Store, how: str) -> None:
        if how == "configuring":
            await store.configure("orders")
        elif how == "sql":
            await store.pool.execute("insert into queen.messages (queue, partition) values ('orders', 'ä')")
        else:
            await store.push([PushItem("orders", b"1", partition) for partition in "äbc"])
        rows = await store.pool.fetch(
            "select p.name, l.tag from queen.partitions p join queen.partition_lookup l using (partition_id)"
        )
        assert rows
        assert [row["tag"] for row in rows] == [partition_tag("orders", row["name"]) for row in rows]

    async def test_names_stay_as_they_are(self, store: Store) -> None:
        """The tag is computed once; no call of ours may give a queue another name."""
        await store.configure("orders")
        options = '{"name": "other", "queue_id": 99}'
        await store.pool.execute("select queen.configure_v1('orders', null, null, $1)", options)
        assert await store.pool.fetchval("select string_agg(name, ',') from queen.queues") == "orders"
