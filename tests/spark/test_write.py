"""DataFrames and streams into queues, through Spark."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queenmq.spark.pushing import Tally
from queenmq.spark.writer import MessageStreamWriter, MessageWriter, Written
from queenmq.storage.store import Store
from tests.spark.test_write_rows import schema
from tests.spark.writing import asked, numbered, payloads, stored, to_database

PATIENCE = 120


def save(frame: DataFrame, database: str, **options: str) -> None:
    frame.write.format("queen").mode("append").options(databaseUrl=database, **options).save()


def random_payload(choice: random.Random) -> str:
    texts = ["", "ü", "😀", 'a "quoted" one', "\\", "\n\t", "x" * 5000]
    values: list[object] = [None, True, 0, -1.5e-7, 10**30, choice.choice(texts), [], {}, {"a": [None, {"ä": texts}]}]
    return json.dumps(choice.choice(values), ensure_ascii=choice.random() < 0.5)


async def test_what_is_written_is_popped_equal_and_in_order(spark: SparkSession, database: str) -> None:
    choice = random.Random(5)
    given = [(f"p{choice.randrange(5)}", random_payload(choice)) for _ in range(400)]
    frame = spark.createDataFrame(given, "partition string, payload string").coalesce(1)
    save(frame, database, queue="q", batchSize="64")
    store = await Store.open(database)
    try:
        result = await store.pop("q", batch=1000, partitions=10, auto_ack=True)
    finally:
        await store.close()
    popped = {claim.partition: [json.loads(message.payload) for message in claim.messages()] for claim in result.claims}
    expected: dict[str, list[object]] = {}
    for partition, payload in given:
        expected.setdefault(partition, []).append(json.loads(payload))
    assert popped == expected


def test_tasks_write_side_by_side_and_a_write_is_repeated_by_its_name(spark: SparkSession, database: str) -> None:
    """Equal rows of one and of several tasks are all kept, and none comes twice."""
    frame = spark.range(0, 300, 1, 3).selectExpr(
        "to_json(struct(id % 10 as n)) payload", "cast(null as string) trace_id"
    )
    for _ in range(2):
        save(frame, database, queue="q", writeId="monday")
    assert Counter(payloads(database, "q")) == dict.fromkeys(numbered(10), 30)
    save(frame, database, queue="q")
    save(frame, database, queue="q")
    assert len(payloads(database, "q")) == 900, "without a name, every write is one of its own"


def test_a_task_that_dies_half_way_can_be_repeated(spark: SparkSession, database: str, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not died.exists() and asked(database, "select 1 from queen.messages where queue = 'q' limit 1"):
                died.touch()
                raise RuntimeError("died")

    # Spark's pipes hold back what is small, so each row is large enough to be sent on.
    source = spark.range(0, 400, 1, 1).selectExpr("to_json(struct(id as n, repeat('x', 3000) as pad)) payload")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        frame = source.mapInArrow(dies_once, source.schema)
        with pytest.raises(PythonException, match="died"):
            save(frame, database, queue="q", writeId="w", batchSize="5")
        before = stored(database, "q")
        assert 0 < len(before) < 400
        save(frame, database, queue="q", writeId="w", batchSize="7")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    after = stored(database, "q")
    assert after[: len(before)] == before
    assert [json.loads(message.payload)["n"] for message in after] == list(range(400))


def test_what_cannot_be_written_is_refused_when_it_is_planned(spark: SparkSession, database: str) -> None:
    frame = spark.range(3).selectExpr("'1' payload", "id seq")
    with pytest.raises(AnalysisException, match="column seq cannot be written; select only payload, queue"):
        save(frame, database, queue="q")
    with pytest.raises(AnalysisException, match="option queue is missing"):
        save(frame.select("payload"), database)
    with pytest.raises(AnalysisException, match="a queue cannot be overwritten"):
        frame.select("payload").write.format("queen").mode("overwrite").options(databaseUrl=database, queue="q").save()
    with pytest.raises(AnalysisException, match=r"(?i)option bachSize is not one .* did you mean batchSize"):
        save(frame.select("payload"), database, queue="q", bachSize="3")
    with pytest.raises(PythonException, match=r"row 0 of task \d: payload must be valid JSON") as refused:
        save(frame.selectExpr("'{secret' payload"), database, queue="q")
    assert "{secret" not in str(refused.value)
    assert payloads(database, "q") == []


def test_a_queue_is_copied_to_another(spark: SparkSession, database: str) -> None:
    save(
        spark.range(20).selectExpr("to_json(struct(id n)) payload", "concat('p', id % 2) partition"),
        database,
        queue="a",
    )
    read = spark.read.format("queen").options(databaseUrl=database, queue="a").load()
    copy = read.selectExpr("'b' queue", "partition", "message_id transaction_id", "trace_id", "producer_sub", "payload")
    for _ in range(2):
        save(copy, database)
    assert Counter(payloads(database, "b")) == Counter(payloads(database, "a"))


def run(query: StreamingQuery) -> list[int]:
    """Until everything there is has been written; the numbers of the batches it took."""
    assert query.awaitTermination(PATIENCE), "the stream has not come to its end"
    return [progress.batchId for progress in query.recentProgress if progress.numInputRows]


@contextmanager
def merging(spark: SparkSession, by_cores: bool) -> Iterator[None]:
    """How adaptive execution takes together what was shuffled: until there is a task for each core, or but one."""
    names = [f"spark.sql.adaptive.coalescePartitions.{name}" for name in ("parallelismFirst", "minPartitionSize")]
    spark.conf.set(names[0], str(by_cores).lower())
    spark.conf.set(names[1], "1b")
    yield
    for name in names:
        spark.conf.unset(name)


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As after a crash between the last push of a batch and Spark's note that it is done."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()


@pytest.mark.parametrize("sink", ["stream", "foreachBatch"])
def test_a_stream_that_is_restarted_writes_every_row_once(
    spark: SparkSession, database: str, tmp_path: Path, sink: str
) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()

    def each(frame: DataFrame, batch: int) -> None:
        save(frame, database, queue="q", writeId="copy")

    def start(checkpoint: Path = checkpoint) -> StreamingQuery:
        lines = spark.readStream.text(str(folder)).selectExpr("value payload").repartition(2)
        writing = lines.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
        if sink == "foreachBatch":
            return writing.foreachBatch(each).start()
        return writing.format("queen").options(databaseUrl=database, queue="q").start()

    (folder / "one").write_text("\n".join([*numbered(50), *numbered(50)]))
    with merging(spark, by_cores=True):
        assert run(start()) == [0]
    forget_commit(checkpoint, 0)
    with merging(spark, by_cores=False):
        assert run(start()) == [0], "the batch is repeated"
    assert Counter(payloads(database, "q")) == dict.fromkeys(numbered(50), 2)
    (folder / "two").write_text("\n".join(numbered(60)))
    assert run(start()) == [1]
    expected = {text: 3 if n < 50 else 1 for n, text in enumerate(numbered(60))}
    assert Counter(payloads(database, "q")) == expected
    assert run(start(tmp_path / "another")) == [0]
    assert Counter(payloads(database, "q")) == {text: 2 * n for text, n in expected.items()}, "another query"


def test_a_summary_is_told(caplog: pytest.LogCaptureFixture) -> None:
    options = to_database("postgresql://queen@localhost/queen", queue="q")
    batch = MessageWriter(options, schema("payload string"), False)
    stream = MessageStreamWriter(options, schema("payload string"), False)
    with caplog.at_level(logging.INFO, "queenmq.spark"):
        batch.commit([Written(Tally(1500, 2)), None, Written(Tally(0, 1))])
        stream.commit([Written(Tally(5)), None], 3)
        stream.commit([Written(Tally(5, 1))], 4)
        batch.abort([None])
        MessageWriter(options, schema("payload string, transaction_id string"), False).abort([None])
        stream.abort([None], 5)
    assert [record.getMessage() for record in caplog.records] == [
        "wrote 1,503 messages: 1,500 queued, 3 duplicates that were there already",
        "batch 4: wrote 6 messages: 5 queued, 1 duplicates that were there already",
        "the write failed; what it has pushed stays in the queue; when it is repeated, "
        "without a writeId it is added again",
        "the write failed; what it has pushed stays in the queue; when it is repeated, "
        "rows with a transaction_id are not added twice",
        "batch 5 failed; what it has pushed stays, and is recognised when the query is restarted",
    ]
