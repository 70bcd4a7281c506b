"""The rows of the table."""

from __future__ import annotations

from ..tables import Row
from .measures import Bench, against_copy, against_jdbc, archiving, offset_size, overhead, writing

ROWS: list[Row[Bench]] = [
    Row(
        name="read",
        work="batch read of 2,000,000 messages into an aggregation, against COPY BINARY of queen.messages to /dev/null",
        measure=against_copy,
        target=0.6,
        shown="{:.2f}x",
        at_least=True,
    ),
    Row(
        name="jdbc",
        work="the same messages, against Spark's JDBC source over queen.messages",
        measure=against_jdbc,
        target=3,
        shown="{:.1f}x",
        at_least=True,
    ),
    Row(
        name="archive",
        work="archive to Parquet, against reading alone",
        measure=archiving,
        target=0.5,
        shown="{:.2f}x",
        at_least=True,
    ),
    Row(
        name="write",
        work="streaming write, against the server's own push at batch 1000",
        measure=writing,
        target=0.5,
        shown="{:.2f}x",
        at_least=True,
    ),
    Row(
        name="overhead",
        work="a micro-batch of a few messages, more than one of the built-in rate source",
        measure=overhead,
        target=300,
        shown="{:.0f} ms",
    ),
    Row(
        name="offset",
        work="the offset of a stream over 100,000 partitions",
        measure=offset_size,
        target=4096,
        shown="{:,.0f} bytes",
    ),
]
