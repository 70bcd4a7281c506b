"""How each figure is measured. Both sides of a ratio are measured in one run, in turns, and the best of each counts."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import queenmq.spark
from queenmq.spark.pipelines.archive import run as run_archive
from queenmq.spark.pipelines.base import Arguments, Quiet

from ..lab import Lab
from ..load.jobs import PushJob
from ..load.process import run as run_load
from ..load.render import Pushing
from ..tables import Measured
from .filling import QUEUE, fill, fill_partitions, push

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROUNDS = 3
_VIEW = """(
    select queue, partition, partition_id::text, seq, id::text as message_id, transaction_id, trace_id::text,
           producer_sub, payload::text, encrypted, created_at from queen.messages) m"""
_JARS = ("/usr/share/java/postgresql.jar",)


class Unavailable(Exception):
    """What a row is measured against is not on this machine."""


@dataclass
class Bench:
    """One session and one filled database for all rows that read."""

    lab: Lab
    progress: Callable[[str], None]
    scale: float

    def scaled(self, work: int) -> int:
        return max(int(work * self.scale), 1000)

    @cached_property
    def spark(self) -> SparkSession:
        self.progress("Spark starts")
        jar = jdbc_jar()
        conf = {"spark.sql.shuffle.partitions": "2"} | ({} if jar is None else {"spark.jars": jar})
        return queenmq.spark.session("benchmarks", f"local[{os.cpu_count()}]", conf=conf)

    @cached_property
    def messages(self) -> int:
        return self.scaled(2_000_000)

    @cached_property
    def filled(self) -> str:
        """The URL of a database with all those messages."""
        url = self.lab.make_database("reads")
        fill(url, self.messages, self.progress)
        return url

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("queen").options(databaseUrl=self.filled, queue=QUEUE, **options).load()

    def rate(self, work: Callable[[], object], say: str, rounds: int = ROUNDS) -> float:
        """Messages per second, the best of some rounds; one before them warms up."""
        times = []
        for number in range(rounds + 1):
            self.progress(f"{say}, round {number} of {rounds}")
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return self.messages / min(times[1:])


def jdbc_jar() -> str | None:
    """PostgreSQL's JDBC driver: from PGJDBC_JAR, or where Debian's package has it."""
    return next((path for path in (os.environ.get("PGJDBC_JAR"), *_JARS) if path and Path(path).exists()), None)


def aggregate(frame: DataFrame) -> None:
    rows = frame.groupBy("partition").agg({"*": "count", "seq": "max"}).collect()
    assert rows


def against_copy(bench: Bench) -> Measured:
    copy = bench.rate(
        lambda: bench.lab.run(bench.filled, "copy (select * from queen.messages) to '/dev/null' (format binary)"),
        "COPY",
    )
    raw = bench.rate(
        lambda: bench.lab.run(bench.filled, "copy queen.segments to '/dev/null' (format binary)"), "COPY of segments"
    )
    spark = bench.rate(lambda: aggregate(bench.read()), "Spark")
    narrow = bench.rate(lambda: aggregate(bench.read(columns="partition,seq")), "Spark, two columns")
    return Measured(
        spark / copy,
        f"{spark:,.0f} messages/s, COPY {copy:,.0f}; with columns=partition,seq {narrow:,.0f}; COPY of the segments as "
        f"they are {raw:,.0f}",
    )


def against_jdbc(bench: Bench) -> Measured:
    if jdbc_jar() is None:
        raise Unavailable("no JDBC driver: install libpostgresql-jdbc-java, or name one in PGJDBC_JAR")
    table = bench.spark.read.format("jdbc").options(
        dbtable=_VIEW, driver="org.postgresql.Driver", fetchsize="10000", **bench.lab.for_jdbc(bench.filled)
    )
    jdbc = bench.rate(lambda: consume(table.load()), "JDBC", 1)
    spark = bench.rate(lambda: consume(bench.read()), "Spark")
    return Measured(spark / jdbc, f"{spark:,.0f} messages/s, JDBC {jdbc:,.0f}, all columns into Spark's noop sink")


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def archiving(bench: Bench) -> Measured:
    reading = bench.rate(lambda: consume(bench.read()), "reading")

    seen = Quiet()

    def archived() -> None:
        with TemporaryDirectory() as lake:
            arguments = Arguments(
                lake=lake, queue=QUEUE, database_url=bench.filled, once=True, max_messages=bench.messages
            )
            done = run_archive(bench.spark, arguments, seen)
            assert done.rows == bench.messages

    whole = bench.rate(archived, "archive")
    batch = max(each.rows_per_second or 0 for each in seen.seen)
    beside = (
        f"{batch:,.0f} messages/s into Parquet (zstd), reading alone {reading:,.0f}; with the start and end of a query"
    )
    return Measured(batch / reading, f"{beside} {whole:,.0f}")


def writing(bench: Bench) -> Measured:
    """A stream of Parquet files into a queue, against the load generator at the same server. Both push a thousand
    messages at a time, each time to another of a hundred partitions."""
    rows = bench.scaled(2_000_000)
    with TemporaryDirectory() as made, bench.lab.server(2) as server:
        source = _source(bench, rows, f"{made}/source")
        over_http = _written(bench, rows, source, f"{made}/http", url=f"http://127.0.0.1:{server.port}")
        straight = _written(bench, rows, source, f"{made}/database", databaseUrl=server.dsn)
        bench.progress("the load generator pushes")
        job = PushJob(port=server.port, seconds=5, shape=Pushing(batch=1000), connections=8)
        pushed = float(run_load(job, lambda _: None, bench.progress).rate)
    best = max(over_http, straight)
    beside = f"straight to PostgreSQL {straight:,.0f} rows/s, over HTTP {over_http:,.0f}; push {pushed:,.0f}"
    return Measured(best / pushed, beside)


def _source(bench: Bench, rows: int, path: str) -> DataFrame:
    numbers = bench.spark.range(0, rows, 1, 4)
    numbers.selectExpr(
        "concat('p', id div 1000 % 100) as partition",
        "to_json(struct(id as order, concat('customer-', id % 97) as customer, repeat('x', 90) as note)) as payload",
    ).write.parquet(path)
    return (
        bench.spark.readStream.schema("partition STRING, payload STRING").option("maxFilesPerTrigger", 2).parquet(path)
    )


def _written(bench: Bench, rows: int, source: DataFrame, checkpoint: str, **where: str) -> float:
    """Rows per second of the second batch: the first starts Python processes."""
    bench.progress(f"streaming write, {' '.join(where)}")
    query = source.writeStream.format("queen").options(
        queue=checkpoint.rsplit("/", 1)[1], checkpointLocation=checkpoint, **where
    )
    done = query.trigger(availableNow=True).start()
    done.awaitTermination()
    batches = [each for each in done.recentProgress if each["numInputRows"]]
    assert sum(each["numInputRows"] for each in batches) == rows
    last = batches[-1]
    return float(last["numInputRows"] * 1000 / last["durationMs"]["triggerExecution"])


def overhead(bench: Bench) -> Measured:
    """Milliseconds of a micro-batch that holds a few messages, more than of one from the built-in rate source."""
    url = bench.lab.make_database("overhead")
    push(url, 10)
    batches = max(int(30 * min(bench.scale, 1)), 5)
    rate = bench.spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    queen = bench.spark.readStream.format("queen").options(databaseUrl=url, queue=QUEUE).load()
    built_in = _triggers(bench, rate, batches, lambda: None)
    ours = _triggers(bench, queen, batches, lambda: push(url, 10))
    return Measured(ours - built_in, f"medians of {batches} batches: {ours:.0f} ms, rate source {built_in:.0f} ms")


def _triggers(bench: Bench, source: DataFrame, batches: int, feed: Callable[[], None]) -> float:
    with TemporaryDirectory() as checkpoint, _running(source, checkpoint) as query:
        times: dict[int, float] = {}
        while len(times) < batches + 3:
            feed()
            time.sleep(0.1)
            for each in query.recentProgress:
                if each["numInputRows"]:
                    times[each["batchId"]] = each["durationMs"]["triggerExecution"]
            bench.progress(f"{len(times)} of {batches + 3} micro-batches")
    return statistics.median([times[number] for number in sorted(times)][3:])


@contextmanager
def _running(source: DataFrame, checkpoint: str) -> Iterator[StreamingQuery]:
    query = source.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        yield query
    finally:
        query.stop()


def offset_size(bench: Bench) -> Measured:
    """Bytes of the offset that a stream over so many partitions writes for a batch."""
    partitions = bench.scaled(100_000)
    url = bench.lab.make_database("wide")
    fill_partitions(url, partitions, bench.progress)
    source = bench.spark.readStream.format("queen").options(databaseUrl=url, queue=QUEUE).load()
    with TemporaryDirectory() as checkpoint:
        bench.progress("a stream reads them")
        query = (
            source.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        [batch] = [each for each in query.recentProgress if each["numInputRows"]]
        assert batch["numInputRows"] == partitions
        written = (Path(checkpoint) / "offsets" / "0").read_text()
    seconds = batch["durationMs"]["triggerExecution"] / 1000
    return Measured(
        len(written.splitlines()[-1].encode()),
        f"{partitions:,} partitions read in {seconds:.1f} s; the whole file, with Spark's settings, "
        f"{len(written.encode()):,} bytes",
    )
