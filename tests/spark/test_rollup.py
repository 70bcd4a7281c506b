"""Roll-ups of metrics, against a plain computation in Python."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenmq.spark.pipelines.base import Arguments, Quiet
from queenmq.spark.pipelines.rollup import LATENESS, RollupResult, rollup, run
from queenmq.storage import analytics, metrics
from queenmq.storage.analytics import WIDTHS, RolledUp, floor
from queenmq.storage.metrics import Bucket, MetricRow, RollupRow
from queenmq.storage.store import Store

DAY = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
MINUTE = timedelta(minutes=1)
FOREVER = (DAY - timedelta(days=9), DAY + timedelta(days=9999))
Key = tuple[Bucket, datetime, str, str]


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = await Store.open(database)
    yield opened
    await opened.close()


async def rolled(spark: SparkSession, database: str, **bounds: Any) -> RollupResult:
    """In a thread, as Spark's calls block."""
    return await asyncio.to_thread(lambda: rollup(spark, database_url=database, **bounds))


async def table(store: Store) -> dict[Key, Any]:
    return {
        (bucket, row.at, row.hostname, row.scope): row.metrics
        for bucket in WIDTHS
        for row in await metrics.read(store.pool, *FOREVER, bucket=bucket)
    }


def expected(rows: list[MetricRow]) -> dict[Key, dict[str, Any]]:
    values: dict[tuple[Key, str], list[float]] = defaultdict(list)
    for row in rows:
        for bucket in WIDTHS:
            for host in ("", row.hostname):
                for name, value in row.metrics.items():
                    values[(bucket, floor(row.at, bucket), host, row.scope), name].append(float(value))
    found: dict[Key, dict[str, Any]] = defaultdict(dict)
    for (key, name), numbers in values.items():
        found[key][name] = {
            "count": len(numbers),
            "sum": pytest.approx(sum(numbers)),
            "min": min(numbers),
            "max": max(numbers),
            **{f"p{p}": pytest.approx(percentile(numbers, p)) for p in (50, 95, 99)},
        }
    return dict(found)


def percentile(numbers: list[float], p: int) -> float:
    if len(numbers) == 1:
        return numbers[0]
    return statistics.quantiles(numbers, n=100, method="inclusive")[p - 1]


def some(rng: random.Random, count: int, days: int = 2) -> list[MetricRow]:
    rows = {}
    for _ in range(count):
        at = DAY + timedelta(seconds=rng.randrange(days * 86400))
        place = (at, rng.choice("ab"), rng.choice("12"), rng.choice(["", "orders"]))
        rows[place] = MetricRow(*place[:3], {"pushMessages": rng.randrange(100), "cpu": rng.random()}, place[3])
    return list(rows.values())


async def test_every_bucket_holds_what_its_rows_say(spark: SparkSession, database: str, store: Store) -> None:
    """Then everything again, with rows that came late: they are counted, and nothing is counted twice."""
    rows = some(random.Random(7), 300)
    late, first = rows[:40], rows[40:]
    await metrics.insert(store.pool, first)
    result = await rolled(spark, database)
    assert await table(store) == expected(first)
    assert sum(result.rows.values()) == len(expected(first))
    await metrics.insert(store.pool, late)
    result = await rolled(spark, database, since=DAY)
    assert await table(store) == expected(rows)
    assert result.rows["day"] == len([key for key in expected(rows) if key[0] == "day"])


async def test_a_run_goes_on_where_the_last_one_ended(spark: SparkSession, database: str, store: Store) -> None:
    """Less the allowance for late rows; whole buckets, also the one that is not over."""
    now = datetime.now(UTC).replace(microsecond=0)
    old, recent = now - LATENESS - timedelta(days=3), now - LATENESS / 2
    await metrics.insert(store.pool, [MetricRow(at, "a", "1", {"n": 1}) for at in (old, recent, now)])
    first = await rolled(spark, database)
    assert first.until >= now
    reach = await analytics.rolled_up(store.pool)
    assert reach is not None
    assert (reach.until, reach.until - reach.settled) == (first.until, LATENESS)
    await metrics.insert(store.pool, [MetricRow(at, "a", "2", {"n": 2}) for at in (old, recent, now)])
    second = await rolled(spark, database)
    assert second.since == first.until - LATENESS
    found = await table(store)
    assert found["minute", floor(recent, "minute"), "", ""]["n"]["sum"] == 3
    assert found["day", floor(now, "day"), "", ""]["n"]["max"] == 2
    assert found["day", floor(old, "day"), "", ""]["n"]["sum"] == 1  # later than the allowance


async def test_a_run_up_to_an_earlier_time_takes_nothing_back(spark: SparkSession, database: str, store: Store) -> None:
    """What is rolled up already stays known as such, or `analytics` would count it in messages that are gone."""
    reach = RolledUp(DAY + 600 * MINUTE, DAY + 480 * MINUTE)
    await analytics.put_rolled_up(store.pool, reach)
    await rolled(spark, database, until=DAY + 540 * MINUTE)
    assert await analytics.rolled_up(store.pool) == reach


async def test_a_roll_up_of_rows_that_retention_removed_stays(spark: SparkSession, database: str, store: Store) -> None:
    rows = [MetricRow(DAY + n * MINUTE, "a", "1", {"n": n, "gone": n} if n < 2 else {"n": n}) for n in range(4)]
    await metrics.insert(store.pool, rows)
    await rolled(spark, database)
    await store.pool.execute("delete from queen.metrics_history where at < $1", DAY + 2 * MINUTE)
    await metrics.insert(store.pool, [MetricRow(rows[3].at, "a", "1", {"n": 30, "fresh": 1})])
    await rolled(spark, database, since=DAY)
    found = await table(store)
    day = found["day", DAY, "", ""]
    assert (day["n"]["count"], day["n"]["sum"], day["gone"]["count"], day["fresh"]["count"]) == (4, 6, 2, 1)
    assert found["minute", DAY, "", ""]["n"]["count"] == 1
    assert found["minute", DAY + 3 * MINUTE, "", ""]["n"]["sum"] == 30  # as many rows as before: corrected


async def test_a_range_is_widened_to_whole_buckets(spark: SparkSession, database: str, store: Store) -> None:
    rows = [MetricRow(DAY + timedelta(hours=h), "a", "1", {"n": 1}) for h in range(48)]
    await metrics.insert(store.pool, rows)
    noon = DAY + timedelta(hours=12, minutes=30)
    outcome = await asyncio.to_thread(
        run, spark, Arguments(database_url=database, since=noon, until=noon + timedelta(hours=1)), events := Quiet()
    )
    found = await table(store)
    assert {key[:2]: value["n"]["count"] for key, value in found.items() if key[2] == ""} == {
        ("minute", DAY + timedelta(hours=13)): 1,
        ("hour", DAY + timedelta(hours=12)): 1,
        ("hour", DAY + timedelta(hours=13)): 1,
        ("day", DAY): 24,
    }
    assert outcome.rows == events.seen[-1].rows == len(found)
    assert "2 minute rows" in outcome.summary[0]
    assert await analytics.rolled_up(store.pool) is None  # a range that was asked for says nothing of the rest


async def test_merging_keeps_the_fuller_of_two(store: Store) -> None:
    async def merged(*made: Any) -> Any:
        await analytics.merge_rollup(store.pool, [RollupRow("minute", DAY, each, "a", "orders") for each in made])
        return (await table(store))["minute", DAY, "a", "orders"]

    assert await merged({"n": {"count": 2, "sum": 2}}) == {"n": {"count": 2, "sum": 2}}
    assert await merged({"n": {"count": 1, "sum": 1}}) == {"n": {"count": 2, "sum": 2}}
    assert await merged({"n": {"count": 2, "sum": 5}}) == {"n": {"count": 2, "sum": 5}}
    assert await merged({"m": {"count": 1, "sum": 1}}) == {"n": {"count": 2, "sum": 5}, "m": {"count": 1, "sum": 1}}
    assert (await merged({"n": {"count": 3, "sum": 0}}))["n"] == {"count": 3, "sum": 0}
