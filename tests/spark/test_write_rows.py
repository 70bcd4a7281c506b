"""Rows into messages: which columns there may be, what is refused and how it is named, how pushes are cut."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from queenmq.domain.segments import Parcel
from queenmq.spark.errors import OptionError, SparkError, WriteRefused
from queenmq.spark.options import WriteOptions
from queenmq.spark.pushing import Tally, push_all
from queenmq.spark.row_ids import RowIds
from queenmq.spark.write_rows import Columns, Rows, cuts, portions
from queenmq.spark.writer import MessageStreamWriter, MessageWriter
from tests.spark.writing import SCOPE, rows, to_database, to_server

DATABASE = "postgresql://queen@localhost/queen"
SEALED = '{"encrypted":"YWJj","iv":"YWJj","authTag":"YWJj"}'


def schema(text: str) -> StructType:
    """From `name type, name type`: only a running Spark could parse DDL."""
    pairs = [part.split() for part in text.split(",")]
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in pairs]
    return StructType.fromJson({"type": "struct", "fields": fields})


def parcels(*batches: pa.RecordBatch, **given: str) -> list[Parcel]:
    positions = {name: position for position, name in enumerate(batches[0].schema.names)}
    options = to_database(DATABASE, **given)
    return list(Rows(Columns(**positions), options, RowIds(SCOPE)).parcels(batches))


def refusal(batch: pa.RecordBatch, **given: str) -> str:
    with pytest.raises(WriteRefused) as refused:
        parcels(batch, **given)
    return refused.value.message


def test_columns_are_found_in_any_order_and_case() -> None:
    found = Columns.of(schema("Partition string,payload string,trace_id void"), to_database(DATABASE, queue="q"))
    assert found == Columns(payload=1, partition=0, trace_id=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("payload string,seq long", "column seq cannot be written; select only payload, queue, partition,"),
        ("payload binary", "column payload is of type binary; it must be string"),
        ("payload string,queue integer", "column queue is of type int; it must be string"),
        ("payload string,encrypted string", "column encrypted is of type string; it must be boolean"),
        ("payload void", "column payload is of type void"),
        ("queue string", "column payload is missing; it is the JSON text"),
        ("payload string,PAYLOAD string", "column PAYLOAD is there twice"),
    ],
)
@pytest.mark.parametrize("writer", [MessageWriter, MessageStreamWriter])
def test_other_columns_are_refused_before_anything_runs(
    text: str, expected: str, writer: Callable[[WriteOptions, StructType, bool], object]
) -> None:
    with pytest.raises(WriteRefused) as refused:
        writer(to_database(DATABASE, queue="q"), schema(text), False)
    assert refused.value.message.startswith(expected)


def test_a_struct_is_to_be_made_json() -> None:
    nested = StructType().add("payload", schema("total double"))
    with pytest.raises(WriteRefused, match=r"of type struct<total:double>; it must be string; .* to_json\(payload\)"):
        Columns.of(nested, to_database(DATABASE, queue="q"))


def test_without_a_queue() -> None:
    with pytest.raises(OptionError, match="option queue is missing"):
        Columns.of(schema("payload string"), to_database(DATABASE))
    assert refusal(rows(queue=["a", None], payload=["1", "2"])).startswith("row 1 of task 0: queue is null")


@pytest.mark.parametrize("column", ["producer_sub string", "encrypted boolean"])
def test_what_a_server_stamps_itself_is_refused_over_http(column: str) -> None:
    text = f"payload string,{column}"
    with pytest.raises(WriteRefused, match=f"column {column.split()[0]} cannot be written over HTTP"):
        Columns.of(schema(text), to_server("http://localhost:1", queue="q"))
    Columns.of(schema(text), to_database(DATABASE, queue="q"))


@pytest.mark.parametrize("writer", [MessageWriter, MessageStreamWriter])
def test_a_queue_is_not_overwritten(writer: Callable[[WriteOptions, StructType, bool], object]) -> None:
    with pytest.raises(WriteRefused, match="cannot be overwritten, only added to; use mode append"):
        writer(to_database(DATABASE, queue="q"), schema("payload string"), True)


def test_a_writer_travels_to_the_executors_without_a_password() -> None:
    options = to_database("postgresql://queen:hunter2@localhost/queen", queue="q")
    writer = MessageWriter(options, schema("payload string"), False)
    assert b"hunter2" not in pickle.dumps(writer)
    assert pickle.loads(pickle.dumps(writer))._id == writer._id


def test_defaults_fill_what_rows_lack() -> None:
    batch = rows(payload=["1", "2", None], queue=["a", None, "b"], partition=[None, "x", "x"])
    (parcel,) = parcels(batch, queue="q", partition="rest")
    assert [(item.queue, item.partition, bytes(item.payload)) for item in parcel.items] == [
        ("a", "rest", b"1"),
        ("q", "x", b"2"),
        ("b", "x", b"null"),
    ]


def test_own_transaction_ids_win() -> None:
    batch = rows(payload=["1", "1", "1", "1"], transaction_id=["mine", None, "", "yours"])
    (parcel,) = parcels(batch, queue="q")
    names = [item.transaction_id for item in parcel.items]
    assert (names[0], names[3]) == ("mine", "yours")
    assert names[1:3] == RowIds(SCOPE).of(["q"] * 2, ["Default"] * 2, [b"1"] * 2)


def test_ids_depend_on_the_row_and_not_on_its_batch() -> None:
    """A batch in which nobody has a trace id is no different from one in which a neighbour has."""
    trace = "0190e8f0-0000-7000-8000-000000000000"
    whole = rows(payload=["1", "2"], trace_id=[None, trace], encrypted=[None, False])
    together = [item.transaction_id for parcel in parcels(whole, queue="q") for item in parcel.items]
    alone = [item.transaction_id for parcel in parcels(whole[:1], whole[1:], queue="q") for item in parcel.items]
    assert together == alone


def test_ids_depend_on_everything_that_is_stored_with_a_row() -> None:
    """Also of rows among others that have an id of their own."""
    trace = "0190e8f0-0000-7000-8000-000000000000"
    whole = rows(
        payload=["1", SEALED, SEALED, SEALED],
        transaction_id=["mine", None, None, None],
        trace_id=[None, None, trace, None],
        encrypted=[False, False, False, True],
    )
    together = [item.transaction_id for parcel in parcels(whole, queue="q") for item in parcel.items]
    alone = [parcels(whole[row : row + 1], queue="q")[0].items[0].transaction_id for row in range(4)]
    assert together == alone
    assert len(set(together)) == 4


def test_a_bad_name_is_found_among_names_that_are_known() -> None:
    with pytest.raises(WriteRefused, match="row 3 of task 0: partition must be a"):
        parcels(
            rows(payload=["1", "2"], partition=["a", "b"]), rows(payload=["1", "2"], partition=["a", "\n"]), queue="q"
        )


@pytest.mark.parametrize(
    "payload",
    ["", "{", "1,2", '1},{"queue":"other","payload":2', "[1", "nul", "{'a':1}", '"\\u0000"', "1e200000", "NaN"],
)
@pytest.mark.parametrize("neighbour", ["2", "2]"])
def test_a_payload_that_is_not_json_is_named_and_not_shown(payload: str, neighbour: str) -> None:
    said = refusal(rows(payload=["1", payload, neighbour]), queue="q")
    assert said.startswith("row 1 of task 0: payload must be ")
    assert said.endswith("nothing of its push was stored")
    assert len(payload) < 4 or payload not in said


def test_payloads_that_are_json_only_together_are_refused() -> None:
    assert refusal(rows(payload=["[1", "2]", "3,4"]), queue="q").startswith("row 0 of task 0: payload")


@pytest.mark.parametrize(
    ("column", "value"),
    [("partition", "a\x1eb"), ("queue", ""), ("queue", "x" * 256), ("transaction_id", "a\nb"), ("trace_id", "nope")],
)
def test_a_bad_name_is_named(column: str, value: str) -> None:
    good = {"trace_id": "0190e8f0-0000-7000-8000-000000000000"}.get(column, "good")
    batch = rows(payload=["1", "2", "3"], **{column: [good, value, good]})
    assert refusal(batch, queue="q").startswith(f"row 1 of task 0: {column} must be a")


def test_rows_are_numbered_through_all_batches_of_a_task() -> None:
    with pytest.raises(WriteRefused, match="row 3 of task 0"):
        parcels(rows(payload=["1", "2", "3"]), rows(payload=["{"]), queue="q")


def test_a_row_is_marked_encrypted_only_with_an_encrypted_payload() -> None:
    (parcel,) = parcels(rows(payload=[SEALED, "1"], encrypted=[True, None]), queue="q")
    assert parcel.marks == [True, False]
    assert "encrypted is true" in refusal(rows(payload=["{}"], encrypted=[True]), queue="q")


def test_json_with_space_around_it_stays_as_it_is() -> None:
    (parcel,) = parcels(rows(payload=[' {"a": 1}\n', '"ü"']), queue="q")
    assert [bytes(item.payload) for item in parcel.items] == [b' {"a": 1}\n', '"ü"'.encode()]


def test_large_texts_and_empty_batches() -> None:
    large = pa.record_batch({"payload": pa.array(["1", None], pa.large_string())})
    (parcel,) = parcels(large[:0], large, queue="q")
    assert [bytes(item.payload) for item in parcel.items] == [b"1", b"null"]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 10), st.integers(1, 100))
def test_cuts_cover_everything_within_the_limits(sizes: list[int], most_items: int, most_bytes: int) -> None:
    payloads = [b"x" * size for size in sizes]
    found = list(cuts(payloads, most_items, most_bytes))
    assert [row for start, end in found for row in range(start, end)] == list(range(len(sizes)))
    for start, end in found:
        assert 1 <= end - start <= most_items
        assert sum(sizes[start:end]) <= most_bytes or end - start == 1


def test_a_large_batch_is_worked_on_in_portions() -> None:
    """Else a task would hold all of it several times."""
    megabyte = json.dumps("x" * (1 << 20))
    batch = rows(payload=[*[megabyte] * 50, "{"], partition=[str(number) for number in range(51)])
    made = Rows(Columns(0, partition=1), to_database(DATABASE, queue="q"), RowIds(SCOPE)).parcels([batch])
    found: list[str | None] = []
    with pytest.raises(WriteRefused, match="row 50 of task 0: payload"):
        found.extend(item.partition for parcel in made for item in parcel.items)
    assert found == [str(number) for number in range(48)]


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 500))
def test_portions_are_the_batch(sizes: list[int], most_bytes: int) -> None:
    batch = rows(payload=["x" * size for size in sizes])
    found = list(portions(batch, most_bytes))
    assert [text for portion in found for text in portion["payload"].to_pylist()] == batch["payload"].to_pylist()
    assert all(portion.num_rows for portion in found)
    if sizes and batch.nbytes > most_bytes:
        assert len(found) >= min(len(sizes), batch.nbytes // most_bytes)


def test_errors_travel_from_tasks_to_the_driver() -> None:
    error = pickle.loads(pickle.dumps(WriteRefused("a sentence")))
    assert (type(error), error.message, isinstance(error, SparkError)) == (WriteRefused, "a sentence", True)


class Recording:
    """A pusher that fails at one of its parcels."""

    def __init__(self, fails_at: int) -> None:
        self.pushed: list[bytes] = []
        self.closed = False
        self._fails_at = fails_at

    def push(self, parcel: Parcel) -> Tally:
        if len(self.pushed) == self._fails_at:
            self._fails_at = -1
            raise WriteRefused("once")
        self.pushed += [bytes(item.payload) for item in parcel.items]
        return Tally(len(parcel.items))

    def close(self) -> None:
        self.closed = True


def test_nothing_is_pushed_behind_a_push_that_failed() -> None:
    """Else a second attempt would store what failed behind what came after it."""
    one_by_one = parcels(rows(payload=[str(number) for number in range(40)]), queue="q", batchSize="1")
    pusher = Recording(fails_at=3)
    with pytest.raises(WriteRefused, match="once"):
        push_all(one_by_one, pusher, 0)
    assert (pusher.pushed, pusher.closed) == ([b"0", b"1", b"2"], True)
    pusher = Recording(fails_at=-1)
    assert push_all(one_by_one, pusher, 0) == Tally(40)
    assert pusher.pushed == [b"%d" % number for number in range(40)]
