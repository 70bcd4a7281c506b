"""A Spark program that somebody will kill: it copies files of JSON lines into a queue, a few files in each micro-batch.

    python -m tests.proof.spark.writing MASTER URL FOLDER CHECKPOINT

The URL is that of a server, or of PostgreSQL. The program ends by itself when all files are written, and takes up its
checkpoint when it is started again.
"""

from __future__ import annotations

import sys

import queenmq.spark

FILES_PER_BATCH = 2
QUEUE = "copied"


def main(master: str, url: str, folder: str, checkpoint: str) -> None:
    spark = queenmq.spark.session(
        "killed",
        master,
        conf={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "768m",
            "spark.task.maxFailures": "100",
            "spark.deploy.maxExecutorRetries": "-1",
        },
    )
    lines = spark.readStream.option("maxFilesPerTrigger", FILES_PER_BATCH).text(folder)
    rows = lines.selectExpr("value as payload", "get_json_object(value, '$.file') as partition")
    query = (
        rows.writeStream.format("queen")
        .option("url" if url.startswith("http") else "databaseUrl", url)
        .options(queue=QUEUE, batchSize="10", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
