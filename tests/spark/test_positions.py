"""Positions: small, immutable, and whole again from their steps."""

from __future__ import annotations

import asyncpg
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.spark import positions
from queenmq.spark.connecting import arrow_reads
from queenmq.spark.errors import NotReady
from queenmq.spark.positions import Epoch, Positions

maps = st.dictionaries(st.integers(1, 2**40), st.integers(1, 2**50), max_size=30)


def made(known: dict[int, int]) -> Positions:
    pids = sorted(known)
    return Positions(np.array(pids, dtype=np.int64), np.array([known[pid] for pid in pids], dtype=np.int64))


def told(known: Positions) -> dict[int, int]:
    return dict(zip(known.pids.tolist(), known.seqs.tolist(), strict=True))


@given(maps, maps)
def test_steps_and_differences(before: dict[int, int], change: dict[int, int]) -> None:
    after = made(before).moved(made(change))
    assert told(after) == before | change
    assert told(after.since(made(before))) == {pid: seq for pid, seq in change.items() if seq > before.get(pid, 0)}
    wanted = sorted({*before, *change, 17})
    assert after.at(np.array(wanted, dtype=np.int64)).tolist() == [(before | change).get(pid, 0) for pid in wanted]


@given(maps)
def test_what_is_stored_is_read_again(known: dict[int, int]) -> None:
    assert told(Positions.decoded(made(known).encoded())) == known


def begin(url: str, known: dict[int, int]) -> Epoch:
    with arrow_reads(url, writes=True) as cursor:
        return positions.keep_first(cursor, made(known), positions.look(cursor))


def go_on(url: str, before: Epoch, *changes: dict[int, int]) -> list[Epoch]:
    """One step after the other."""
    epochs = [before]
    with arrow_reads(url, writes=True) as cursor:
        for change in changes:
            epochs.append(positions.keep_next(cursor, epochs[-1], made(change), len(change), positions.look(cursor)))
    return epochs[1:]


def loaded(url: str, *numbers: int) -> list[Epoch]:
    with arrow_reads(url) as cursor:
        return [positions.load(cursor, number) for number in numbers]


def test_an_epoch_is_whole_again_however_many_steps_it_has(database: str) -> None:
    known = dict.fromkeys(range(1, 41), 1)
    changes = [{1 + number % 45: number + 2} for number in range(130)]
    first = begin(database, known)
    epochs = [first, *go_on(database, first, *changes)]
    states = [known]
    for change in changes:
        states.append(states[-1] | change)
    found_again = loaded(database, *(epoch.number for epoch in epochs))
    for epoch, state, found in zip(epochs, states, found_again, strict=True):
        assert told(found.positions) == state
        assert found.offset == epoch.offset
        assert found.depth <= 51


def test_a_large_step_is_stored_as_a_whole(database: str) -> None:
    first = begin(database, dict.fromkeys(range(1, 11), 1))
    [small] = go_on(database, first, {1: 2})
    [large] = go_on(database, first, dict.fromkeys(range(1, 8), 3))
    assert (small.depth, large.depth) == (2, 1)


async def test_100000_partitions_make_an_offset_of_a_few_bytes(database: str) -> None:
    pids = np.arange(1, 100_001, dtype=np.int64)
    with arrow_reads(database, writes=True) as cursor:
        moment = positions.look(cursor)
        first = positions.keep_first(cursor, Positions(pids, pids * 7), moment)
        later = positions.keep_next(cursor, first, Positions(pids[:10], pids[:10] * 8), 10, moment)
    assert len(str(later.offset)) < 100
    [found] = loaded(database, later.number)
    assert (found.positions.at(pids) == np.where(pids <= 10, pids * 8, pids * 7)).all()
    connection = await asyncpg.connect(database)
    sizes = await connection.fetch("select octet_length(positions) as bytes from queen.read_positions order by epoch")
    await connection.close()
    assert sizes[0]["bytes"] < 500_000
    assert sizes[1]["bytes"] < 200


def test_old_epochs_are_forgotten_and_the_last_200_stay_readable(database: str) -> None:
    other = begin(database, {1: 1})
    epoch = begin(database, dict.fromkeys(range(1, 21), 1))
    numbers = [epoch.number, *(each.number for each in go_on(database, epoch, *({5: seq + 2} for seq in range(300))))]
    with arrow_reads(database, writes=True) as cursor:
        positions.forget(cursor, numbers[-1])
    kept = loaded(database, *numbers[-201:])
    assert [told(each.positions)[5] for each in kept] == list(range(101, 302))
    with pytest.raises(NotReady, match=r"new checkpoint"):
        loaded(database, numbers[0])
    with pytest.raises(NotReady, match=r"new checkpoint"):
        go_on(database, Epoch(numbers[0], Positions(), 0, 1, numbers[0]), {1: 2})
    [untouched] = loaded(database, other.number)
    assert told(untouched.positions) == {1: 1}


def test_a_checkpoint_of_another_database_is_told_so(database: str) -> None:
    with pytest.raises(NotReady, match=r"epoch 4711 .* another one"):
        loaded(database, 4711)
