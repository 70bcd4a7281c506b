"""Payloads as a struct: what fits is there, what does not is null, and no message stops the others.

Whether that is what Spark's `from_json` returns is tested in test_from_json.py.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.spark.payloads import parse_payloads

HUGE = "1" + "0" * 400
SIMPLE = [pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()]
TYPES = st.recursive(
    st.sampled_from([*SIMPLE, pa.int8(), pa.float32(), pa.decimal128(5, 2)]),
    lambda kinds: st.one_of(
        kinds.map(pa.list_),
        kinds.map(lambda kind: pa.map_(pa.string(), kind)),
        kinds.map(lambda kind: pa.struct([("a", kind), ("b", pa.string())])),
    ),
    max_leaves=3,
)
TEXTS = st.sampled_from(["", "x", "ü", "1", "2025-01-31", "2025-01-31T00:00:00Z", "YWJj", "123456.789"])
NUMBERS = st.integers() | st.sampled_from([10**400, -(2**31), 2**31, 0.1, -1.5e300, 999.999])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3),
    max_leaves=8,
)


def parsed(kind: pa.DataType, *texts: str) -> list[Any]:
    """The field a of each payload."""
    sealed = pa.array([False] * len(texts), pa.bool_())
    found = parse_payloads(pa.array(texts, pa.string()), sealed, pa.struct([("a", kind)])).to_pylist()
    return [each and each["a"] for each in found]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int32(), "2147483647", 2147483647),
        (pa.int32(), "2147483648", None),
        (pa.int32(), "-2147483648", -2147483648),
        (pa.int32(), "1.0", None),
        (pa.int32(), "true", None),
        (pa.float64(), "1", 1.0),
        (pa.float64(), HUGE, float("inf")),
        (pa.float64(), "-" + HUGE, float("-inf")),
        (pa.bool_(), "1", None),
        (pa.string(), "1", "1"),
        (pa.string(), '[1, "x"]', '[1,"x"]'),
        (pa.decimal128(5, 2), "999.99", Decimal("999.99")),
        (pa.decimal128(5, 2), "1000", None),
        (pa.decimal128(5, 2), '"12.345"', Decimal("12.35")),
        (pa.decimal128(5, 2), '"NaN"', None),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.map_(pa.string(), pa.int32()), '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
        (pa.map_(pa.string(), pa.int32()), '{"x": 1, "y": "z"}', None),
        (pa.list_(pa.int32()), "[1, null]", [1, None]),
        (pa.list_(pa.int32()), '[1, "x", null]', None),
        (pa.list_(pa.struct([("x", pa.int32())])), '[{"x": 1}, {"x": "y"}]', [{"x": 1}, {"x": None}]),
    ],
)
def test_a_value_fits_or_is_null(kind: pa.DataType, value: str, expected: object) -> None:
    """Alone, and beside a payload that Arrow's reader cannot read."""
    text = f'{{"a": {value}}}'
    assert parsed(kind, text) == [expected]
    assert parsed(kind, text, "1", text) == [expected, None, expected]


@given(TYPES, st.lists(st.dictionaries(st.sampled_from(["a", "b"]), VALUES), min_size=1, max_size=5))
def test_both_ways_agree_and_never_fail(kind: pa.DataType, messages: list[dict[str, Any]]) -> None:
    texts = [json.dumps(message) for message in messages]
    assert parsed(kind, *texts) == parsed(kind, *texts, "[]")[:-1]


def test_what_is_encrypted_is_null() -> None:
    kind = pa.struct([("a", pa.int32())])
    found = parse_payloads(pa.array(['{"a":1}', '{"a":2}']), pa.array([True, False]), kind)
    assert found.to_pylist() == [None, {"a": 2}]


def test_a_payload_is_one_message_whatever_it_looks_like() -> None:
    kind = pa.struct([("a", pa.int32())])
    texts = ['{"a":\n1}', '{"a":2, "more": {"b": [1]}}', "{}"]
    assert parse_payloads(pa.array(texts), pa.array([False] * 3), kind).to_pylist() == [{"a": 1}, {"a": 2}, {"a": None}]
    assert parsed(pa.int32()) == []
