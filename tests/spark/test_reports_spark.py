"""The pipelines that report: lag, skew and dead letters, on small data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from queenmq.domain.segments import PushItem
from queenmq.spark.errors import OptionError
from queenmq.spark.pipelines import dlq_report as dlq_pipeline
from queenmq.spark.pipelines import lag as lag_pipeline
from queenmq.spark.pipelines import skew as skew_pipeline
from queenmq.spark.pipelines.base import Arguments, Progress, Quiet
from queenmq.spark.pipelines.dlq_report import dlq_report
from queenmq.spark.pipelines.lag import KEPT, lag
from queenmq.spark.pipelines.reporting import run_of
from queenmq.spark.pipelines.skew import queue_skew, skew
from queenmq.spark.reports.files import Report
from queenmq.storage import analytics
from queenmq.storage.metrics import RollupRow
from queenmq.storage.store import Store
from tests.spark.test_datasets import give_up
from tests.storage.time_travel import age_messages

EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = await Store.open(database)
    yield opened
    await opened.close()


def rows(table: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(table.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def page(path: Path) -> str:
    html = path.read_text()
    assert "<script" not in html
    return html


class TestLag:
    @pytest.fixture
    async def groups(self, store: Store) -> Store:
        for n in range(3):
            await store.push([PushItem("orders", b"1", f"p{n}") for _ in range(n + 1)])
        await store.push([PushItem("other", b"1")])
        await store.pop("orders", "billing", batch=9, partition="p0", auto_ack=True)
        await store.pop("orders", EVIL, batch=1)
        await store.pop("other", "audit", batch=9, auto_ack=True)
        return store

    async def test_samples_add_up(self, spark: SparkSession, database: str, groups: Store, tmp_path: Path) -> None:
        now = datetime(2026, 1, 15, 23, 59, tzinfo=UTC)
        moments = [now - KEPT - timedelta(days=1), now - timedelta(minutes=5), now, now + timedelta(minutes=5)]
        await analytics.merge_rollup(
            groups.pool,
            [RollupRow("hour", now - timedelta(hours=2), {"maxLagMs": {"count": 1, "max": 1500}}, "", "orders")],
        )

        def sampled(moment: datetime) -> Any:
            return lag(spark, out=tmp_path, database_url=database, now=moment)

        *_, report = [await asyncio.to_thread(sampled, moment) for moment in moments]
        table = rows(report.path_table)
        assert report.rows == 3
        assert sorted({row["sampled_at"] for row in table}) == moments[1:]  # the oldest is kept no longer
        assert {(row["consumer_group"], row["queue"]): row["lag"] for row in table[-3:]} == {
            ("billing", "orders"): 5,
            (EVIL, "orders"): 6,
            ("audit", "other"): 0,
        }
        assert [
            (row["partitions"], row["lagging_partitions"]) for row in table if row["consumer_group"] == "billing"
        ] == [(3, 2)] * 3
        html = page(report.path_html)
        assert html.count("<svg") == 3  # messages, seconds, and what consumers measured
        assert "&lt;script&gt;" in html
        assert len(report.path_csv.read_text().splitlines()) == 4
        assert spark.read.parquet(str(report.path_table)).count() == 9

    async def test_one_queue_has_a_report_of_its_own(
        self, spark: SparkSession, database: str, groups: Store, tmp_path: Path
    ) -> None:
        await asyncio.to_thread(lambda: lag(spark, out=tmp_path, database_url=database))
        report = await asyncio.to_thread(lambda: lag(spark, out=tmp_path, database_url=database, queue="oth*"))
        assert (report.rows, len(rows(report.path_table))) == (1, 4)
        html = page(report.path_html)
        assert "billing" not in html
        assert "No partition is behind." in html

    async def test_it_goes_on_at_an_interval_until_it_is_stopped(
        self, spark: SparkSession, database: str, groups: Store, tmp_path: Path
    ) -> None:
        class Twice(Quiet):
            def progress(self, progress: Progress) -> None:
                self.seen.append(progress)
                self.stopping = len(self.seen) == 2

        arguments = Arguments(out=str(tmp_path), database_url=database, interval_seconds=0.01)
        outcome = await asyncio.to_thread(lag_pipeline.run, spark, arguments, events := Twice())
        assert (outcome.status, outcome.rows) == ("stopped", 6)
        assert [each.rows for each in events.seen] == [3, 6]
        assert str(tmp_path / "lag.html") in outcome.summary[1]


class TestSkew:
    async def test_hot_partitions_and_uneven_queues(
        self, spark: SparkSession, database: str, store: Store, tmp_path: Path
    ) -> None:
        for partition, count in ((EVIL, 97), ("b", 1), ("c", 1), ("d", 1), ("e", 0)):
            await store.push([PushItem("uneven", b'"x"', partition) for _ in range(max(count, 1))])
            if count == 0:
                await age_messages(store.pool, 2 * 3600, "uneven", "e")
        await store.push([PushItem("even", b"1", f"p{n}") for n in range(4)])
        outcome = await asyncio.to_thread(
            skew_pipeline.run, spark, Arguments(out=str(tmp_path), database_url=database), Quiet()
        )
        table = rows(tmp_path / "skew.parquet")
        assert outcome.rows == len(table) == 9
        hottest = table[0]
        assert (hottest["queue"], hottest["partition"], hottest["messages"], hottest["rank"]) == ("uneven", EVIL, 97, 1)
        assert hottest["share"] == 0.97
        assert hottest["messages_per_second"] == pytest.approx(97 / 3600)
        assert hottest["bytes"] >= 97 * 3
        (idle,) = [row for row in table if row["partition"] == "e"]
        assert (idle["messages"], idle["stored"]) == (0, 1)
        uneven, even = rows(tmp_path / "skew_queues.parquet")
        assert (uneven["queue"], uneven["partitions"], uneven["active_partitions"]) == ("uneven", 5, 4)
        assert (uneven["top_1_share"], uneven["top_10_share"], uneven["hottest_partition"]) == (0.97, 1.0, EVIL)
        assert (even["gini"], even["variation"], even["top_1_share"]) == (0.0, 0.0, 0.25)
        html = page(tmp_path / "skew.html")
        assert html.count("<svg") == 2
        assert "&lt;script&gt;" in html

    def test_unevenness_is_as_its_definition_says(self, spark: SparkSession) -> None:
        values = [0, 3, 3, 7, 20]
        frame = spark.createDataFrame(
            [("q", f"p{n}", x, 0, 0.0, x / 33, len(values) - n) for n, x in enumerate(values)],
            "queue STRING, partition STRING, messages BIGINT, bytes BIGINT, messages_per_second DOUBLE, share DOUBLE, "
            "rank INT",
        )
        (row,) = queue_skew(frame).collect()
        differences = sum(abs(x - y) for x in values for y in values)
        assert row["gini"] == pytest.approx(differences / (2 * len(values) * sum(values)))
        mean = sum(values) / 5
        assert row["variation"] == pytest.approx((sum((x - mean) ** 2 for x in values) / 5) ** 0.5 / mean)

    async def test_without_messages_there_is_a_page_that_says_so(
        self, spark: SparkSession, database: str, store: Store, tmp_path: Path
    ) -> None:
        report = await asyncio.to_thread(lambda: skew(spark, out=tmp_path, database_url=database))
        assert report.rows == 0
        assert "No message was pushed" in page(report.path_html)

    def test_a_range_that_ends_before_it_begins_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        now = datetime.now(UTC)
        with pytest.raises(OptionError, match="from-time"):
            skew(spark, out=tmp_path, since=now, until=now)


class TestDeadLetters:
    async def test_errors_of_one_shape_are_counted_together(
        self, spark: SparkSession, database: str, store: Store, tmp_path: Path
    ) -> None:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        for n in range(5):
            await store.push([PushItem("orders", b'{"secret":"payload"}', f"p{n}", transaction_id=f"t{n}")])
            await give_up(store, "orders", "billing", f"card {n} refused" if n < 4 else EVIL)
        await store.pool.execute(
            "update queen.dead_letter_queue"
            " set failed_at = $1::timestamptz + right(partition_name, 1)::int * interval '1 h'",
            start,
        )
        await store.push([PushItem("other", b"1")])
        await give_up(store, "other", "billing", "card 99 refused")

        def reported(**options: Any) -> Callable[[], Any]:
            return lambda: dlq_report(spark, out=tmp_path, database_url=database, **options)

        report = await asyncio.to_thread(reported(until=start + timedelta(days=1)))
        first, evil = rows(report.path_table)
        assert first == {
            "shape": "card <n> refused",
            "queue": "orders",
            "consumer_group": "billing",
            "dead_letters": 4,
            "first_seen": start,
            "last_seen": start + timedelta(hours=3),
            "most_retries": 0,
            "first_transaction_id": "t0",
            "last_transaction_id": "t3",
        }
        assert (evil["shape"], evil["dead_letters"]) == (EVIL.replace("1", "<n>"), 1)
        html = page(report.path_html)
        assert html.count("<svg") == 2
        assert "secret" not in html
        assert "secret" not in report.path_csv.read_text()
        outcome = await asyncio.to_thread(
            dlq_pipeline.run, spark, Arguments(out=str(tmp_path), database_url=database, queue="oth*"), Quiet()
        )
        assert outcome.rows == 1
        assert [row["queue"] for row in rows(tmp_path / "dlq-report.parquet")] == ["other"]
        report = await asyncio.to_thread(reported(queue="nobody"))
        assert "There are no dead letters." in page(report.path_html)


async def test_a_queue_that_is_not_there_is_named(
    store: Store, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported has no part in it."""
    await store.push([PushItem("orders", b"1")])
    empty = Report(tmp_path, tmp_path, tmp_path, 0)
    monkeypatch.setattr(lag_pipeline, "lag", lambda *_, **__: empty)
    session: Any = None
    for run in (lag_pipeline.run, run_of(lambda *_, **__: empty, "things")):
        caplog.clear()
        for queue in (None, "orders", "ord*,no*", "orders,nosuch"):
            assert not caplog.messages
            arguments = Arguments(queue=queue, out=str(tmp_path), database_url=database)
            await asyncio.to_thread(run, session, arguments, Quiet())
        assert caplog.messages == ["there is no queue 'nosuch': the report has nothing of it"]
