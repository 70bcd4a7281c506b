"""The source as Spark uses it: batch and stream, filters, schemas, restarts, and what plans show."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from queenmq.domain.segments import PushItem
from queenmq.storage.store import Store

PASSWORD = "geheim-4711"


async def push(queue: Store, count: int, name: str = "orders", start: int = 0) -> None:
    items = [
        PushItem(queue=name, partition=f"p{n % 7}", payload=b'{"n": %d, "tags": ["a", "\xc3\xbc"]}' % n)
        for n in range(start, start + count)
    ]
    await queue.push(items)


def frame(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.read.format("queen").option("databaseUrl", url).option("queue", "orders")
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


class TestBatch:
    async def test_a_queue_is_a_table(self, spark: SparkSession, database: str, queue: Store) -> None:
        await push(queue, 700)
        found = frame(spark, database, numSplits=4)
        assert found.rdd.getNumPartitions() == 4
        rows = found.orderBy("partition", "seq").collect()
        assert len(rows) == 700
        assert [row.seq for row in rows if row.partition == "p3"] == list(range(1, 101))
        assert rows[0].payload == '{"n": 0, "tags": ["a", "ü"]}'
        assert {row.queue for row in rows} == {"orders"}
        assert rows[0].created_at.year >= 2025
        assert rows[0].transaction_id == rows[0].message_id

    async def test_filters_reach_the_database_with_pushdown(
        self, spark: SparkSession, database: str, queue: Store
    ) -> None:
        """Three of 700 messages are left for at most three tasks; were they not narrowed there, four would read all."""
        await push(queue, 700)

        def found() -> DataFrame:
            return frame(spark, database, numSplits=4, pushdown="true")

        narrow = found().where((col("partition") == "p3") & (col("seq") > 97))
        assert narrow.count() == 3
        assert narrow.rdd.getNumPartitions() == 3
        moment = frame(spark, database).agg({"created_at": "max"}).collect()[0][0]
        assert found().where(col("created_at") <= lit(moment)).count() == 700
        assert found().where(col("created_at") > lit(moment)).count() == 0
        assert found().where(col("payload").contains('"n": 12,')).count() == 1

    async def test_the_payload_as_a_struct(self, spark: SparkSession, database: str, queue: Store) -> None:
        await push(queue, 10)
        found = frame(spark, database, payloadSchema="n INT, tags ARRAY<STRING>", columns="seq,data")
        assert found.columns == ["seq", "data"]
        row = found.orderBy("data.n").select("data.*").collect()[3]
        assert (row.n, row.tags) == (3, ["a", "ü"])

    async def test_a_schema_of_the_users(self, spark: SparkSession, database: str, queue: Store) -> None:
        await push(queue, 3)
        reader = spark.read.format("queen").option("databaseUrl", database).option("queue", "orders")
        assert reader.schema("seq BIGINT, data STRUCT<n: INT>").load().selectExpr("sum(data.n)").collect()[0][0] == 3
        with pytest.raises(PySparkException, match="option schema is 'seq string'; it must be seq bigint"):
            reader.schema("seq STRING").load().collect()
        with pytest.raises(PySparkException, match="seq bigint NOT NULL'; it must be without NOT NULL"):
            reader.schema("seq BIGINT NOT NULL").load().collect()

    def test_what_is_wrong_is_said_in_one_sentence(self, spark: SparkSession, database: str) -> None:
        with pytest.raises(PySparkException, match="did you mean numSplits"):
            frame(spark, database, numSplit=3)
        with pytest.raises(PySparkException, match="option failOnDataLoss is 'no'; it must be true or false"):
            frame(spark, database, failOnDataLoss="no")
        with pytest.raises(PySparkException, match="set PGPASSWORD"):
            frame(spark, f"postgresql://queen:{PASSWORD}@db/queen")

    def test_a_table_of_the_catalog_is_refused_in_one_sentence(self, spark: SparkSession, database: str) -> None:
        with pytest.raises(PySparkException, match="queues cannot be tables of a catalog"):
            spark.sql(f"CREATE TABLE orders USING queen OPTIONS (databaseUrl '{database}', queue 'orders')")

    async def test_a_temporary_view_is_how_sql_reads(self, spark: SparkSession, database: str, queue: Store) -> None:
        await push(queue, 3)
        options = f"databaseUrl '{database}', queue 'orders'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders_view USING queen OPTIONS ({options})")
        assert spark.sql("SELECT * FROM orders_view WHERE partition = 'p1'").count() == 1
        assert spark.sql("SELECT * FROM orders_view").count() == 3

    async def test_plans_show_no_secret(
        self, spark: SparkSession, database: str, queue: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await push(queue, 3)
        found = frame(spark, database)
        found.explain("extended")
        assert database not in capsys.readouterr().out
        with pytest.raises(PySparkException) as caught:
            frame(spark, f"postgresql://queen:{PASSWORD}@db/queen").collect()
        assert PASSWORD not in str(caught.value)


class TestStream:
    async def test_restarted_from_its_checkpoint_it_goes_on_where_it_was(
        self, spark: SparkSession, database: str, queue: Store, tmp_path: Path
    ) -> None:
        seen: list[tuple[str, int]] = []

        def collect(batch: DataFrame, number: int) -> None:
            seen.extend((row.partition, row.seq) for row in batch.select("partition", "seq").collect())

        def run() -> None:
            source = spark.readStream.format("queen").option("databaseUrl", database).option("queue", "ord*")
            query = (
                source.option("maxMessagesPerTrigger", 40)
                .load()
                .writeStream.foreachBatch(collect)
                .option("checkpointLocation", str(tmp_path))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert max(progress["numInputRows"] for progress in query.recentProgress) <= 40

        await push(queue, 70)
        run()
        assert len(seen) == 70
        await push(queue, 30, start=70)
        await push(queue, 5, "orders-2")
        run()
        assert len(seen) == 105
        assert len(set(seen)) == 100  # the second queue has partitions of the same names
        offsets = [path for path in (tmp_path / "offsets").iterdir() if path.name.isdigit()]
        assert max(len(path.read_text().splitlines()[-1]) for path in offsets) < 100
