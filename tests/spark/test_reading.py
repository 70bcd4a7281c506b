"""Batch reads, compared with what the view `queen.messages` shows and with what was pushed."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StringType, StructType

from queenmq.domain.cipher import Cipher
from queenmq.domain.segments import PushItem
from queenmq.spark.errors import DataLoss, NotReady, OptionError, SparkError, Unreachable, Unreadable
from queenmq.storage.messages import delete
from queenmq.storage.pool import create_pool
from queenmq.storage.store import Store
from tests.spark.json_values import messages
from tests.spark.reading import Rows, batch, places, reader

KEY = "5e" * 32
_VIEW = """
    select queue, partition, partition_id::text, seq, id::text as message_id, transaction_id, trace_id::text,
           producer_sub, payload, encrypted, created_at
    from queen.messages order by queue, partition, seq
"""


def item(queue: str = "orders", partition: str = "p", payload: bytes = b"{}", **more: Any) -> PushItem:
    return PushItem(queue=queue, partition=partition, payload=payload, **more)


async def fill(queue: Store) -> None:
    """Messages of several queues and partitions, in segments of several sizes, with and without the optional values."""
    trace = "0193b7f0-0000-7000-8000-0000000000aa"
    for number in range(12):
        items = [
            item(
                "orders",
                f"p{number % 3}",
                b'{"n":%d}' % each,
                transaction_id=f"t-{number}-{each}" if each % 2 else None,
            )
            for each in range(number + 1)
        ]
        items += [
            item(
                "billing",
                "ä/ö",
                b'"x"',
                trace_id=trace if number % 2 else None,
                producer_sub="me" if number % 3 else None,
            )
        ]
        await queue.push(items)


async def view(url: str) -> Rows:
    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch(_VIEW)]
    finally:
        await connection.close()


def sorted_rows(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["queue"], row["partition"], row["seq"]))


class TestRows:
    async def test_every_column_is_as_the_view_shows_it(self, database: str, queue: Store) -> None:
        await fill(queue)
        rows = sorted_rows(batch(database))
        shown = await view(database)
        assert [row | {"payload": json.loads(row["payload"])} for row in rows] == [
            row | {"payload": json.loads(row["payload"])} for row in shown
        ]
        assert len(rows) == 90

    @pytest.mark.parametrize("splits", [1, 2, 7, 90, 1000])
    async def test_any_number_of_tasks_reads_each_message_once_and_in_order(
        self, database: str, queue: Store, splits: int
    ) -> None:
        await fill(queue)
        rows = places(batch(database, numSplits=splits))
        assert sorted(rows) == places(await view(database))
        for name in {(queue, partition) for queue, partition, _ in rows}:
            seqs = [seq for queue, partition, seq in rows if (queue, partition) == name]
            assert seqs == sorted(seqs)

    async def test_only_the_columns_that_are_named_are_there(self, database: str, queue: Store) -> None:
        await fill(queue)
        assert {tuple(row) for row in batch(database, ["seq", "queue"])} == {("seq", "queue")}

    async def test_deleted_messages_leave_a_gap_and_no_more(self, database: str, queue: Store) -> None:
        await fill(queue)
        before = await view(database)
        gone = before[40]
        await delete(queue.pool, UUID(gone["partition_id"]), gone["transaction_id"])
        assert places(sorted_rows(batch(database, numSplits=5))) == places([row for row in before if row is not gone])

    async def test_a_damaged_segment_is_noticed(self, database: str, queue: Store) -> None:
        await fill(queue)
        connection = await asyncpg.connect(database)
        await connection.execute("update queen.segments set data = data || '\\x1e'::bytea || data where n = 1")
        await connection.close()
        with pytest.raises(SparkError, match="queen db check"):
            batch(database)


class TestRoundTrip:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(messages)
    async def test_what_is_pushed_is_read(self, database: str, queue: Store, drawn: list[tuple[str, str]]) -> None:
        name = f"q{os.urandom(6).hex()}"
        await queue.push([item(name, partition, payload.encode()) for partition, payload in drawn])
        rows = batch(database, queue=name, numSplits=3)
        for partition in {each for each, _ in drawn}:
            pushed = [payload for each, payload in drawn if each == partition]
            assert [row["payload"] for row in rows if row["partition"] == partition] == pushed

    async def test_a_megabyte_and_nothing(self, database: str, queue: Store) -> None:
        big = json.dumps("x" * (1 << 20)).encode()
        await queue.push([item(payload=payload) for payload in (big, b'""', b"null", b"[]", big)])
        assert [row["payload"].encode() for row in batch(database)] == [big, b'""', b"null", b"[]", big]

    async def test_a_queue_without_messages(self, database: str, queue: Store) -> None:
        assert batch(database) == []
        await queue.push([item()])
        assert batch(database, queue="other") == []
        assert batch(database, startingOffsets="latest") == []

    async def test_a_name_that_no_queue_has_is_warned_of(
        self, database: str, queue: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        await queue.push([item("there")])
        assert len(batch(database, queue="there,x*")) == 1
        assert not caplog.records
        assert len(batch(database, queue="thre,there,it's")) == 1
        assert caplog.messages == ["there is no queue 'thre' and no queue \"it's\": nothing is read of it"]


class TestChoosing:
    async def test_queues_by_pattern_namespace_and_partition(self, database: str, queue: Store) -> None:
        await queue.configure("ns-a", namespace="one", task="t")
        await queue.configure("ns%b", namespace="one", task="u")
        await queue.push([item(name, part) for name in ("ns-a", "ns%b", "nsXb", "other") for part in ("p", "q")])
        assert {row["queue"] for row in batch(database, queue="ns*")} == {"ns-a", "ns%b", "nsXb"}
        assert {row["queue"] for row in batch(database, queue="ns%b")} == {"ns%b"}
        assert {row["queue"] for row in batch(database, queue="ns?b,other")} == {"ns%b", "nsXb", "other"}
        assert {row["queue"] for row in batch(database, namespace="one")} == {"ns-a", "ns%b"}
        assert {row["queue"] for row in batch(database, namespace="one", task="u")} == {"ns%b"}
        assert {row["partition"] for row in batch(database, partitions="q")} == {"q"}

    async def test_between_times(self, database: str, queue: Store) -> None:
        await fill(queue)
        shown = await view(database)
        moments = sorted({row["created_at"] for row in shown})
        first, last = moments[4], moments[9]
        rows = places(batch(database, startingOffsets=first.isoformat(), endingOffsets=last.isoformat()))
        assert sorted(rows) == places([row for row in shown if first <= row["created_at"] < last])

    async def test_between_sequence_numbers(
        self, database: str, queue: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        await fill(queue)
        start = json.dumps({"orders": {"p0": 5, "p1": 1, "none": 3}, "gone": {"x": 1}})
        end = '{"orders": {"p0": 8}}'
        rows = places(batch(database, queue="orders,go*", startingOffsets=start, endingOffsets=end))
        assert caplog.messages == [
            "offsets were given for partitions that do not exist, and have no effect: 'orders'/'none', 'gone'/'x'"
        ]
        assert [seq for _, partition, seq in rows if partition == "p0"] == [5, 6, 7]
        assert next(seq for _, partition, seq in rows if partition == "p1") == 1
        assert {partition for _, partition, _ in rows} == {"p0", "p1", "p2"}


class TestFilters:
    OPERATORS = (
        (EqualTo, "__eq__"),
        (GreaterThan, "__gt__"),
        (GreaterThanOrEqual, "__ge__"),
        (LessThan, "__lt__"),
        (LessThanOrEqual, "__le__"),
    )

    async def test_each_narrows_the_read_exactly(self, database: str, queue: Store) -> None:
        await fill(queue)
        shown = await view(database)
        moment = shown[45]["created_at"]
        for kind, operator in self.OPERATORS:
            for column, value in (
                ("seq", 9),
                ("created_at", moment),
                ("created_at", moment + timedelta(microseconds=1)),
            ):
                expected = [row for row in shown if getattr(row[column], operator)(value)]
                found = batch(database, filters=[kind((column,), value)])
                assert places(sorted_rows(found)) == places(expected), (kind, column)

    @pytest.mark.parametrize(
        ("chosen", "passes"),
        [
            ([EqualTo(("queue",), "orders")], lambda row: row["queue"] == "orders"),
            ([In(("partition",), ("p1", "p2", "zz"))], lambda row: row["partition"] in ("p1", "p2")),
            ([EqualTo(("partition",), "p1"), In(("partition",), ("p0", "p1"))], lambda row: row["partition"] == "p1"),
            ([EqualTo(("partition",), "p1"), EqualTo(("partition",), "p2")], lambda row: False),
            ([EqualTo(("partition_id",), "nonsense")], lambda row: False),
            ([IsNotNull(("seq",)), GreaterThan(("seq",), 3), LessThan(("seq",), 3)], lambda row: False),
            ([GreaterThan(("seq",), -5), LessThan(("seq",), 2)], lambda row: row["seq"] < 2),
            ([GreaterThan(("seq",), 2**62)], lambda row: False),
            ([In(("partition",), ("p1", "p\0"))], lambda row: row["partition"] == "p1"),
            ([LessThanOrEqual(("created_at",), datetime.max)], lambda row: True),
        ],
    )
    async def test_together(self, database: str, queue: Store, chosen: list[Filter], passes: Any) -> None:
        await fill(queue)
        assert places(sorted_rows(batch(database, filters=chosen))) == places(
            [row for row in await view(database) if passes(row)]
        )

    async def test_an_id_of_a_partition(self, database: str, queue: Store) -> None:
        await fill(queue)
        shown = await view(database)
        wanted = shown[0]["partition_id"]
        assert places(batch(database, filters=[EqualTo(("partition_id",), wanted)])) == places(
            [row for row in shown if row["partition_id"] == wanted]
        )

    async def test_what_the_database_cannot_answer_is_left_to_spark(self, database: str) -> None:
        left = [EqualTo(("payload",), "x"), IsNotNull(("trace_id",)), EqualTo(("data", "total"), 1)]
        left += [GreaterThan(("created_at",), datetime.max), LessThan(("created_at",), datetime.min)]
        assert list(reader(database, pushdown="true").pushFilters([*left, EqualTo(("queue",), "a")])) == left


class TestLoss:
    async def trim(self, url: str, upto: int) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("delete from queen.segments where last_seq <= $1", upto)
        await connection.execute("update queen.partition_lookup set trimmed_seq = $1", upto)
        await connection.close()

    async def test_what_was_removed_before_the_plan_is_simply_not_there(self, database: str, queue: Store) -> None:
        for _ in range(3):
            await queue.push([item(), item()])
        await self.trim(database, 2)
        assert [row["seq"] for row in batch(database)] == [3, 4, 5, 6]

    async def test_what_is_removed_after_the_plan_fails_the_read(self, database: str, queue: Store) -> None:
        for _ in range(3):
            await queue.push([item(), item()])
        source = reader(database)
        [part] = source.partitions()
        await self.trim(database, 4)
        with pytest.raises(
            DataLoss, match=r"partition 'p' of queue 'orders' has lost the messages 1 to 4.*failOnDataLoss=false"
        ):
            list(source.read(part))

    async def test_or_warns(self, database: str, queue: Store, caplog: pytest.LogCaptureFixture) -> None:
        for _ in range(3):
            await queue.push([item(), item()])
        source = reader(database, failOnDataLoss="false")
        [part] = source.partitions()
        await self.trim(database, 4)
        assert [row["seq"] for each in source.read(part) for row in each.to_pylist()] == [5, 6]
        assert "has lost the messages 1 to 4" in caplog.text

    async def test_a_partition_that_was_deleted_is_a_loss_too(self, database: str, queue: Store) -> None:
        await queue.push([item()])
        source = reader(database)
        [part] = source.partitions()
        await queue.delete_queue("orders")
        with pytest.raises(DataLoss, match="was removed with the messages 1 to 1"):
            list(source.read(part))


class TestEncryption:
    @pytest.fixture
    async def sealed(self, database: str) -> str:
        opened = Store(await create_pool(database, size=1), Cipher(bytes.fromhex(KEY)))
        await opened.push([item(payload=b'{"open": 1}')])
        await opened.configure("orders", encryptionEnabled=True)
        await opened.push([item(payload=b'{"canary": 2}'), item(payload=b'"canary"')])
        await opened.close()
        return database

    async def test_without_a_key_payloads_are_as_stored_and_marked(self, sealed: str) -> None:
        rows = batch(sealed)
        assert [row["encrypted"] for row in rows] == [False, True, True]
        assert "canary" not in str(rows)
        assert set(json.loads(rows[1]["payload"])) == {"encrypted", "iv", "authTag"}

    async def test_with_the_key_they_are_in_clear(self, sealed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", KEY)
        rows = batch(sealed)
        assert [row["payload"] for row in rows] == ['{"open": 1}', '{"canary": 2}', '"canary"']
        assert not any(row["encrypted"] for row in rows)
        assert "canary" not in str(batch(sealed, decrypt="false"))

    async def test_another_key_is_refused(self, sealed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", "00" * 32)
        with pytest.raises(Unreadable, match="decrypt=false"):
            batch(sealed)
        monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", "not a key")
        with pytest.raises(OptionError, match="64 hexadecimal digits") as caught:
            batch(sealed)
        assert "not a key" not in caught.value.message


class TestParsedPayloads:
    ORDER = StructType().add("total", DoubleType()).add("customer", StringType()).add("items", ArrayType(IntegerType()))

    async def test_objects_become_structs_and_what_does_not_fit_null(self, database: str, queue: Store) -> None:
        fitting = [b'{"total": 1.5, "customer": "a", "items": [1, 2], "more": {}}', b'{\n"total": 2}', b"{}"]
        await queue.push([item("good", payload=payload) for payload in fitting])
        odd = [b"7", b'"text"', b"null", b"[1]", b'{"total": "x", "customer": {"id": 1}, "items": [1, "b", 2.5]}']
        await queue.push([item("odd", payload=payload) for payload in odd])
        assert [row["data"] for row in batch(database, ["seq"], queue="good", data=self.ORDER)] == [
            {"total": 1.5, "customer": "a", "items": [1, 2]},
            {"total": 2.0, "customer": None, "items": None},
            {"total": None, "customer": None, "items": None},
        ]
        nothing = {"total": None, "customer": None, "items": None}
        assert [row["data"] for row in batch(database, ["seq"], queue="odd", data=self.ORDER)] == [
            *(nothing, nothing, nothing, nothing),
            {"total": None, "customer": '{"id":1}', "items": None},
        ]


class TestReach:
    def test_a_database_that_is_not_there(self) -> None:
        with pytest.raises(Unreachable, match="PostgreSQL cannot be reached"):
            batch("postgresql://queen@127.0.0.1:9/queen")

    async def test_a_database_without_a_schema(self, database: str) -> None:
        with pytest.raises(NotReady, match="queen db migrate"):
            batch(database.replace("/queen_test", "/postgres?x=").split("?x=")[0] + "?" + database.partition("?")[2])

    def test_the_password_comes_from_the_environment(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from queenmq.spark.connecting import with_password

        monkeypatch.setenv("DATABASE_URL", "postgresql://queen:geheim@db/queen")
        assert with_password("postgresql://queen@db/queen") == "postgresql://queen:geheim@db/queen"
        assert with_password("postgresql://queen@other/queen") == "postgresql://queen@other/queen"
