"""Metrics, dead letters, lag and partitions as tables. Readers are asked directly; one test goes through Spark."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queenmq.domain.cipher import Cipher
from queenmq.domain.segments import PushItem
from queenmq.spark.datasets import SCHEMAS, DatasetReader, dataset_schema, ranges
from queenmq.spark.errors import OptionError, Unreadable
from queenmq.spark.options import DATASETS, read_options
from queenmq.storage import dlq, metrics
from queenmq.storage.metrics import MetricRow
from queenmq.storage.store import Store
from tests.storage.shorthand import ack_of
from tests.storage.time_travel import age_messages

START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
MINUTE = timedelta(minutes=1)
KEY = bytes(range(32))
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
}


def struct(ddl: str) -> StructType:
    """The DDL of flat columns, read without a JVM."""
    pairs = [column.split() for column in ddl.lower().split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def reader(database: str, dataset: str, ddl: str | None = None, **options: str) -> DatasetReader:
    found = read_options({"databaseUrl": database, "dataset": dataset, **options}, {})
    return DatasetReader(found, struct(ddl or dataset_schema(found.dataset)))


def rows(asked: DatasetReader) -> list[dict[str, Any]]:
    """The rows of all parts, one after the other."""
    return [row for part in asked.partitions() for batch in asked.read(part) for row in batch.to_pylist()]


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = await Store.open(database)
    yield opened
    await opened.close()


async def give_up(store: Store, queue: str, group: str, error: str, batch: int = 10) -> None:
    """Pop from one partition and send everything to the dead letters."""
    won = (await store.pop(queue, group, batch=batch)).claims[0]
    await store.ack([ack_of(won, m.seq, "dlq", group=group, error=error) for m in won.messages()])


def test_every_dataset_but_messages_and_their_ranges_has_a_schema() -> None:
    assert {*SCHEMAS, "messages", "ranges"} == set(DATASETS)


class TestMetrics:
    async def test_numbers_at_any_depth_become_rows_and_nothing_else_does(self, database: str, store: Store) -> None:
        deep = {
            "cpu": 0.5,
            "text": "x",
            "flag": True,
            "none": None,
            "list": [1],
            "db": {"pool": {"size": 4}, "a.b": -1},
        }
        await metrics.insert(
            store.pool, [MetricRow(START, "host", "1", deep, "orders"), MetricRow(START, "h", "2", {})]
        )
        found = rows(reader(database, "metrics"))
        common = {"at": START, "hostname": "host", "worker_id": "1", "scope": "orders"}
        assert sorted(found, key=lambda row: str(row["metric"])) == [
            {**common, "metric": "cpu", "value": 0.5},
            {**common, "metric": "db.a.b", "value": -1.0},
            {**common, "metric": "db.pool.size", "value": 4.0},
        ]

    async def test_a_number_that_no_double_holds_does_not_spoil_the_others(self, database: str, store: Store) -> None:
        await store.pool.execute(
            "insert into queen.metrics_history values ($1, 'h', '1', '', '{\"huge\": 1e400, \"big\": 1e300}')", START
        )
        assert [(row["metric"], row["value"]) for row in rows(reader(database, "metrics"))] == [("big", 1e300)]

    @pytest.mark.parametrize("splits", [1, 3, 64])
    async def test_parts_hold_every_row_of_the_range_once(self, database: str, store: Store, splits: int) -> None:
        await metrics.insert(store.pool, [MetricRow(START + n * MINUTE, "h", "1", {"n": n}) for n in range(20)])
        asked = reader(
            database,
            "metrics",
            numSplits=str(splits),
            startingOffsets=(START + 5 * MINUTE).isoformat(),
            endingOffsets=(START + 15 * MINUTE).isoformat(),
        )
        assert len(asked.partitions()) == splits
        assert sorted(row["value"] for row in rows(asked)) == list(range(5, 15))

    async def test_scopes_are_chosen_like_queues(self, database: str, store: Store) -> None:
        scopes = ["", "orders", "orders_eu", "ordersXeu", "other"]
        await metrics.insert(store.pool, [MetricRow(START, "h", "1", {"n": 1}, scope) for scope in scopes])
        assert {row["scope"] for row in rows(reader(database, "metrics"))} == set(scopes)
        assert {row["scope"] for row in rows(reader(database, "metrics", queue="orders*"))} == set(scopes[1:4])
        assert {row["scope"] for row in rows(reader(database, "metrics", queue="orders_*,other"))} == {
            "orders_eu",
            "other",
        }

    async def test_without_rows_there_are_none(self, database: str) -> None:
        assert rows(reader(database, "metrics")) == []


class TestDeadLetters:
    @pytest.fixture
    async def several(self, store: Store) -> Store:
        for n in range(6):
            await store.push([PushItem("orders", b'{"n":%d}' % n, f"p{n}", transaction_id=f"t{n}")])
        await store.push([PushItem("other", b"1")])
        for _ in range(6):
            await give_up(store, "orders", "billing", "card 17 refused")
        await give_up(store, "other", "billing", "no")
        return store

    @pytest.mark.parametrize("splits", [1, 5])
    async def test_a_row_has_everything_of_the_dead_letter(self, database: str, several: Store, splits: int) -> None:
        found = sorted(rows(reader(database, "dead_letters", queue="orders", numSplits=str(splits))), key=str)
        letters = (await dlq.list_dead_letters(several.pool, queue="orders")).dead_letters
        expected = [
            {
                "queue": "orders",
                "partition": letter.partition,
                "partition_id": str(letter.partition_uid),
                "consumer_group": "billing",
                "seq": 1,
                "message_id": str(letter.message_id),
                "transaction_id": letter.transaction_id,
                "trace_id": None,
                "producer_sub": None,
                "payload": letter.payload.decode(),
                "encrypted": False,
                "error_message": "card 17 refused",
                "retry_count": letter.retry_count,
                "created_at": letter.created_at,
                "failed_at": letter.failed_at,
            }
            for letter in letters
        ]
        assert found == sorted(expected, key=str)
        assert len(found) == 6

    async def test_time_is_the_time_of_the_failure(self, database: str, several: Store) -> None:
        await several.pool.execute(
            "update queen.dead_letter_queue set failed_at = $1::timestamptz + seq * interval '1 s'", START
        )
        assert len(rows(reader(database, "dead_letters", endingOffsets=START.isoformat()))) == 0
        assert len(rows(reader(database, "dead_letters", startingOffsets=START.isoformat()))) == 7

    async def test_partitions_and_namespaces_are_chosen(self, database: str, several: Store) -> None:
        await several.configure("other", namespace="shop")
        assert [row["partition"] for row in rows(reader(database, "dead_letters", partitions="p3"))] == ["p3"]
        assert [row["queue"] for row in rows(reader(database, "dead_letters", namespace="shop"))] == ["other"]
        assert rows(reader(database, "dead_letters", task="none")) == []

    async def test_a_schema_with_fewer_columns_gets_those(self, database: str, several: Store) -> None:
        found = rows(reader(database, "dead_letters", "error_message STRING, queue STRING", queue="other"))
        assert found == [{"error_message": "no", "queue": "other"}]

    async def test_payloads_are_decrypted_with_the_key_of_the_job_only(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sealed = Store((await Store.open(database)).pool, Cipher(KEY))
        await sealed.configure("secret", encryptionEnabled=True)
        await sealed.push([PushItem("secret", b'{"pin":1234}')])
        await give_up(sealed, "secret", "g", "no")
        await sealed.close()
        monkeypatch.delenv("QUEEN_ENCRYPTION_KEY", raising=False)
        (stored,) = rows(reader(database, "dead_letters"))
        assert stored["encrypted"] is True
        assert "pin" not in stored["payload"]
        monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", KEY.hex())
        (clear,) = rows(reader(database, "dead_letters"))
        assert (clear["encrypted"], clear["payload"]) == (False, '{"pin":1234}')
        assert rows(reader(database, "dead_letters", decrypt="false")) == [stored]
        monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", KEY[::-1].hex())
        with pytest.raises(Unreadable, match="decrypt=false"):
            rows(reader(database, "dead_letters"))
        assert len(rows(reader(database, "dead_letters", "queue STRING"))) == 1


class TestLag:
    async def test_each_cursor_is_a_row(self, database: str, store: Store) -> None:
        await store.push([PushItem("orders", b"1", "a"), PushItem("orders", b"2", "a"), PushItem("orders", b"3", "b")])
        await store.push([PushItem("other", b"1")])
        await store.pop("orders", "billing", batch=1, partition="b", auto_ack=True)
        await store.pop("other", "audit")
        found = sorted(rows(reader(database, "lag", queue="orders")), key=lambda row: str(row["partition"]))
        assert [(row["consumer_group"], row["partition"], row["lag"], row["consumed"]) for row in found] == [
            ("billing", "a", 2, 0),
            ("billing", "b", 0, 1),
        ]
        assert found[0]["lag_seconds"] > 0
        assert found[0]["oldest_unconsumed_at"] < datetime.now(UTC)
        assert (found[1]["oldest_unconsumed_at"], found[1]["lag_seconds"]) == (None, 0)
        assert found[1]["last_consumed_at"] is not None
        assert {row["queue"] for row in rows(reader(database, "lag"))} == {"orders", "other"}
        assert [row["lag"] for row in rows(reader(database, "lag", partitions="a"))] == [2]


class TestPartitions:
    @pytest.mark.parametrize("splits", [1, 2, 7])
    async def test_each_partition_is_counted_once(self, database: str, store: Store, splits: int) -> None:
        for n in range(1, 6):
            await store.push([PushItem("orders", b'"xxxxxxxx"', f"p{n}") for _ in range(n)])
        asked = reader(database, "partitions", numSplits=str(splits))
        assert len(asked.partitions()) <= splits
        every = rows(asked)
        assert sorted((row["partition"], row["messages"]) for row in every) == [(f"p{n}", n) for n in range(1, 6)]
        found = {row["partition"]: row for row in every}
        assert found["p3"]["bytes"] >= 30
        assert (found["p3"]["last_seq"], found["p3"]["trimmed_seq"], found["p3"]["stored"]) == (3, 0, 3)
        assert found["p3"]["last_message_created_at"] is not None

    async def test_only_messages_of_the_range_are_counted(self, database: str, store: Store) -> None:
        await store.push([PushItem("orders", b"1", "p"), PushItem("orders", b"2", "p")])
        await age_messages(store.pool, 3600)
        await store.push([PushItem("orders", b"3", "p")])
        border = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
        (recent,) = rows(reader(database, "partitions", startingOffsets=border))
        (past,) = rows(reader(database, "partitions", endingOffsets=border))
        assert (recent["messages"], past["messages"], past["stored"]) == (1, 2, 3)

    async def test_a_partition_without_messages_has_no_last_one(self, database: str, store: Store) -> None:
        await store.configure("empty")
        await store.directory.partitions(store.pool, [("empty", "Default")])
        (row,) = rows(reader(database, "partitions"))
        assert (row["messages"], row["bytes"], row["last_message_created_at"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dataset": "lag", "startingOffsets": "2026-01-01"}, "startingOffsets"),
        ({"dataset": "metrics", "startingOffsets": "latest"}, "startingOffsets"),
        ({"dataset": "partitions", "endingOffsets": '{"q": {"p": 1}}'}, "endingOffsets"),
        ({"dataset": "dead_letters", "columns": "queue"}, "columns"),
        ({"dataset": "lag", "payloadSchema": "a INT"}, "payloadSchema"),
        ({"dataset": "lag", "consumerGroup": "g"}, "consumerGroup"),
        ({"dataset": "metrics", "namespace": "n"}, "namespace"),
        ({"dataset": "metrics", "partitions": "p"}, "partitions"),
    ],
)
def test_options_that_mean_nothing_for_a_dataset_are_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=f"option {named} ") as refused:
        reader("postgresql://nobody@127.0.0.1/none", **options)
    assert refused.value.option == named


@pytest.mark.parametrize("columns", ["nonsense STRING", "lag STRING"])
def test_a_schema_of_other_columns_is_refused(columns: str) -> None:
    with pytest.raises(OptionError, match=r"option schema .*consumer_group STRING"):
        reader("postgresql://nobody@127.0.0.1/none", "lag", columns)


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_ranges_cover_everything_once(count: int) -> None:
    parts = ranges(START, START + timedelta(microseconds=17), count)
    assert parts[0][0] == START
    assert parts[-1][1] == START + timedelta(microseconds=17)
    assert all(low < high for low, high in parts)
    assert all(first[1] == second[0] for first, second in pairwise(parts))
    assert len(parts) == min(count, 17)


async def test_spark_reads_every_dataset(spark: SparkSession, database: str, store: Store) -> None:
    await store.push([PushItem("orders", b'{"n":1}', "a"), PushItem("orders", b"2", "a")])
    await give_up(store, "orders", "billing", "no", batch=1)
    await metrics.insert(store.pool, [MetricRow(START, "h", "1", {"cpu": math.pi})])

    def read(dataset: str) -> Any:
        return spark.read.format("queen").option("databaseUrl", database).option("dataset", dataset).load()

    assert [(row.at.replace(tzinfo=UTC), row.value) for row in read("metrics").collect()] == [(START, math.pi)]
    assert [(row.payload, row.error_message) for row in read("dead_letters").collect()] == [('{"n":1}', "no")]
    assert [(row.consumer_group, row.lag) for row in read("lag").collect()] == [("billing", 1)]
    assert [(row.partition, row.messages) for row in read("partitions").collect()] == [("a", 2)]
