"""PostgreSQL CPU per message of push, pop + ack, discovery and retention, against a plain insert of rows (R).

R is what a queue would pay that keeps one row per message and nothing else: `INSERT … SELECT FROM unnest` of 1000 rows
(id, partition, transactionId, created_at, payload as jsonb) into a table with only a primary key. R with the payload as
plain text, which PostgreSQL then neither checks nor can query, is printed beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from queenmq import sql
from queenmq.storage.ack import call_plain
from queenmq.storage.directory import Directory
from queenmq.storage.pop import PopRequest, pop
from queenmq.storage.retention import sweep_dedup, trim

from .measure import BackendClock, Case, Work, run
from .workload import MESSAGES, QUEUE, group_id, items, push_call, row_arguments

GROUP = "workers"
_KEEP_NOTHING = '{"retention_enabled": true, "retention_seconds": 1, "dedup_window_seconds": 1}'
RETENTION_BATCH = 10_000  # the default of RETENTION_BATCH_SIZE
_SCRIPTS = Path(__file__).with_name("sql")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: microseconds per unit, the ratio to its baseline, and the target."""

    work: str
    microseconds: float
    ratio: float
    baseline: str
    target: float | None


class StorageCost:
    """`rows` is a connection for R alone: memory that other calls have left to a session spares R its page faults, and
    those are a fifth of what it costs."""

    def __init__(self, connection: asyncpg.Connection, rows: asyncpg.Connection) -> None:
        self._db = connection
        self._clock = BackendClock(connection)
        self._rows = rows
        self._rows_clock = BackendClock(rows)
        self._directory = Directory()
        self._arguments: tuple[Any, ...] = ()
        self._group_id = 0

    async def measure(self, rounds: int, progress: Callable[[str], None]) -> list[Row]:
        await self._db.execute((_SCRIPTS / "rows.sql").read_text())
        await self._prepare_queue()
        text, jsonb = self._insert_case("text"), self._insert_case("jsonb")
        pushes = [
            self._push_case("push, dedup on, 1000 messages over 100 partitions", 100, named=True),
            self._push_case("push, dedup on, 1000 messages to 1 partition", 1, named=True),
            self._push_case("push, no transactionId given, 1000 to 1 partition", 1, named=False),
        ]
        together = self._case(
            "pop + ack, 10 requests x 100 messages, one call each", self._pop_and_ack_together, self._stock
        )
        apart = self._case(
            "pop + ack, 10 requests x 100 messages, a call per request", self._pop_and_ack_apart, self._stock
        )
        retention = self._case("retention delete, per message", self._retain, self._expire)
        cases = [text, jsonb, *pushes, together, apart, retention]
        await run(cases, rounds, progress)
        forgetting = await self._forget()
        targets = [1.2, 0.9, 0.3, 0.5, None, 0.1]
        rows = [Row("R: one row per message, payload jsonb", jsonb.cost, 1, "R", None)]
        rows += [
            Row(case.name, case.cost, case.cost / jsonb.cost, "R", target)
            for case, target in zip(cases[2:], targets, strict=True)
        ]
        rows.append(Row("forgetting a transactionId after retention", forgetting, forgetting / jsonb.cost, "R", None))
        rows.append(Row("R with the payload as text", text.cost, text.cost / jsonb.cost, "R", None))
        return rows

    async def _prepare_queue(self) -> None:
        await self._db.fetch(sql.query("configure"), QUEUE, None, None, "{}")
        await self._db.fetch(sql.query("configure"), "expired", None, None, _KEEP_NOTHING)
        await push_call(self._db, self._directory, items(100))
        await push_call(self._db, self._directory, items(10, prefix="stock"))
        self._group_id = await group_id(self._db, QUEUE, GROUP, "new")

    def _insert_case(self, kind: str) -> Case:
        statement = (_SCRIPTS / f"insert_rows_{kind}.sql").read_text()

        async def before() -> None:
            self._arguments = row_arguments()

        async def work() -> int:
            await self._rows.execute(statement, *self._arguments)
            return MESSAGES

        return Case(kind, self._rows_clock, work, before)

    def _push_case(self, name: str, partitions: int, *, named: bool) -> Case:
        async def before() -> None:
            self._arguments = await push_call(self._db, self._directory, items(partitions, named=named))

        async def work() -> int:
            await self._db.fetch(*self._arguments)
            return MESSAGES

        return self._case(name, work, before)

    def _case(self, name: str, work: Work, before: Callable[[], Awaitable[None]]) -> Case:
        return Case(name, self._clock, work, before)

    async def _stock(self) -> None:
        """Ten partitions with a hundred messages each, all others drained."""
        await self._db.execute((_SCRIPTS / "drain.sql").read_text(), self._group_id)
        await self._db.fetch(*await push_call(self._db, self._directory, items(10, prefix="stock")))

    async def _pop(self, requests: int) -> list[tuple[int, str, int]]:
        results = await pop(self._db, [PopRequest([self._group_id], batch=100) for _ in range(requests)])
        claims = [claim for result in results for claim in result.claims]
        return [(claim.partition_id, claim.lease_id or "", claim.to_seq) for claim in claims]

    async def _ack(self, claims: list[tuple[int, str, int]]) -> None:
        settled = await call_plain(
            self._db,
            [pid for pid, _, _ in claims],
            [self._group_id] * len(claims),
            [lease for _, lease, _ in claims],
            [upto for _, _, upto in claims],
        )
        assert len(settled) == len(claims)

    async def _pop_and_ack_together(self) -> int:
        await self._ack(await self._pop(10))
        return 1000

    async def _pop_and_ack_apart(self) -> int:
        for _ in range(10):
            await self._ack(await self._pop(1))
        return 1000

    async def _expire(self) -> None:
        """One retention step's worth of messages, in ten partitions of a queue whose retention has passed."""
        for _ in range(RETENTION_BATCH // MESSAGES):
            messages = items(10)
            for item in messages:
                item.queue = "expired"
            await self._db.fetch(*await push_call(self._db, self._directory, messages))
        await self._db.execute((_SCRIPTS / "expire.sql").read_text())

    async def _forget(self) -> float:
        """Microseconds per transactionId that the sweep removes, over one pass."""
        start, removed, more = self._clock.now(), 0, True
        while more:
            step = await sweep_dedup(self._db)
            removed, more = removed + step.removed, step.more
        return (self._clock.now() - start) / removed

    async def _retain(self) -> int:
        return (await trim(self._db, batch=RETENTION_BATCH)).messages
