"""Count the messages of a queue, partition by partition, on whatever Spark it is submitted to.

    DATABASE_URL=postgresql://... python examples/spark_count.py orders
    DATABASE_URL=postgresql://... spark-submit --master spark://host:7077 examples/spark_count.py orders

The executors read in parallel; only the counts come back. docs/spark-cluster.md says what a cluster needs for it.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

import queenmq.spark


def main(queue: str) -> None:
    spark = queenmq.spark.session("count")
    messages = spark.read.format("queen").option("queue", queue).option("columns", "partition,seq").load()
    counts = messages.groupBy("partition").agg(F.count("seq").alias("messages"), F.max("seq").alias("last"))
    for row in counts.orderBy("partition").collect():
        print(f"{row.partition}: {row.messages} messages, the last is {row.last}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
