"""An archive in a process to be killed: `python -m tests.proof.spark.archiving LAKE DATABASE MASTER [once]`."""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException

import queenmq.spark
from queenmq.spark.lake.compaction import Limits
from queenmq.spark.pipelines.archive import archive


def main(lake: str, database: str, master: str, once: bool) -> None:
    spark = queenmq.spark.session(
        "archive",
        master,
        conf={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.executor.memory": "512m",
            "spark.task.maxFailures": "20",
            "spark.deploy.maxExecutorRetries": "-1",
        },
    )
    often = Limits(min_files=4, grace_seconds=0)
    while True:
        try:
            archive(
                spark, lake=lake, queue="*", once=once, database_url=database, trigger_seconds=0.2, compaction=often
            )
            break
        except StreamingQueryException as error:
            # On a busy machine Python may start too slowly for Spark. The runner of pipelines tries again, too.
            if "failed to connect back" not in str(error):
                raise
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], "once" in sys.argv)
