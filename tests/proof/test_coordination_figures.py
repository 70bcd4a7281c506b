"""The benchmarks of coordination count what they say they count: statements of one database, packets of one server."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from benchmarks.coordination import gateways
from benchmarks.coordination.gateways import notifications
from benchmarks.lab import open_lab
from benchmarks.load.connection import BadAnswer
from benchmarks.load.counting import Counted, statements

PUSHES = 20
TIMES = 5  # that a piece of news is sent


async def test_the_one_who_waits_is_told_and_the_blind_tells_all() -> None:
    assert await notifications(4, PUSHES, blind=False) == TIMES * PUSHES
    assert await notifications(4, PUSHES, blind=True) == 3 * TIMES * PUSHES


async def test_news_that_was_held_back_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "_TOGETHER", 200)
    with pytest.raises(BadAnswer, match="of 200 pushes told to the one"):
        await notifications(2, 200, blind=False)


def test_every_statement_of_the_database_counts_once_and_counting_does_not() -> None:
    with open_lab(count_statements=True) as (lab, _):
        lab.admin("create database counted")
        counted = Counted(statistics=lab.statistics, database="counted")
        assert asyncio.run(_count(counted, lab.database("counted"))) == 4


async def _count(counted: Counted, dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        async with statements(counted) as counter:
            before = await counter.so_far()
            async with connection.transaction():  # begin, what is inside, commit
                await connection.execute("do $$ begin perform 1; perform 2; end $$")
            assert await counter.so_far() == before + 3
            await connection.fetchval("select 1")
            return await counter.so_far() - before
    finally:
        await connection.close()
