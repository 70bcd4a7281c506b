"""Replay: a lake back into queues, in order, and never twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from queenmq.domain.cipher import Cipher
from queenmq.domain.segments import PushItem
from queenmq.spark.errors import OptionError, PipelineError, Unreadable
from queenmq.spark.lake.commit import Writer
from queenmq.spark.lake.filesystem import LocalFiles
from queenmq.spark.pipelines.base import Arguments, Quiet
from queenmq.spark.pipelines.registry import find
from queenmq.spark.pipelines.replay import decrypted, prepared, replay
from tests.server.running import Server
from tests.spark.lakes import Blocking, Message, Messages, blocking, fill, items
from tests.storage.retaining import EXPIRED, trim
from tests.storage.time_travel import age_messages

KEY = bytes(range(32))


@pytest.fixture
def store(database: str) -> Iterator[Blocking]:
    with blocking(database) as opened:
        yield opened


def stored(store: Blocking, queue: str) -> list[tuple[Any, ...]]:
    """(partition, transaction id, payload) in the order of the queue."""
    query = (
        "select partition, transaction_id, payload::text from queen.messages where queue = $1 order by partition, seq"
    )
    return [tuple(row) for row in store.run(store.store.pool.fetch(query, queue))]


def test_messages_come_back_in_order_and_once(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    store.run(store.store.configure("orders", **EXPIRED))
    for number in (3, 1, 4, 2):
        store.push(*items("orders", number, number + 10, partition=f"p{number % 2}"))
    fill(spark, database, tmp_path)
    before = stored(store, "orders")
    # What is still there is not added again, neither here nor on a second run into another queue.
    assert replay(spark, lake=tmp_path, database_url=database).rows == 8
    assert stored(store, "orders") == before
    seen = Quiet()
    arguments = Arguments(lake=str(tmp_path), queue="orders", to="copy", database_url=database)
    for _ in range(2):
        assert find("replay").load()(spark, arguments, seen).rows == 8
    assert stored(store, "copy") == before
    assert seen.seen[-1].rows == 8
    # What retention has removed, and the queue forgotten, comes back under its own id.
    store.run(age_messages(store.store.pool, 3600))
    store.run(trim(store.store))
    assert stored(store, "orders") == []
    store.run(store.store.pool.execute("delete from queen.dedup"))
    replay(spark, lake=tmp_path, queue="orders", partitions=["p1"], database_url=database)
    assert stored(store, "orders") == [row for row in before if row[0] == "p1"]


def test_messages_without_a_transaction_id_of_their_own_are_not_added_again(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    """Their transaction ids are the ids that the server gave, also when the first of them is not replayed."""
    store.push(*[PushItem("orders", b"%d" % number, "p") for number in range(5)])
    fill(spark, database, tmp_path)
    before = stored(store, "orders")
    assert [row[2] for row in before] == ["0", "1", "2", "3", "4"]
    for where, rows in ((None, 5), ("seq > 2", 3)):
        assert replay(spark, lake=tmp_path, where=where, database_url=database).rows == rows
        assert stored(store, "orders") == before


def test_a_partition_is_replayed_by_one_task_in_its_order(spark: SparkSession) -> None:
    """Wherever its messages lie. It was deleted once and made again, and counts from 1 again; ids tell nothing."""
    start = datetime(2026, 1, 31, tzinfo=UTC)
    lives = [("z", seq, start + timedelta(seconds=seq // 4)) for seq in range(1, 9)]
    lives += [("a", seq, start + timedelta(hours=1)) for seq in range(1, 5)]
    rows = [(name, each, seq, at, f"{each}{seq}") for name in ("p", "q") for each, seq, at in lives]
    Random(7).shuffle(rows)
    named = "partition string, partition_id string, seq bigint, created_at timestamp, payload string"
    messages = spark.createDataFrame(rows, named).repartition(3)
    for name in ("queue", "transaction_id", "trace_id", "producer_sub", "encrypted"):
        messages = messages.withColumn(name, F.lit("x"))
    tasks = prepared(messages, None, "transaction", over_http=False).withColumn("task", F.spark_partition_id())
    found = tasks.collect()
    for name in ("p", "q"):
        assert [each.payload for each in found if each.partition == name] == [f"{life}{seq}" for life, seq, _ in lives]
        assert len({each.task for each in found if each.partition == name}) == 1


def test_what_is_replayed_can_be_chosen(spark: SparkSession, database: str, store: Blocking, tmp_path: Path) -> None:
    store.push(*items("orders", 1, 2))
    store.run(age_messages(store.store.pool, 7200))
    store.push(*items("orders", 3, 4), *items("mails", 1))
    fill(spark, database, tmp_path)
    middle = store.run(store.store.pool.fetchval("select clock_timestamp()")) - timedelta(hours=1)
    again = partial(replay, spark, lake=tmp_path, database_url=database, queue="orders")
    again(to="late", since=middle)
    again(to="early", until=middle)
    again(to="some", where="payload in ('2', '3')")
    assert [[row[2] for row in stored(store, name)] for name in ("late", "early", "some")] == [
        ["3", "4"],
        ["1", "2"],
        ["2", "3"],
    ]
    assert again(to="none", where="false").rows == 0
    assert again(to="none", queue="nothing").rows == 0
    # Both queues have a t1: poured into one, the ids of the messages take their place.
    replay(spark, lake=tmp_path, to="all", database_url=database)
    assert sorted(row[2] for row in stored(store, "all")) == ["1", "1", "2", "3", "4"]


def test_messages_that_return_to_their_own_queue_among_others_are_not_added_again(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    """Both queues have a t1 and a message without an id of its client; those of the other queue are added, once."""
    for queue, numbers in (("two-a", (1, 2)), ("two-b", (1,))):
        store.push(*items(queue, *numbers), PushItem(queue, b'"plain"', "p"))
    fill(spark, database, tmp_path)
    before, ids = stored(store, "two-a"), "select id::text from queen.messages where queue = 'two-b' order by seq"
    poured = [row["id"] for row in store.run(store.store.pool.fetch(ids))]
    for _ in range(2):
        assert replay(spark, lake=tmp_path, queue="two-a,two-b", to="two-a", database_url=database).rows == 5
        after = stored(store, "two-a")
        assert after[:3] == before
        assert after[3:] == [("p", poured[0], "1"), ("p", poured[1], '"plain"')]
    # By request every message has its message id, also where it is known under another.
    replay(spark, lake=tmp_path, queue="two-a", ids="message", database_url=database)
    assert [row[2] for row in stored(store, "two-a")[5:]] == ["1", "2"]


def test_encrypted_messages_are_replayed_without_the_key_and_over_http_with_it(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = Cipher(KEY).encrypt(b'"secret"')
    store.push(PushItem("orders", sealed, "p", encrypted=True))
    fill(spark, database, tmp_path / "lake")
    replay(spark, lake=tmp_path / "lake", to="copy", database_url=database)
    query = "select payload::text, encrypted from queen.messages where queue = 'copy'"
    (copy,) = store.run(store.store.pool.fetch(query))
    assert copy["encrypted"]
    assert Cipher(KEY).decrypt(copy["payload"].encode()) == b'"secret"'
    monkeypatch.delenv("QUEEN_ENCRYPTION_KEY", raising=False)
    with pytest.raises(PipelineError, match="give QUEEN_ENCRYPTION_KEY"):
        replay(spark, lake=tmp_path / "lake", to="clear", url="http://127.0.0.1:1")
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", KEY.hex())
    # Spark's Python was started without it.
    monkeypatch.setitem(spark.sparkContext.environment, "QUEEN_ENCRYPTION_KEY", KEY.hex())
    store.run(store.store.configure("again", encryptionEnabled=True))
    server = Server(tmp_path, "--workers", "1", DATABASE_URL=database, QUEEN_ENCRYPTION_KEY=KEY.hex())
    try:
        replay(spark, lake=tmp_path / "lake", to="again", url=f"http://127.0.0.1:{server.wait_ready().port}")
    finally:
        server.end()
    (again,) = store.run(store.store.pool.fetch(query.replace("copy", "again")))
    assert again["encrypted"]
    assert Cipher(KEY).decrypt(again["payload"].encode()) == b'"secret"'


def test_payloads_are_decrypted_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = Cipher(KEY).encrypt('"ü"'.encode()).decode()
    batch = pa.RecordBatch.from_pydict({"payload": ["1", sealed], "encrypted": [False, True]})
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", KEY.hex())
    (clear,) = decrypted(iter([batch]))
    assert clear.to_pydict() == {"payload": ["1", '"ü"']}
    monkeypatch.delenv("QUEEN_ENCRYPTION_KEY")
    with pytest.raises(Unreadable, match="give QUEEN_ENCRYPTION_KEY"):
        list(decrypted(iter([batch])))


def test_a_bad_target_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    Writer(LocalFiles(tmp_path), "archive:1").write(0, Messages([Message("orders", 1)]))
    with pytest.raises(OptionError, match=r"option to is 'a\\nb'"):
        replay(spark, lake=tmp_path, to="a\nb", database_url="postgresql://nobody@127.0.0.1:1/none")
