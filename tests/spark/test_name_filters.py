"""Names travel to PostgreSQL as one text; a statement takes it apart once, never for each row.

The plans say so: a cast of the whole text inside the filter of a scan is evaluated for every row of the scan, and so is
a subquery that is not hashed.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from queenmq.spark import connecting, datasets
from queenmq.spark.options import read_options
from queenmq.spark.planning import Bounds, matching, warn_of_unknown
from queenmq.storage.store import Store
from tests.spark.test_datasets import reader, rows

NAMES = 2_000
QUEUES = 20
PER_QUEUE = 500
_COPY = "adbc.postgresql.use_copy"
_PARSED = re.compile(
    r"(?<!'\{\}'::text)\[\]|jsonb\)? \?|set_(queues|partitions|patterns)'::text\)+::jsonb|(?<!hashed )SubPlan"
)


class Explaining:
    """A cursor that keeps the filters in the plan of each statement before it runs it."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.filters: list[str] = []

    def execute(self, statement: str, parameters: Any = None) -> None:
        self._cursor.adbc_statement.set_options(**{_COPY: "false"})
        self._cursor.execute(f"explain (format json) {statement}", parameters=parameters)
        ((plan,),) = self._cursor.fetchall()
        self._cursor.adbc_statement.set_options(**{_COPY: "true"})
        self.filters += filters(json.loads(plan) if isinstance(plan, str) else plan)
        self._cursor.execute(statement, parameters=parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def filters(plan: Any) -> Iterator[str]:
    if isinstance(plan, list):
        for each in plan:
            yield from filters(each)
    elif isinstance(plan, dict):
        for name, value in plan.items():
            if isinstance(value, str) and name.endswith(("Filter", "Cond")):
                yield value
            else:
                yield from filters(value)


@pytest.fixture
async def partitions(database: str) -> AsyncIterator[list[str]]:
    """The ids of many partitions of some queues."""
    store = await Store.open(database)
    for number in range(1, QUEUES + 1):
        await store.configure(f"q{number}")
    made = await store.pool.fetch(
        "insert into queen.partitions (queue_id, name) select q.queue_id, 'p' || n"
        " from queen.queues q cross join generate_series(1, $1) n returning partition_id, uid::text",
        PER_QUEUE,
    )
    await store.pool.execute(
        "insert into queen.partition_lookup (partition_id, queue_id)"
        " select partition_id, queue_id from queen.partitions on conflict do nothing"
    )
    await store.pool.execute("analyze queen.queues, queen.partitions, queen.partition_lookup")
    yield [row["uid"] for row in made]
    await store.close()


async def test_reads_take_names_apart_once(database: str, partitions: list[str]) -> None:
    names = tuple(f"p{n}" for n in range(1, NAMES))
    queues = json.dumps([*(f"x{n}" for n in range(NAMES)), "q1", "q2", "q3?"])
    options = read_options({"databaseUrl": database, "queue": queues, "partitions": json.dumps(names)}, {})
    bounds = Bounds(queues=("q1", "q2", *(f"z{n}" for n in range(NAMES))), partitions=names, uids=tuple(partitions))
    with connecting.arrow_reads(database) as cursor:
        explaining: Any = Explaining(cursor)
        assert len(matching(explaining, options).pids) == 2 * PER_QUEUE
        assert len(matching(explaining, options, bounds).pids) == 2 * PER_QUEUE
        warn_of_unknown(explaining, options.queues, "it has no effect")
    assert sum("hashed SubPlan" in each for each in explaining.filters) >= 3
    assert [each for each in explaining.filters if _PARSED.search(each)] == []


@pytest.mark.parametrize("dataset", ["dead_letters", "lag", "partitions", "metrics"])
async def test_datasets_take_names_apart_once(
    database: str, partitions: list[str], dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Explaining] = []

    @contextmanager
    def explaining(url: str) -> Iterator[Any]:
        with connecting.arrow_reads(url) as cursor:
            seen.append(Explaining(cursor))
            yield seen[-1]

    monkeypatch.setattr(datasets, "arrow_reads", explaining)
    wanted = {"queue": json.dumps(["q1", "q2", "zz*"]), "partitions": json.dumps([f"p{n}" for n in range(1, NAMES)])}
    if dataset == "metrics":
        del wanted["partitions"]
    found = rows(reader(database, dataset, **wanted))
    assert len(found) == (2 * PER_QUEUE if dataset == "partitions" else 0)
    used = [each for cursor in seen for each in cursor.filters]
    assert sum("hashed SubPlan" in each for each in used) >= 1
    assert [each for each in used if _PARSED.search(each)] == []


async def test_the_check_finds_an_array_that_is_parsed_for_each_row(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        for condition in ("name = any ($1::text::text[])", "$1::text::jsonb ? name"):
            statement = f"explain (format json) select from queen.partitions where {condition}"
            found = list(filters(json.loads(await connection.fetchval(statement, "{}"))))
            assert [each for each in found if _PARSED.search(each)] == found != []
    finally:
        await connection.close()
