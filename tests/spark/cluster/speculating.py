"""A driver whose first task is slow once, so that Spark runs it a second time elsewhere, in a batch and in a stream.

Argument 1 is the master, 2 how the queues' names begin. The first attempt stops early until the second one is ahead
of it in the queue, the second stops there until the first goes on: from then on, both write side by side.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import queenmq.spark

TASKS = 4
EACH = 400
AT_ONCE = 20
STOPS = (100, 300)  # after how many rows the attempts wait
STORED = "select count(*) from queen.messages where queue = $1 and partition = '0'"
PATIENCE = 120.0
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    # So that a second attempt can only be a speculative one.
    "spark.task.maxFailures": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(AT_ONCE),
}


def slow_once(rows: DataFrame, queue: str, traces: str) -> DataFrame:
    def may_go_on(attempt: int) -> bool:
        return Path(traces, "0").exists() if attempt else asyncio.run(stored(queue)) > STOPS[0]

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt, seen = context.attemptNumber(), 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if context.partitionId() == 0 and seen == STOPS[attempt]:
                wait_until(lambda: may_go_on(attempt))
                Path(traces, str(attempt)).touch()

    return rows.mapInArrow(passed, rows.schema)


async def stored(queue: str) -> int:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    try:
        return int(await connection.fetchval(STORED, queue))
    finally:
        await connection.close()


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(f"the other attempt was not seen within {PATIENCE:g} s")
        time.sleep(0.05)


def messages(numbers: DataFrame, queue: str, traces: str) -> DataFrame:
    """Large ones: Spark's pipes hold back what is small."""
    rows = numbers.selectExpr(
        "to_json(struct(value as n, repeat('x', 3000) as pad)) payload", "string(spark_partition_id()) partition"
    )
    return slow_once(rows, queue, traces)


def write_batch(spark: SparkSession, queue: str, traces: str) -> None:
    numbers = spark.range(0, TASKS * EACH, 1, TASKS).withColumnRenamed("id", "value")
    writing = messages(numbers, queue, traces).write.format("queen").mode("append")
    writing.options(queue=queue, batchSize="10").save()


def write_stream(spark: SparkSession, queue: str, traces: str) -> None:
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=TASKS * EACH, numPartitions=TASKS)
    writing = messages(source.load(), queue, traces).writeStream.format("queen").trigger(availableNow=True)
    query = writing.options(queue=queue, batchSize="10", checkpointLocation=f"{traces}/checkpoint").start()
    query.awaitTermination()


def main(master: str, name: str) -> None:
    spark = queenmq.spark.session("speculating", master, conf=SETTINGS)
    for way, write in (("batch", write_batch), ("stream", write_stream)):
        with tempfile.TemporaryDirectory() as traces:
            write(spark, f"{name}-{way}", traces)
            print(way, sorted(trace.name for trace in Path(traces).glob("[01]")))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
