"""Windows over a queue: what they contain, when they are pushed, and that they are pushed once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenmq.spark.errors import DataLoss, PipelineError
from queenmq.spark.failures import final
from queenmq.spark.pipelines import window
from queenmq.spark.pipelines.base import Arguments, Quiet
from queenmq.spark.pipelines.window_spec import Aggregate, WindowSpec
from queenmq.wire.names import check_name
from tests.spark.test_window_spec import EXAMPLE
from tests.spark.writing import Stored, asked, stored

_INSERT = (
    "insert into queen.messages (queue, partition, payload) select 'orders', 'p', x::jsonb from unnest($1::text[]) x"
)
EVERYTHING = WindowSpec(
    name="all",
    source="orders",
    target="sums",
    kind="tumbling",
    size="1 minute",
    event_time="$.at",
    key={"customer": "$.customer.id", "where": "partition"},
    aggregates={
        "messages": Aggregate("count"),
        "totals": Aggregate("count", "$.total"),
        "sum": Aggregate("sum", "$.total"),
        "least": Aggregate("min", "$.total"),
        "most": Aggregate("max", "$.total"),
        "mean": Aggregate("avg", "$.total"),
        "p95": Aggregate("p95", "$.total"),
    },
)


def order(customer: str, total: float, at: str) -> str:
    return json.dumps({"customer": customer, "total": total, "at": f"2025-01-31T12:{at}Z"})


def figures(**named: float) -> dict[str, float]:
    return named


def push(database: str, *payloads: str) -> None:
    asked(database, _INSERT, list(payloads))


def rows(spark: SparkSession, spec: WindowSpec, *messages: tuple[str, Any]) -> list[Any]:
    """What a batch of messages would give; time and lateness play no part in one."""
    given = [("orders", partition, json.dumps(payload)) for partition, payload in messages]
    frame = spark.createDataFrame(given, "queue string, partition string, payload string")
    frame = frame.selectExpr("*", "timestamp '2025-01-31T12:00:00Z' created_at").coalesce(1)
    return sorted(window.results(frame, spec).collect())


def shown(messages: Sequence[Stored]) -> list[tuple[str, str, float]]:
    found = [(message.partition, json.loads(message.payload)) for message in messages]
    return [(partition, payload["window"]["start"][11:19], payload.get("revenue", 0)) for partition, payload in found]


def test_what_a_window_contains(spark: SparkSession) -> None:
    def at(second: Any, total: Any, customer: Any = "ada") -> tuple[str, Any]:
        return "p", {"at": second, "total": total, "customer": {"id": customer}}

    found = rows(
        spark,
        EVERYTHING,
        *(at(f"2025-01-31T12:00:{n:02}Z", n) for n in range(1, 21)),
        at("2025-01-31T13:00:30+01:00", "not a number"),
        at(1738324830, 100.5),  # seconds
        at(1738324830500, None),  # milliseconds
        at("one day", 1000),
        at(None, 1000),
        ("p", "no object"),
        at("2025-01-31T12:01:00Z", 7, None),
    )
    assert [json.loads(row.payload) for row in found] == [
        {
            "window": {"start": "2025-01-31T12:00:00.000Z", "end": "2025-01-31T12:01:00.000Z"},
            "key": {"customer": "ada", "where": "p"},
            **figures(messages=23, totals=22, sum=310.5, least=1.0, most=100.5, mean=310.5 / 21, p95=20.0),
        },
        {
            "window": {"start": "2025-01-31T12:01:00.000Z", "end": "2025-01-31T12:02:00.000Z"},
            "key": {"customer": None, "where": "p"},
            **figures(messages=1, totals=1, sum=7.0, least=7.0, most=7.0, mean=7.0, p95=7.0),
        },
    ]
    assert [row.partition for row in found] == ["ada|p", "|p"]


def test_the_partition_is_a_name_whatever_the_key_is(spark: SparkSession) -> None:
    spec = WindowSpec("x", "orders", "sums", "tumbling", {"n": Aggregate("count")}, size="1 day", key={"k": "$.k"})
    keys = ["ada", "", "ü😀", "a\nb\u0085", "x" * 300, "x" * 301, None, 7]
    found = rows(spark, spec, *(("p", {"k": key}) for key in keys))
    names = {json.loads(row.payload)["key"]["k"]: row.partition for row in found}
    for name in names.values():
        check_name("partition", name)
    assert (names["ada"], names[""], names["ü😀"], names["7"], names[None]) == ("ada", "-", "ü😀", "7", "-")
    assert names["x" * 300] != names["x" * 301]


def test_ids_tell_apart_pipelines_keys_and_windows_and_nothing_else(spark: SparkSession) -> None:
    def ids(name: str, *messages: tuple[str, Any]) -> list[str]:
        counted = {"n": Aggregate("count")}
        spec = WindowSpec(name, "orders", "sums", "sliding", counted, size="2 days", slide="1 day", key={"k": "$.k"})
        return [row.transaction_id for row in rows(spark, spec, *messages)]

    first = ids("one", ("p", {"k": "a"}), ("p", {"k": "b"}))
    assert first == ids("one", ("q", {"k": "b"}), ("p", {"k": "a"}))
    other = ids("two", ("p", {"k": "a"}), ("p", {"k": "b"}))
    assert len({*first, *other}) == 8
    assert [str(uuid.UUID(id)) for id in first] == first


def test_the_worked_example(spark: SparkSession, database: str, tmp_path: Path) -> None:
    """Windows are pushed when the watermark has passed their end, once, and late messages do not change them."""
    checkpoint = tmp_path / "checkpoint"
    arguments = Arguments(config=str(EXAMPLE), checkpoint=str(checkpoint), once=True, database_url=database)
    push(
        database, order("ada", 1, "00:10"), order("bob", 2, "00:20"), order("ada", 4, "00:50"), order("ada", 8, "01:10")
    )
    assert window.run(spark, arguments, Quiet()).rows == 4
    assert stored(database, "revenue") == [], "the watermark is at 11:59:10"
    push(database, order("bob", 16, "03:10"))
    assert window.run(spark, arguments, Quiet()).rows == 1
    expected = [("ada", "12:00:00", 5.0), ("bob", "12:00:00", 2.0)]
    assert shown(stored(database, "revenue")) == expected

    # The batch that pushed them once more, as after a crash between the push and the commit.
    last = max(int(commit.name) for commit in (checkpoint / "commits").iterdir() if commit.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    push(database, order("ada", 32, "00:30"), order("ada", 64, "09:00"))
    window.run(spark, arguments, Quiet())
    assert shown(stored(database, "revenue")) == [
        ("ada", "12:00:00", 5.0),
        ("ada", "12:01:00", 8.0),
        ("bob", "12:00:00", 2.0),
        ("bob", "12:03:00", 16.0),
    ]


def test_lost_messages_stop_it_until_they_are_given_up(spark: SparkSession, database: str, tmp_path: Path) -> None:
    arguments = Arguments(config=str(EXAMPLE), checkpoint=str(tmp_path), once=True, database_url=database)
    push(database, order("ada", 1, "00:10"))
    window.run(spark, arguments, Quiet())
    push(database, order("ada", 2, "00:20"))
    asked(database, "select queen.delete_queue_v1('orders')")
    push(database, order("ada", 4, "00:30"), order("bob", 8, "09:00"))
    gone = "partition 'p' of queue 'orders' was removed with the messages 2 to 2"
    with pytest.raises(Exception, match=gone) as lost:
        window.run(spark, arguments, Quiet())
    assert isinstance(final(lost.value), DataLoss)
    window.run(spark, replace(arguments, accept_data_loss=True), Quiet())
    assert shown(stored(database, "revenue")) == [("ada", "12:00:00", 5.0)]


def test_a_session_is_pushed_when_data_after_its_gap_has_come(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    spec = WindowSpec(
        name="visits",
        source="orders",
        target="visits",
        kind="session",
        gap="1 minute",
        watermark="1 second",
        event_time="$.at",
        key={"customer": "$.customer"},
        aggregates={"revenue": Aggregate("sum", "$.total"), "p95": Aggregate("p95", "$.total")},
    )

    def visit(*payloads: str) -> list[tuple[str, str, float]]:
        push(database, *payloads)
        window.start(
            spark, spec, checkpoint=str(tmp_path), once=True, database_url=database, max_messages=100
        ).awaitTermination()
        return shown(stored(database, "visits"))

    ada = [order("ada", total, at) for total, at in ((1, "00:00"), (2, "00:40"), (8, "01:20"))]
    assert visit(*ada, order("bob", 4, "00:50")) == [], "nothing later has come that would end them"
    assert visit(order("cyd", 16, "09:00")) == [("ada", "12:00:00", 11.0), ("bob", "12:00:50", 4.0)]


SLIDING = WindowSpec(
    name="pace",
    source="orders",
    target="pace",
    kind="sliding",
    size="1 minute",
    slide="20 seconds",
    watermark="1 second",
    event_time="$.at",
    key={"customer": "$.customer"},
    aggregates={"revenue": Aggregate("sum", "$.total")},
)


def test_a_message_counts_in_every_sliding_window_it_is_in_across_restarts(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    def run(*payloads: str) -> list[tuple[str, str, float]]:
        push(database, *payloads)
        window.start(spark, SLIDING, checkpoint=str(tmp_path), once=True, database_url=database).awaitTermination()
        return shown(stored(database, "pace"))

    first = [("ada", "11:59:20", 1.0), ("ada", "11:59:40", 3.0)]
    assert run(order("ada", 1, "00:10"), order("ada", 2, "00:30"), order("bob", 4, "00:45")) == first
    assert run(order("ada", 8, "00:50"), order("cyd", 16, "09:00")) == [
        *first,
        ("ada", "12:00:00", 11.0),
        ("ada", "12:00:20", 10.0),
        ("ada", "12:00:40", 8.0),
        ("bob", "12:00:00", 4.0),
        ("bob", "12:00:20", 4.0),
        ("bob", "12:00:40", 4.0),
    ]


class TestCheckpoint:
    """Of another pipeline, or of windows that were others, it is refused; Spark would go on with their state."""

    def start(self, spark: SparkSession, spec: WindowSpec, checkpoint: Path) -> None:
        """There is no such database, so that is how far it gets."""
        nowhere = "postgresql://queen@127.0.0.1:1/none"
        query = window.start(spark, spec, checkpoint=str(checkpoint), once=True, database_url=nowhere)
        with pytest.raises(Exception, match="PostgreSQL cannot be reached"):
            query.awaitTermination()

    def test_only_the_same_windows_go_on(self, spark: SparkSession, tmp_path: Path) -> None:
        self.start(spark, SLIDING, tmp_path)
        self.start(spark, replace(SLIDING, size="60 seconds", watermark="1 hour", source="orders,more"), tmp_path)
        for changed, named in (
            (replace(SLIDING, name="other"), "another name;"),
            (replace(SLIDING, slide="30 seconds"), "another window;"),
            (replace(SLIDING, kind="tumbling", slide=None), "another window;"),
            (replace(SLIDING, key={}), "another key;"),
            (replace(SLIDING, event_time="$.when"), "another event_time;"),
            (replace(SLIDING, aggregates={"revenue": Aggregate("max", "$.total")}), "another aggregates;"),
        ):
            with pytest.raises(PipelineError, match=f"the checkpoint {tmp_path} was made with {named}"):
                window.start(spark, changed, checkpoint=str(tmp_path))

    def test_that_of_another_kind_of_query_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "metadata").write_text('{"id": "1"}')
        with pytest.raises(PipelineError, match="is not that of a window pipeline; give another one"):
            window.start(spark, SLIDING, checkpoint=str(tmp_path))
