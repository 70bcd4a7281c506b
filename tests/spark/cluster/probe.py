"""A driver: reads a queue on the master it is given and says, as JSON, who did it and what others could see of it.

Argument 1 is the master, 2 the queue to read, 3 a queue to copy it to.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import queenmq.spark

SECRET = "not-for-command-lines"


def environment_there(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What an executor has as password: not the thing itself, so that no log can ever hold it."""
    for _ in batches:
        url = os.environ.get("DATABASE_URL", "")
        yield pa.RecordBatch.from_pydict({"hash": [hashlib.sha256(url.encode()).hexdigest()]})


def tasks_by_executor(spark: SparkSession) -> dict[str, int]:
    """How many tasks each executor has finished since the start."""
    store = spark.sparkContext._jsc.sc().statusStore()
    executors = store.executorList(False)
    found = [executors.apply(i) for i in range(executors.size())]
    return {executor.id(): executor.completedTasks() for executor in found if executor.completedTasks()}


def main(master: str, queue: str, copy: str) -> None:
    spark = queenmq.spark.session(
        "probe", master, conf={"spark.executor.memory": "512m", "spark.hadoop.secret": SECRET}
    )
    messages = spark.read.format("queen").option("queue", queue).option("numSplits", "8").load()
    rows = messages.select("partition", "seq", "payload").collect()
    readers = tasks_by_executor(spark)
    messages.select("partition", "payload", "transaction_id").write.format("queen").option("queue", copy).mode(
        "append"
    ).save()
    hashes = spark.range(0, 2, 1, 2).mapInArrow(environment_there, "hash string").distinct().collect()
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    answer: dict[str, Any] = {
        "rows": sorted([row.partition, row.seq, row.payload] for row in rows),
        "splits": messages.rdd.getNumPartitions(),
        "readers": readers,
        "hashes": [row.hash for row in hashes],
        "commands": commands,
        "settings": [[row.key, row.value] for row in spark.sql("SET").collect()],
    }
    assert SECRET not in commands
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
