"""The check finds nothing where lake and queue agree, and names what differs where they do not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from queenmq.spark.pipelines.backfill_check import _CONTENT, _HASH, Check, Difference, backfill_check
from queenmq.spark.pipelines.base import Arguments, Quiet
from queenmq.spark.pipelines.registry import find
from tests.spark.lakes import Blocking, blocking, fill, items
from tests.storage.retaining import EXPIRED, trim
from tests.storage.time_travel import age_messages


@pytest.fixture
def store(database: str) -> Iterator[Blocking]:
    with blocking(database) as opened:
        yield opened


def found(check: Check) -> list[tuple[str, str, int, tuple[int, ...]]]:
    return sorted((each.partition, each.kind, each.messages, each.examples) for each in check.differences)


def test_every_difference_is_named(spark: SparkSession, database: str, store: Blocking, tmp_path: Path) -> None:
    for partition in ("same", "lost", "changed", "twice", "gone"):
        for number in (1, 2, 3):
            store.push(*items("orders", number, partition=partition))
    fill(spark, database, tmp_path)
    arguments = Arguments(lake=str(tmp_path), queue="orders", database_url=database)
    outcome = find("backfill-check").load()(spark, arguments, Quiet())
    assert (outcome.rows, outcome.status) == (15, "finished")
    assert outcome.summary[0] == "15 messages in 5 partitions compared: no difference"
    store.push(*items("orders", *range(4, 12), partition="lost"))
    fill(spark, database, tmp_path, batch=1, partitions="twice")
    store.run(store.store.pool.execute(_CHANGED, "changed", 2))
    store.run(store.store.pool.execute(_DELETED, "gone", 2))
    outcome = find("backfill-check").load()(spark, arguments, Quiet())
    assert outcome.status == "differences"
    check = backfill_check(spark, lake=tmp_path, queue="orders", database_url=database)
    assert found(check) == [
        ("changed", "different", 1, (2,)),
        ("gone", "missing in the queue", 1, (2,)),
        ("lost", "missing in the lake", 8, (4, 5, 6, 7, 8)),
        ("twice", "twice in the lake", 3, (1, 2, 3)),
    ]
    lost = next(each for each in check.differences if each.partition == "lost")
    assert (lost.first_seq, lost.last_seq) == (4, 11)
    assert str(lost) == "orders / lost: 8 missing in the lake (seq 4, 5, 6, 7, 8, …)"
    assert str(lost) in outcome.summary
    same = backfill_check(spark, lake=tmp_path, queue="orders", partitions=["same"], database_url=database)
    assert same == Check(1, 3, 0, ())


# As a damaged disk or a hand in the tables would do it.
_CHANGED = (
    "update queen.segments s set data = '7' from queen.partitions p"
    " where p.partition_id = s.partition_id and p.name = $1 and s.last_seq = $2"
)
_DELETED = (
    "delete from queen.segments s using queen.partitions p"
    " where p.partition_id = s.partition_id and p.name = $1 and s.last_seq = $2"
)


def test_what_retention_removed_is_no_difference(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    store.run(store.store.configure("orders", **EXPIRED))
    store.push(*items("orders", 1, 2))
    store.run(age_messages(store.store.pool, 7200))
    store.push(*items("orders", 3))
    fill(spark, database, tmp_path)
    store.run(trim(store.store))
    assert store.kept("orders") == [3]
    assert backfill_check(spark, lake=tmp_path, database_url=database) == Check(1, 1, 2, ())
    middle = store.run(store.store.pool.fetchval("select clock_timestamp()")) - timedelta(hours=1)
    assert backfill_check(spark, lake=tmp_path, until=middle, database_url=database) == Check(1, 0, 2, ())
    assert backfill_check(spark, lake=tmp_path, since=middle, database_url=database) == Check(1, 1, 0, ())


def test_which_column_is_empty_makes_a_difference(spark: SparkSession) -> None:
    columns = ", ".join(f"'x' as {name}" for name in _CONTENT)
    texts = [columns.replace(f"'x' as {name}", f"null as {name}") for name in ("trace_id", "producer_sub", "none")]
    hashes = {spark.sql(f"select {_HASH} from (select {text})").collect()[0][0] for text in texts}
    assert len(hashes) == 3


def test_a_difference_tells_itself() -> None:
    only = Difference("orders", "p", "u", "different", 1, 2, 2, (2,))
    assert str(only) == "orders / p: 1 different (seq 2)"
