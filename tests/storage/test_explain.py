"""What the hot statements touch at 100,000 partitions: their index, and a handful of rows.

Plans are made inside the procedures, so they are not read but measured: PostgreSQL counts, per transaction, how often
each table was scanned and how many entries of each index were read. A sequential scan, a wrong index or one that
grows with the number of partitions shows there, whatever the plan looks like.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import asyncpg
import pytest

from queenmq.domain.ids import new_id, partition_tag
from queenmq.domain.segments import PushItem
from queenmq.storage.ack import AckItem, ack, release, renew
from queenmq.storage.directory import Directory
from queenmq.storage.pool import connect
from queenmq.storage.pop import PopRequest, PopResult, pop
from queenmq.storage.push import push
from queenmq.storage.transactions import Transaction
from tests.conftest import EMBEDDED, Server

PARTITIONS = 100_000
WITH_WORK = 1_000

BUILD = f"""
    select queen.ensure_partitions_v1('{{big}}', '{{p0}}');
    insert into queen.partitions (queue_id, name)
        select q.queue_id, 'p' || i from queen.queues q, generate_series(1, {PARTITIONS - 1}) i;
    create temp table made as
        select partition_id, queue_id, name, overlay(uid::text placing '7' from 15)::uuid as base from queen.partitions;
    insert into queen.partition_lookup (partition_id, queue_id, last_seq, last_message_id, last_message_created_at, tag)
        select partition_id, queue_id, 2, queen.message_id(base, 1), now(), queen.partition_tag('big', name) from made
        on conflict (partition_id) do update set last_seq = 2, last_message_id = excluded.last_message_id,
            last_message_created_at = excluded.last_message_created_at;
    insert into queen.segments (partition_id, last_seq, created_at, n, base, data)
        select partition_id, 2, now(), 2, queen.message_id(base, 0), convert_to(E'1\\x1e2', 'UTF8') from made;
    insert into queen.dedup (h, partition_id, seq) select queen.message_id(base, 0), partition_id, 1 from made;
    select queen.register_group_v1('big', g, 'all', null) from unnest('{{busy,idle,leased}}'::text[]) g;
    update queen.partition_consumers c set ready_at = null, acked_seq = 2 from queen.consumer_groups_metadata g
        where g.group_id = c.group_id and (g.name = 'idle' or c.partition_id % {PARTITIONS // WITH_WORK} <> 0);
    update queen.partition_consumers c set lease_id = gen_random_uuid(), lease_to = 2,
        lease_expires_at = now() + interval '1 day', ready_at = now() + interval '1 day'
        from queen.consumer_groups_metadata g where g.group_id = c.group_id and g.name = 'leased'
        and c.partition_id % {2 * PARTITIONS // WITH_WORK} = 0;
"""
READY = "select partition_id from queen.partition_consumers where group_id = $1 and ready_at is not null"
COUNTERS = """
    select c.relname as name, c.relkind = 'i' as is_index, pg_stat_get_xact_numscans(c.oid) as scans,
           pg_stat_get_xact_tuples_returned(c.oid) as entries, pg_stat_get_xact_tuples_fetched(c.oid) as fetched
    from pg_class c where c.relnamespace = 'queen'::regnamespace and c.relkind in ('r', 'i')
"""


@pytest.fixture(scope="module")
def big_dsn(servers: dict[str, Server]) -> Iterator[str]:
    """A queue of 100,000 partitions with three groups: two have work in 1,000 of them, half of it leased for one."""
    server = servers[EMBEDDED]
    name = asyncio.run(server.create())
    asyncio.run(_build(server.database(name)))
    yield server.database(name)
    asyncio.run(server.drop(name))


async def _build(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(BUILD)
        await connection.execute("vacuum analyze")
    finally:
        await connection.close()


@dataclass
class Cost:
    """What happened to the tables while something was done."""

    sequential: dict[str, int]
    indexes: set[str]
    rows: int


class Big:
    """A session on the big queue; whatever is measured is rolled back."""

    def __init__(self, db: asyncpg.Connection, groups: dict[str, int], partitions: list[int]) -> None:
        self.db = db
        self.groups = groups
        self.partitions = partitions
        self.directory = Directory()

    async def measure(self, work: Callable[[], Awaitable[object]]) -> Cost:
        await work()  # plans and catalogue lookups are made once per session
        before = await self._counters()
        await work()
        after = await self._counters()
        spent = {
            name: (now[0], *(b - a for a, b in zip(before[name][1:], now[1:], strict=True)))
            for name, now in after.items()
        }
        return Cost(
            {name: scans for name, (index, scans, _, _) in spent.items() if scans and not index},
            {name for name, (index, scans, _, _) in spent.items() if scans and index},
            sum(entries for _, _, entries, _ in spent.values()),
        )

    async def _counters(self) -> dict[str, tuple[bool, int, int, int]]:
        return {row["name"]: tuple(row)[1:] for row in await self.db.fetch(COUNTERS)}

    async def pop(
        self,
        group: str = "busy",
        partition: int | None = None,
        partitions: int = 1,
        batch: int = 100,
        tag: int | None = None,
    ) -> PopResult:
        request = PopRequest([self.groups[group]], partition, batch, partitions, tag=tag)
        return (await pop(self.db, [request]))[0]

    def item(self, number: int) -> PushItem:
        return PushItem("big", b"3", f"p{number}")


@pytest.fixture
async def big(big_dsn: str) -> AsyncIterator[Big]:
    db = await connect(big_dsn)
    groups = {row["name"]: row["group_id"] for row in await db.fetch("select * from queen.consumer_groups_metadata")}
    ready = await db.fetch(READY, groups["busy"])
    transaction = db.transaction()
    await transaction.start()
    yield Big(db, groups, [row["partition_id"] for row in ready])
    await transaction.rollback()
    await db.close()


def assert_cheap(cost: Cost, rows: int, *indexes: str) -> None:
    assert cost.sequential == {}
    assert cost.indexes >= set(indexes)
    assert 0 < cost.rows <= rows


async def test_the_queue_is_big(big: Big) -> None:
    assert len(big.partitions) == WITH_WORK
    assert await big.db.fetchval("select count(*) from queen.partition_consumers") == 3 * PARTITIONS


async def test_discovery(big: Big) -> None:
    cost = await big.measure(lambda: big.pop())
    assert_cheap(cost, 20, "partition_consumers_ready", "segments_pkey", "partition_lookup_pkey", "partitions_pkey")


async def test_discovery_of_several_partitions(big: Big) -> None:
    cost = await big.measure(lambda: big.pop(partitions=10))
    assert_cheap(cost, 100, "partition_consumers_ready")


async def test_discovery_of_nothing(big: Big) -> None:
    async def nothing() -> None:
        assert (await big.pop("idle")).claims == []

    cost = await big.measure(nothing)
    assert_cheap(cost, 5, "partition_consumers_ready")


async def test_discovery_behind_leased_partitions(big: Big) -> None:
    """They lie behind the ready ones in the index: half of the work taken does not make the rest dearer."""
    assert_cheap(await big.measure(lambda: big.pop("leased")), 20, "partition_consumers_ready")


async def test_pop_of_one_partition(big: Big) -> None:
    rows = await big.db.fetch(
        "select partition_id, tag from queen.partition_lookup where partition_id = any ($1)", big.partitions
    )
    partitions = iter(rows)

    async def one() -> None:
        partition, tag = next(partitions)
        assert len((await big.pop(partition=partition, tag=tag)).claims) == 1

    assert_cheap(await big.measure(one), 20, "partition_consumers_pkey", "segments_pkey")


async def test_pop_of_one_partition_with_the_number_of_another(big: Big) -> None:
    async def none() -> None:
        result = await big.pop(partition=big.partitions[0], tag=partition_tag("big", "elsewhere"))
        assert (result.claims, result.reason) == ([], "unknown_partition")

    assert_cheap(await big.measure(none), 20, "partition_consumers_pkey", "partition_lookup_pkey")


async def test_push_and_wake(big: Big) -> None:
    """The partition is drained for all three groups."""
    numbers = iter(range(50_001, 50_010))

    async def one() -> None:
        verdict = (await push(big.db, big.directory, [big.item(next(numbers))]))[0]
        woken = await big.db.fetchval(
            "select count(*) from queen.partition_consumers c join queen.partitions p using (partition_id)"
            " where p.uid = $1::uuid and ready_at is not null",
            verdict.partition_id,
        )
        assert woken == 3

    cost = await big.measure(one)
    assert_cheap(cost, 40, "partition_lookup_pkey", "partition_consumers_pkey", "partitions_queue_id_name_key")


async def test_push_to_many_partitions(big: Big) -> None:
    items = [big.item(number) for number in range(60_000, 60_100)]
    cost = await big.measure(lambda: push(big.db, big.directory, items))
    assert_cheap(cost, 100 * 15, "partition_lookup_pkey", "partition_consumers_pkey")


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
@pytest.mark.parametrize("named", [True, False])
async def test_ack(big: Big, status: str, named: bool) -> None:
    claims = iter((await big.pop(partitions=5)).claims)

    async def one() -> None:
        claim = next(claims)
        last = list(claim.messages())[-1]
        item = AckItem(claim.partition_uid, None, last.seq, status, "busy", claim.lease_id)
        if named:
            item.transaction_id, item.seq = last.transaction_id, None
        assert (await ack(big.db, [item]))[0].success

    assert_cheap(await big.measure(one), 30, "partition_lookup_pkey", "partition_consumers_pkey", "partitions_uid_key")


async def test_renew_and_release(big: Big) -> None:
    claims = [(await big.pop(partitions=3)).claims for _ in range(4)]
    leases = iter([claim[0].lease_id or "" for claim in claims])

    async def both() -> None:
        lease = next(leases)
        assert (await renew(big.db, lease, 1000)).renewed == 3
        assert len(await release(big.db, [lease])) == 3

    assert_cheap(await big.measure(both), 40, "partition_consumers_lease")


async def test_an_unknown_lease(big: Big) -> None:
    async def unknown() -> None:
        assert (await renew(big.db, new_id(), 1000)).renewed == 0

    cost = await big.measure(unknown)
    assert (cost.sequential, cost.indexes, cost.rows) == ({}, {"partition_consumers_lease"}, 0)


async def test_a_transaction(big: Big) -> None:
    claims = iter((await big.pop(partitions=5)).claims)

    async def one() -> None:
        claim = next(claims)
        item = AckItem(claim.partition_uid, None, claim.to_seq, "completed", "busy", claim.lease_id)
        await Transaction(big.directory, [item], [big.item(70_000)], [claim.lease_id or ""]).commit(big.db)

    assert_cheap(await big.measure(one), 50, "partition_lookup_pkey", "partition_consumers_pkey")
