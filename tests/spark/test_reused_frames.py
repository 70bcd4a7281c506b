"""One DataFrame of the source used again and again, in any order: each use must see every message.

Random queries are asked of the source and of plain Python over the same rows. What one query filters must never narrow
another one, nor another branch of the same one. REUSE_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader

from queenmq.domain.segments import PushItem
from queenmq.spark.reader import FilteredReader, MessageReader
from queenmq.storage.store import Store
from tests.spark.reading import Rows, batch, reader

SEED = int(os.environ.get("REUSE_SEED", random.randrange(10**6)))
QUERIES = 16
KEY = ("queue", "partition", "seq")
_views = count()


@dataclass(frozen=True)
class Predicate:
    sql: str
    holds: Callable[[dict[str, Any]], bool]


def drawn_predicate(choice: random.Random, rows: Rows) -> Predicate:
    seq, row = choice.randrange(0, 9), choice.choice(rows)
    moment = row["created_at"]
    literal = f"TIMESTAMP '{moment.isoformat()}'"
    simple = (
        Predicate(f"seq < {seq}", lambda each: each["seq"] < seq),
        Predicate(f"seq >= {seq}", lambda each: each["seq"] >= seq),
        Predicate(f"partition = '{row['partition']}'", lambda each: each["partition"] == row["partition"]),
        Predicate("partition IN ('p0', 'p3', 'none')", lambda each: each["partition"] in ("p0", "p3", "none")),
        Predicate(f"queue = '{row['queue']}'", lambda each: each["queue"] == row["queue"]),
        Predicate(f"partition_id = '{row['partition_id']}'", lambda each: each["partition_id"] == row["partition_id"]),
        Predicate(f"created_at > {literal}", lambda each: each["created_at"] > moment),
        Predicate(f"created_at <= {literal}", lambda each: each["created_at"] <= moment),
        Predicate(f"NOT (seq = {seq})", lambda each: each["seq"] != seq),
        Predicate("payload LIKE '%7%'", lambda each: "7" in each["payload"]),
        Predicate("trace_id IS NULL", lambda each: each["trace_id"] is None),
    )
    one, other = choice.sample(simple, 2)
    return choice.choice(
        (
            one,
            Predicate(f"({one.sql}) AND ({other.sql})", lambda each: one.holds(each) and other.holds(each)),
            Predicate(f"({one.sql}) OR ({other.sql})", lambda each: one.holds(each) or other.holds(each)),
        )
    )


@dataclass(frozen=True)
class Asked:
    """A query in Spark, and the rows it must return."""

    frame: DataFrame
    rows: Rows
    said: str


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


class Queries:
    """Draws queries over one DataFrame and the rows that it holds."""

    def __init__(self, spark: SparkSession, frame: DataFrame, rows: Rows, choice: random.Random) -> None:
        self._spark = spark
        self.whole = Asked(frame, rows, "d")
        self._choice = choice
        self.cached: list[DataFrame] = []

    def draw(self, depth: int) -> Asked:
        if depth == 0 or self._choice.random() < 0.15:
            return self.whole
        joins = (self._union, self._semi, self._anti, self._join)
        return self._choice.choice((self._filtered, *joins, self._view, self._subquery, self._cached))(depth - 1)

    def _filtered(self, depth: int) -> Asked:
        of, where = self.draw(depth), drawn_predicate(self._choice, self.whole.rows)
        return Asked(of.frame.where(where.sql), list(filter(where.holds, of.rows)), f"{of.said}.where({where.sql!r})")

    def _union(self, depth: int) -> Asked:
        one, other = self.draw(depth), self.draw(depth)
        return Asked(one.frame.union(other.frame), one.rows + other.rows, f"({one.said} union {other.said})")

    def _semi(self, depth: int) -> Asked:
        one, other = self.draw(depth), self.draw(depth)
        there = set(map(place, other.rows))
        rows = [row for row in one.rows if place(row) in there]
        frame = one.frame.join(other.frame, list(KEY), "left_semi")
        return Asked(frame.select(one.frame.columns), rows, f"({one.said} semi {other.said})")

    def _anti(self, depth: int) -> Asked:
        one, other = self.draw(depth), self.draw(depth)
        there = set(map(place, other.rows))
        rows = [row for row in one.rows if place(row) not in there]
        frame = one.frame.join(other.frame, list(KEY), "left_anti")
        return Asked(frame.select(one.frame.columns), rows, f"({one.said} anti {other.said})")

    def _join(self, depth: int) -> Asked:
        one, other = self.draw(depth), self.draw(depth)
        times = Counter(map(place, other.rows))
        rows = [row for row in one.rows for _ in range(times[place(row)])]
        frame = one.frame.join(other.frame.select(*KEY), list(KEY))
        return Asked(frame.select(one.frame.columns), rows, f"({one.said} join {other.said})")

    def _view(self, depth: int) -> Asked:
        of, where = self.draw(depth), drawn_predicate(self._choice, self.whole.rows)
        name = f"reused_{next(_views)}"
        of.frame.createOrReplaceTempView(name)
        frame = self._spark.sql(f"SELECT * FROM {name} WHERE {where.sql}")
        return Asked(frame, list(filter(where.holds, of.rows)), f"view({of.said}, {where.sql!r})")

    def _subquery(self, depth: int) -> Asked:
        of, inner = self.draw(depth), self.draw(depth)
        outer, within = (f"reused_{next(_views)}" for _ in range(2))
        of.frame.createOrReplaceTempView(outer)
        inner.frame.createOrReplaceTempView(within)
        frame = self._spark.sql(
            f"SELECT * FROM {outer} WHERE seq IN (SELECT seq FROM {within}) "
            f"AND seq <= (SELECT coalesce(max(seq), 0) FROM {within})"
        )
        seqs = {row["seq"] for row in inner.rows}
        rows = [row for row in of.rows if row["seq"] in seqs]
        return Asked(frame, rows, f"subquery({of.said}, {inner.said})")

    def _cached(self, depth: int) -> Asked:
        of = self.draw(depth)
        self.cached.append(of.frame.cache())
        return Asked(self.cached[-1], of.rows, f"cached({of.said})")


async def fill(queue: Store) -> None:
    for number in range(8):
        await queue.push(
            [
                PushItem(queue=name, partition=f"p{part}", payload=b'{"n": %d}' % (number * 5 + part))
                for name in ("orders", "billing")
                for part in range(4)
            ]
        )


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("queen").options(databaseUrl=url, queue="*", numSplits="2", **options).load()


def found(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.select(*KEY).collect())


async def test_random_queries_on_one_frame_see_what_a_copy_sees(
    spark: SparkSession, database: str, queue: Store
) -> None:
    print(f"REUSE_SEED={SEED}")
    await fill(queue)
    rows = batch(database)
    assert len(rows) == 64
    drawing = Queries(spark, load(spark, database), rows, random.Random(SEED))
    try:
        for number in range(QUERIES):
            asked = drawing.draw(depth=1 + number % 3)
            assert found(asked.frame) == Counter(map(place, asked.rows)), f"REUSE_SEED={SEED}: {asked.said}"
            if number % 4 == 0:
                assert drawing.whole.frame.count() == 64, f"REUSE_SEED={SEED}: d after {asked.said}"
    finally:
        for frame in drawing.cached:
            frame.unpersist()


async def test_the_uses_that_once_were_wrong(spark: SparkSession, database: str, queue: Store) -> None:
    await fill(queue)
    frame = load(spark, database)
    few, one = frame.where("seq < 3"), frame.where("partition = 'p0'")
    assert few.count() == 16
    assert frame.count() == 64
    assert one.union(frame).count() == 16 + 64
    assert frame.join(one, list(KEY), "left_anti").count() == 48
    assert frame.join(few.select(*KEY), list(KEY)).count() == 16
    frame.createOrReplaceTempView("reused")
    assert spark.sql("SELECT * FROM reused WHERE seq > (SELECT min(seq) FROM reused WHERE seq > 2)").count() == 40


async def test_with_pushdown_one_query_of_a_load_is_right(spark: SparkSession, database: str, queue: Store) -> None:
    await fill(queue)
    narrow = load(spark, database, pushdown="true").where("partition = 'p0' AND seq < 3")
    assert narrow.count() == 4
    assert "Filter " not in narrow._jdf.queryExecution().executedPlan().toString()
    plain = load(spark, database).where("partition = 'p0' AND seq < 3")
    assert plain.count() == 4
    assert "Filter " in plain._jdf.queryExecution().executedPlan().toString()


async def test_a_reader_needs_no_setting_of_the_session(spark: SparkSession, database: str, queue: Store) -> None:
    """Spark refuses readers that have pushFilters where its setting is off, as it is by default."""
    await fill(queue)
    setting = "spark.sql.python.filterPushdown.enabled"
    before = str(spark.conf.get(setting))
    spark.conf.set(setting, "false")
    try:
        assert load(spark, database).where("seq < 3").count() == 16
    finally:
        spark.conf.set(setting, before)


def test_only_the_option_brings_push_filters() -> None:
    url = "postgresql://queen@db/queen"
    plain, filtered = reader(url), reader(url, pushdown="true")
    assert type(plain) is MessageReader
    assert type(plain).pushFilters is DataSourceReader.pushFilters
    assert isinstance(filtered, FilteredReader)
