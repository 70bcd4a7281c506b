"""Plans: what is divided among tasks is the whole, evenly; what a limit lets through is fair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.spark.admission import about, at_most
from queenmq.spark.planning import Ranges, default_splits, divided, names_and_patterns, stream_splits, texts

amounts = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def backlog(sizes: list[int]) -> Ranges:
    count = len(sizes)
    los = np.arange(count, dtype=np.int64) * 7
    return Ranges(np.arange(1, count + 1, dtype=np.int64) * 3, los, los + np.array(sizes, dtype=np.int64))


def messages(ranges: Ranges) -> list[tuple[int, int]]:
    return [
        (int(pid), seq)
        for pid, lo, hi in zip(ranges.pids, ranges.los, ranges.his, strict=True)
        for seq in range(lo + 1, hi + 1)
    ]


@given(amounts, st.integers(1, 50))
def test_tasks_share_every_message_evenly_and_in_order(sizes: list[int], splits: int) -> None:
    whole = backlog(sizes)
    parts = divided(whole, splits)
    assert [place for part in parts for place in messages(part)] == messages(whole)
    counts = [part.messages for part in parts]
    assert not counts or max(counts) - min(counts) <= 1
    assert len(parts) == min(splits, sum(sizes))


def test_one_huge_partition_is_read_by_several_tasks() -> None:
    parts = divided(backlog([1_000_000]), 4)
    assert [(int(part.los[0]), int(part.his[0])) for part in parts] == [
        (0, 250_000),
        (250_000, 500_000),
        (500_000, 750_000),
        (750_000, 1_000_000),
    ]


def test_many_small_partitions_share_a_task() -> None:
    parts = divided(backlog([2] * 100_000), 8)
    assert [part.messages for part in parts] == [25_000] * 8
    assert sum(len(part.pids) for part in parts) == 100_000


def test_small_reads_are_not_divided() -> None:
    assert default_splits(1) == 1
    assert default_splits(19_999) == 1
    assert default_splits(10**9) >= 4


def test_how_a_micro_batch_is_divided_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for cores in (1, 2, 64):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        found.append([stream_splits(messages) for messages in (1, 20_000, 10**6, 10**9)])
    assert found == [[1, 2, 8, 8]] * 3


@given(amounts, st.integers(1, 300), st.integers(0, 1000))
def test_a_limit_is_kept_used_up_and_shared_fairly(sizes: list[int], limit: int, turn: int) -> None:
    whole = backlog(sizes)
    taken = at_most(whole, limit, turn)
    assert taken.messages == min(limit, sum(sizes))
    assert (taken.los == whole.los).all()
    got, had = taken.his - taken.los, whole.his - whole.los
    assert (got <= had).all()
    unsatisfied = got[got < had]
    if len(unsatisfied):
        assert got.max() - unsatisfied.min() <= 1


def test_with_more_partitions_than_messages_everyone_has_a_turn() -> None:
    whole = backlog([5] * 10)
    served = {int(pid) for turn in range(10) for pid in at_most(whole, 3, turn).nonempty().pids}
    assert served == set(whole.pids.tolist())


@given(amounts, st.integers(1, 5000), st.integers(0, 1000), st.data())
def test_a_limit_of_bytes_is_kept_but_for_a_first_message(
    sizes: list[int], limit: int, turn: int, data: st.DataObject
) -> None:
    whole = backlog(sizes)
    each = np.array(
        data.draw(st.lists(st.integers(1, 400), min_size=len(sizes), max_size=len(sizes))), dtype=np.float64
    )
    taken = about(whole, limit, each, turn)
    got, had = taken.his - taken.los, whole.his - whole.los
    assert (got <= had).all()
    size = float((got * each).sum())
    assert size <= limit or got.sum() == 1
    if had.sum():
        assert got.sum() >= 1
    if (got < had).any():
        assert limit - size < each[got < had].max(initial=0) * len(sizes) + 1


def test_names_and_patterns() -> None:
    assert names_and_patterns(["orders", "o*", "a?c", "50%_\\", "50%_\\*"]) == (
        ["orders", "50%_\\"],
        ["o%", "a_c", "50\\%\\_\\\\%"],
    )
    assert names_and_patterns([]) == ([], ["%"])


def test_texts_of_arrays_are_quoted() -> None:
    assert texts(['a"b', "c\\d", "e,f", "", "NULL"]) == '{"a\\"b","c\\\\d","e,f","","NULL"}'
    assert texts(None) is None
