"""The field that a place in a JSON text belongs to, for texts that no decoder reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.http.parse.places import field_at, field_deeper_than, first_not_unicode

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"!", None),
        (b'{"a":!', "a"),
        (b'{"a" : 1 , "b" : !', "b"),
        (b'{"a":1,!', None),
        (b'{"a":{"b":1,!', "a"),
        (b'{"items":[!', "items[0]"),
        (b'{"items":[{"queue":"q"},{"queue":!', "items[1].queue"),
        (b'{"items":[{"queue":"q"},{"queue":"text!', "items[1].queue"),
        (b'{"items":[{"queue":"}],\\"[{:,","partition":!', "items[0].partition"),
        (b'{"items":[{"payload":{"a":[1,{"b":!', "items[0].payload"),
        (b'{"x":[[[1],{}],"y:"],"operations":[{},{"items":[{},{"payload":!', "operations[1].items[1].payload"),
        (b"]}]:,{!", None),
        (b'{"a":1}}}],"b":!', None),
        (b'{"' + b"k" * 500 + b'":!', "k" * 60),
        (b'{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":!', "a.a.a.a.a.a"),
    ],
)
def test_a_place_belongs_to_a_field(text: bytes, field: str | None) -> None:
    assert field_at(text, text.index(b"!")) == field


KEYS = st.text(st.sampled_from('abé{}[]:,"\\ '), min_size=1, max_size=5)
TREES = st.recursive(
    st.one_of(st.integers(), st.text(st.sampled_from('a{}[]:,"\\'), max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=10,
)


@given(TREES, TREES, st.text("ab", min_size=1, max_size=5))
def test_what_stands_before_a_place_does_not_matter(before: Any, inside: Any, name: str) -> None:
    text = json.dumps({"x": before, "list": [before, {"y": inside, name: "here!"}]}, ensure_ascii=False).encode()
    assert field_at(text, text.index(b"here!")) == f"list[1].{name}"


def test_the_first_deep_field_is_named() -> None:
    deep, flat = b"[" * 20 + b"]" * 20, b"[[],[],{}]" * 50
    assert field_deeper_than(b'{"a":[%b],"b":%b}' % (flat, deep), 10) == "b"
    assert field_deeper_than(b'{"items":[{"payload":1},{"payload":%b}]}' % deep, 10) == "items[1].payload"
    assert field_deeper_than(deep, 10) is None
    assert field_deeper_than(b'{"a":%b}' % deep, 30) is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b'"fine \xc3\xa9 \\u00e9 \\ud83d\\ude00"', None),
        (b'"\\\\ud800"', None),
        (b'"a\xff"', 2),
        (b'"a\\ud800"', 2),
        (b'"a\\udc00"', 2),
        (b'"\\ud83d\\ude00\\uDE00"', 13),
        (b'"\\ud83d\\ud83d\\ude00"', 1),
        (b'"\\\\\\ud800 \xff"', 3),
        (b'"\xff\\ud800"', 1),
    ],
)
def test_the_first_thing_that_is_not_unicode_is_found(text: bytes, place: int | None) -> None:
    found = first_not_unicode(text)
    assert (found and found[0]) == place


def test_a_long_text_is_not_read_to_its_end() -> None:
    long = b'{"a":"%b' % (b"x" * MEGABYTE)
    assert field_at(long, len(long)) is None
    assert field_deeper_than(long + b'","b":' + b"[" * 100, 10) is None
    assert first_not_unicode(long + b"\xff") is None
    assert field_at(b'{"a":[' + b"1," * 200_000, 400_000) is None


@pytest.mark.parametrize("size", range(MEGABYTE - 20, MEGABYTE + 1))
def test_what_is_cut_by_reading_no_further_is_not_taken_for_odd(size: int) -> None:
    for whole in ("é".encode(), b"\\ud83d\\ude00"):
        assert first_not_unicode(b"x" * size + whole) is None
