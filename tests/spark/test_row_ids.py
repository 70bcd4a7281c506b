"""The ids of rows: the same for the rows of a task in whatever order and portions, different for everything else."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.domain.ids import dedup_keys
from queenmq.spark.row_ids import Occurrences, RowIds, Scope

SCOPE = Scope("query", 7, "", 0)
Row = tuple[str, str, bytes]
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.sampled_from([b"1", b"2", b"{}"])),
    max_size=60,
)


def ids_of(rows: list[Row], scope: Scope = SCOPE, portion: int = 1000) -> list[str]:
    ids = RowIds(scope)
    found: list[str] = []
    for start in range(0, len(rows), portion):
        part = rows[start : start + portion]
        found += ids.of([row[0] for row in part], [row[1] for row in part], [row[2] for row in part])
    return found


@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 20))
def test_order_and_portions_make_no_difference(rows: list[Row], choice: random.Random, portion: int) -> None:
    shuffled = list(rows)
    choice.shuffle(shuffled)
    first = Counter(zip(rows, ids_of(rows), strict=True))
    assert first == Counter(zip(shuffled, ids_of(shuffled, portion=portion), strict=True))


@given(ROWS)
def test_equal_rows_are_different_messages(rows: list[Row]) -> None:
    assert len(set(ids_of(rows))) == len(rows)


@pytest.mark.parametrize(
    "other",
    [replace(SCOPE, query="q2"), replace(SCOPE, batch=8), replace(SCOPE, write="w"), replace(SCOPE, task=1)],
)
def test_another_task_or_batch_has_other_ids(other: Scope) -> None:
    rows = [("q", "p", b"%d" % number) for number in range(100)]
    assert not set(ids_of(rows)) & set(ids_of(rows, other))


def test_the_parts_of_a_row_are_kept_apart() -> None:
    """Each by an object of its own, which does not know the others: they differ by what they say."""
    rows = [("ab", "c", b"1", b""), ("a", "bc", b"1", b""), ("a", "b", b"c1", b""), ("a", "b", b"1", b"")]
    rows += [("a", "b", b"1", b'["x",null]'), ("a", "b", b"1", b'[null,"x"]')]
    found = [RowIds(SCOPE).of([queue], [name], [payload], [extra]) for queue, name, payload, extra in rows]
    assert len({name for (name,) in found}) == len(rows)


def test_ids_are_canonical_and_near_each_other() -> None:
    found = ids_of([("q", "p", b"%d" % number) for number in range(2000)])
    assert dedup_keys([*found]) == found
    assert len({name[:13] for name in found}) == 1, "all ids of a batch begin alike"
    assert all(re.fullmatch(r"[0-9a-f]{8}-0007-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", name) for name in found)
    assert {name[19] for name in found} == set("89ab")


def test_ids_are_the_same_in_every_process_and_release() -> None:
    """A job may be repeated by another version of this code, on another machine."""
    assert ids_of([("orders", "ä", b'{"n":1}'), ("orders", "ä", b'{"n":1}')]) == [
        "fcd47fda-0007-8d9b-b86a-eaa9c373f6d2",
        "fcd47fda-0007-8ccc-843e-7917227d6f58",
    ]


def test_no_rows() -> None:
    assert ids_of([]) == []
    assert RowIds(SCOPE).of([], [], []) == []


@given(st.lists(st.lists(st.integers(0, 12), max_size=40), max_size=30))
def test_occurrences_are_counted(portions: list[list[int]]) -> None:
    seen: Counter[int] = Counter()
    occurrences = Occurrences()
    for portion in portions:
        expected = []
        for key in portion:
            expected.append(seen[key])
            seen[key] += 1
        assert occurrences.count(np.array(portion, dtype=np.uint64)).tolist() == expected


def test_occurrences_take_little_memory() -> None:
    """12 bytes per key, in few arrays: not an object for each row of a large task."""
    occurrences = Occurrences()
    keys = np.random.default_rng(1).permutation(200_000).astype(np.uint64)
    for start in range(0, len(keys), 1000):
        assert not occurrences.count(keys[start : start + 1000]).any()
    runs = occurrences._runs
    assert sum(run.nbytes for pair in runs for run in pair) == 12 * len(keys)
    assert len(runs) <= 8
    assert (occurrences.count(keys) == 1).all()
