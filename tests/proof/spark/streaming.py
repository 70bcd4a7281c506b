"""A stream in a process to be killed: `python -m tests.proof.spark.streaming OUT DATABASE STARTING [once] [hang]`.

It writes the numbers of each batch to a file of OUT, and its checkpoint beside it. Told to hang, it does not return
from its first batch: Spark has written down the end of that batch, and never that it is committed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame

import queenmq.spark


def main(out: Path, database: str, starting: str, once: bool, hang: bool) -> None:
    spark = queenmq.spark.session(
        "stream",
        "local[2]",
        conf={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
        },
    )

    def taken(frame: DataFrame, batch: int) -> None:
        seqs = sorted(row.seq for row in frame.collect())
        part = out / f"{batch}.part"
        part.write_text(json.dumps(seqs))
        os.replace(part, out / f"{batch}.json")
        if hang:
            threading.Event().wait()

    options = {"databaseUrl": database, "queue": "orders", "startingOffsets": starting}
    writer = spark.readStream.format("queen").options(**options).load().writeStream.foreachBatch(taken)
    writer = writer.option("checkpointLocation", str(out / "checkpoint"))
    (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0.2 seconds")).start()
    spark.streams.awaitAnyTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], "once" in sys.argv, "hang" in sys.argv)
