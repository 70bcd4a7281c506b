"""What does not grow: discovery with the number of partitions, hot tables with the number of messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from queenmq import sql
from queenmq.domain.segments import PushItem
from queenmq.storage.ack import call_plain
from queenmq.storage.directory import Directory
from queenmq.storage.pop import PopRequest, pop
from queenmq.storage.push import push
from queenmq.storage.tidy import Tidier

from .measure import BackendClock, Case, run
from .workload import QUEUE, group_id, items, payload, push_call

_SCRIPTS = Path(__file__).with_name("sql")
HOT_TABLES = ("partition_lookup", "partition_consumers")
SMALL, LARGE, WITH_WORK = 100, 100_000, 1_000
FLUSHES = 200


@dataclass(frozen=True, slots=True)
class Growth:
    table: str
    before: int
    after: int

    @property
    def ratio(self) -> float:
        return self.after / self.before


async def discovery(
    connection: asyncpg.Connection, rounds: int, progress: Callable[[str], None]
) -> tuple[float, float]:
    """Microseconds of a queue-wide pop at 100 partitions, and at 100,000 of which 1,000 have work."""
    cases = []
    for queue, partitions in (("few", SMALL), ("many", LARGE)):
        progress(f"making {partitions:,} partitions")
        cases.append(_discovery_case(connection, queue, await _fill(connection, queue, partitions)))
    await connection.execute("analyze queen.partition_consumers")
    await run(cases, rounds, progress)
    return cases[0].cost, cases[1].cost


async def _fill(connection: asyncpg.Connection, queue: str, partitions: int) -> int:
    for start in range(0, partitions, 10_000):
        names = [f"p{n}" for n in range(start, min(start + 10_000, partitions))]
        await connection.fetch(sql.query("ensure_partitions"), [queue] * len(names), names)
    group = await group_id(connection, queue, "workers", "all")
    step = max(1, partitions // WITH_WORK)
    await push(connection, Directory(), [PushItem(queue, payload(n), f"p{n}") for n in range(0, partitions, step)])
    return group


def _discovery_case(connection: asyncpg.Connection, queue: str, group: int) -> Case:
    pops = 50

    async def before() -> None:
        await connection.execute((_SCRIPTS / "free_leases.sql").read_text(), group)

    async def work() -> int:
        for _ in range(pops):
            await pop(connection, [PopRequest([group])])
        return pops

    return Case(queue, BackendClock(connection), work, before)


async def bloat(connection: asyncpg.Connection, progress: Callable[[str], None]) -> list[Growth]:
    """Sizes of the hot tables before and after 200,000 messages were pushed, popped and acked over 100 partitions."""
    directory = Directory()
    await push_call(connection, directory, items(100))
    group = await group_id(connection, QUEUE, "bloat", "new")
    await _cycle(connection, directory, group)
    before = await _sizes(connection)
    tidier = Tidier()
    for number in range(FLUSHES):
        await _cycle(connection, directory, group)
        tidier.note(300)
        if tidier.due:
            await tidier.run(connection)
        if number % 20 == 0:
            progress(f"bloat: flush {number} of {FLUSHES}")
    after = await _sizes(connection)
    return [Growth(table, before[table], after[table]) for table in HOT_TABLES]


async def _cycle(connection: asyncpg.Connection, directory: Directory, group: int) -> None:
    """Push 1000 messages over 100 partitions; pop and ack them all."""
    await connection.fetch(*await push_call(connection, directory, items(100)))
    results = await pop(connection, [PopRequest([group], batch=1000) for _ in range(100)])
    claims = [claim for result in results for claim in result.claims]
    await call_plain(
        connection,
        [claim.partition_id for claim in claims],
        [group] * len(claims),
        [claim.lease_id for claim in claims],
        [claim.to_seq for claim in claims],
    )


async def _sizes(connection: asyncpg.Connection) -> dict[str, int]:
    rows = await connection.fetch((_SCRIPTS / "sizes.sql").read_text(), list(HOT_TABLES))
    return {row["name"]: row["bytes"] for row in rows}
