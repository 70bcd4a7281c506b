"""Packing: what goes into a segment comes out of it, in order, with the ids given before the first attempt."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.domain.ids import (
    MESSAGES_PER_SEGMENT,
    base_key,
    dedup_key,
    dedup_keys,
    is_uuid,
    looks_given,
    message_id,
    new_segment_base,
)
from queenmq.domain.segments import Encoded, Parcel, Place, PushItem, Segment, Verdict, encode, group
from queenmq.wire.names import InvalidValue
from queenmq.wire.requests import PushEntry

PLACES = [Place(n, f"uid-{n}", 1, n == 2, False) for n in range(1, 5)]

texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=8)
pushes = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), texts), st.one_of(st.none(), texts), st.booleans()), min_size=1
)


def packed(items: list[PushItem]) -> tuple[list[Segment], Encoded]:
    """The segments of one flush, with partition n of the test at place n."""
    segments, _ = group([Parcel.of(items)])
    for segment in segments:
        segment.place = PLACES[int(segment.partition)]
    return segments, encode(segments)


@given(pushes)
def test_every_message_is_packed_once_in_order_or_is_a_twin(
    rows: list[tuple[int, str | None, str | None, bool]],
) -> None:
    items = [
        PushItem("q", b"%d" % n, str(at), transaction_id=tx, producer_sub=sub, encrypted=mark)
        for n, (at, tx, sub, mark) in enumerate(rows)
    ]
    segments, encoded = packed(items)
    assert encoded.pids == sorted(set(encoded.pids))
    seen: list[int] = []
    for position, data in enumerate(encoded.datas):
        indexes = [int(payload) for payload in data.split(b"\x1e")]
        assert indexes == sorted(indexes)
        assert len(indexes) == encoded.ns[position]
        assert {rows[index][0] for index in indexes} == {encoded.pids[position] - 1}
        assert _column(encoded.txs[position], len(indexes)) == [rows[index][1] or "" for index in indexes]
        assert _column(encoded.subs[position], len(indexes)) == [rows[index][2] or "" for index in indexes]
        marks = encoded.encs[position] or "0" * len(indexes)
        assert [mark == "1" for mark in marks] == [rows[index][3] for index in indexes]
        assert encoded.last_ids[position] == message_id(encoded.bases[position], len(indexes) - 1)
        seen += indexes
    twins = [[*map(id, items)].index(id(segment.items[twin])) for segment in segments for twin in segment.twins]
    assert sorted([*seen, *twins]) == list(range(len(rows)))
    for segment in segments:
        for twin, first in segment.twins.items():
            assert first < twin
            assert segment.items[first].transaction_id == segment.items[twin].transaction_id


@given(pushes)
def test_keys_point_at_their_messages(rows: list[tuple[int, str | None, str | None, bool]]) -> None:
    _, encoded = packed([PushItem("q", b"1", str(at), transaction_id=tx) for at, tx, _, _ in rows])
    columns = [_column(tx, n) for tx, n in zip(encoded.txs, encoded.ns, strict=True)]
    pointed = set()
    for key, position in zip(encoded.keys, encoded.key_pos, strict=True):
        segment, offset = position >> 16, position & 0xFFFF
        if key == base_key(encoded.bases[segment]):
            assert offset == 0
            assert "" in columns[segment]
        else:
            assert key == dedup_key(columns[segment][offset])
            pointed.add((segment, offset))
    named = {(segment, offset) for segment, column in enumerate(columns) for offset, tx in enumerate(column) if tx}
    assert pointed == named


@given(pushes)
def test_each_flush_says_which_ids_it_gives(rows: list[tuple[int, str | None, str | None, bool]]) -> None:
    _, encoded = packed([PushItem("q", b"1", str(at), transaction_id=tx) for at, tx, _, _ in rows])
    for segment, base in enumerate(encoded.bases):
        column = _column(encoded.txs[segment], encoded.ns[segment])
        unnamed = {index for index, tx in enumerate(column) if not tx}
        if unnamed:
            assert _indexes(encoded.givens[encoded.keys.index(base_key(base))]) == unnamed
        else:
            assert base_key(base) not in encoded.keys
    assert len(encoded.givens) == sum(key in map(base_key, encoded.bases) for key in encoded.keys)


def _indexes(multirange: str) -> set[int]:
    """Those of an element like "{[0,2),[5,6)}", quotes included."""
    ranges = [part.split(",") for part in multirange.strip('"{}[)').split("),[") if part]
    return {index for start, end in ranges for index in range(int(start), int(end))}


server_ids = st.builds(lambda index: message_id(new_segment_base(), index), st.integers(0, MESSAGES_PER_SEGMENT - 1))
near_misses = st.sampled_from(
    [
        "x-7e9c-y",
        "0196c2f5-1111-7000-8000-00007e9c0000",
        new_segment_base().upper(),
        new_segment_base() + " ",
        base_key(new_segment_base()),
        new_segment_base()[1:] + "-7e9c-",
    ]
)


@given(
    st.lists(st.one_of(st.none(), texts, st.uuids(version=4).map(str), server_ids, near_misses), unique_by=str),
    st.booleans(),
)
def test_only_ids_that_a_server_may_have_made_are_compared(names: list[str | None], small: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queenmq.domain.segments.PIECE_BYTES", 3 if small else 1000)
        segments, _ = group([Parcel.of([PushItem("q", b"1", "0", transaction_id=name) for name in names])])
        encoded = encode(segments)
    expected = [name for name in names if name and len(name) == 36 and name[14:18] == "7e9c" and name[19] in "89ab"]
    assert [encoded.keys[place - 1] for place in encoded.lookalikes] == expected
    assert all(looks_given(name) for name in expected)


def test_without_such_ids_nothing_more_is_sent() -> None:
    """The common case has no argument for it, whichever statement takes it."""
    named = [PushItem("q", b"1", str(at), transaction_id=f"t{at}") for at in (0, 1)]
    assert packed(named)[1].arguments()[-2:] == (None, None)
    assert packed(named[:1])[1].only()[-2:] == (None, None)
    assert packed([PushItem("q", b"1", "0")] * 3)[1].only()[-2:] == ('{"{[0,3)}"}', None)


@given(st.lists(pushes, max_size=4))
def test_requests_that_share_a_flush_get_their_own_verdicts(
    requests: list[list[tuple[int, str | None, str | None, bool]]],
) -> None:
    """Merging requests changes neither their order nor what is told to whom."""
    number = count()
    parcels = [
        Parcel.of([PushItem("q", b"%d" % next(number), str(at), tx, None, sub, mark) for at, tx, sub, mark in rows])
        for rows in requests
    ]
    segments, receipts = group(parcels)
    for segment in segments:
        segment.place = PLACES[int(segment.partition)]
        segment.last_seq = 1000 + len(segment.open())
    stored = {}
    for segment in segments:
        for index, (at, message) in enumerate(segment.ids()):
            stored[bytes(segment.items[at].payload)] = (message, 1001 + index)
    firsts: dict[tuple[str | None, str], str | None] = {}
    for parcel, receipt in zip(parcels, receipts, strict=True):
        for item, verdict in zip(parcel.items, receipt.verdicts(), strict=True):
            if verdict.status == "queued":
                assert stored[bytes(item.payload)] == (verdict.message_id, verdict.seq)
                assert verdict.transaction_id == (item.transaction_id or verdict.message_id)
            if item.transaction_id:
                first = firsts.setdefault((item.partition, item.transaction_id), verdict.message_id)
                assert first == verdict.message_id
    assert all(segment.subs is None or len(segment.subs) == len(segment.items) for segment in segments)


def test_encoding_again_gives_the_same_ids_also_without_a_duplicate() -> None:
    items = [PushItem("q", b"1", "0"), PushItem("q", b"2", "0", transaction_id="t"), PushItem("q", b"3", "0")]
    segments, first = packed(items)
    assert encode(segments) == first
    segments[0].settle({1: Verdict("duplicate", "t", None, "", None)})
    again = encode(segments)
    assert again.bases == first.bases
    assert again.datas == [b"1\x1e3"]
    segments[0].settle({at: Verdict("duplicate", "t", None, "", None) for at in (0, 2)})
    assert encode(segments).pids == []


def test_bounded_queues_are_named_once() -> None:
    assert packed([PushItem("q", b"1", "1"), PushItem("q", b"2", "0")])[1].bounded == [1]


def test_no_partition_means_the_default_one() -> None:
    segments, _ = group([Parcel([PushEntry("q"), PushEntry("q", partition="Default")])])
    assert [(segment.partition, len(segment.items)) for segment in segments] == [("Default", 2)]


def test_a_segment_holds_no_more_than_its_ids_can_count() -> None:
    items = [PushItem("q", b"1")] * (MESSAGES_PER_SEGMENT + 1)
    with pytest.raises(InvalidValue, match="at most 65536 per partition"):
        group([Parcel.of(items)])
    segments, _ = group([Parcel.of(items[:-1])])
    assert list(segments[0].ids())[-1][1].endswith("ffff")


@given(st.lists(st.one_of(st.none(), st.just(""), st.uuids().map(str), st.text(max_size=40)), max_size=6))
def test_keys_of_many_are_the_keys_of_each(names: list[str | None]) -> None:
    assert dedup_keys(names) == [dedup_key(name) if name else None for name in names]


@given(st.lists(st.uuids().map(str), min_size=1, max_size=6), st.data())
def test_pieces_that_only_look_like_uuids_together_are_hashed(ids: list[str], data: st.DataObject) -> None:
    joined = "-".join(ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(joined)), min_size=len(ids) - 1, max_size=len(ids) - 1)))
    pieces = [joined[a:b] for a, b in zip([0, *cuts], [*cuts, len(joined)], strict=True)]
    assert dedup_keys(list(pieces)) == [dedup_key(piece) if piece else None for piece in pieces]


@given(st.text(max_size=40), st.text(max_size=40))
def test_dedup_keys_are_uuids_and_tell_ids_apart(one: str, other: str) -> None:
    one, other = (text.encode("utf-8", "replace").decode() for text in (one, other))
    assert is_uuid(dedup_key(one))
    assert (dedup_key(one) == dedup_key(other)) == (one == other)


def test_a_canonical_uuid_is_its_own_key_and_another_spelling_is_not() -> None:
    base = new_segment_base()
    assert dedup_key(base) == base
    assert base_key(base) != base
    assert dedup_key(base_key(base)) not in (base, base_key(base))
    for other in (base.upper(), base.replace("-", ""), f"{{{base}}}", base[:19] + "f" + base[20:]):
        assert dedup_key(other) not in (base, other)


def _column(joined: bytes | None, count: int) -> list[str]:
    return [""] * count if joined is None else joined.decode().split("\x1e")


@given(pushes, st.integers(1, 40))
def test_pieces_put_together_are_the_whole(rows: list[tuple[int, str | None, str | None, bool]], most: int) -> None:
    items = [
        PushItem("q", b"%d" % n, str(at), transaction_id=tx, producer_sub=sub, encrypted=mark)
        for n, (at, tx, sub, mark) in enumerate(rows)
    ]
    segments, whole = packed(items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queenmq.domain.segments.PIECE_BYTES", most)
        cut = encode(segments)
    assert cut.bounded == whole.bounded
    assert all(len(data) <= most or b"\x1e" not in data for data in cut.datas)
    places = {}  # of the messages of each piece: the index of its partition, and its own
    for index, pid in enumerate(whole.pids):
        pieces = [piece for piece, other in enumerate(cut.pids) if other == pid]
        ns = [cut.ns[piece] for piece in pieces]
        assert [cut.befores[piece] for piece in pieces] == [sum(ns[:at]) for at in range(len(ns))]
        assert [cut.afters[piece] for piece in pieces] == [sum(ns[at + 1 :]) for at in range(len(ns))]
        assert {cut.bases[piece] for piece in pieces} == {whole.bases[index]}
        assert cut.last_ids[pieces[-1]] == whole.last_ids[index]
        assert b"\x1e".join(cut.datas[piece] for piece in pieces) == whole.datas[index]
        for mine, theirs in ((cut.txs, whole.txs), (cut.subs, whole.subs)):
            columns = [_column(mine[piece], cut.ns[piece]) for piece in pieces]
            assert [text for column in columns for text in column] == _column(theirs[index], whole.ns[index])
        marks = [cut.encs[piece] or "0" * cut.ns[piece] for piece in pieces]
        assert "".join(marks) == (whole.encs[index] or "0" * whole.ns[index])
        for piece in pieces:
            for offset in range(cut.ns[piece]):
                places[piece << 16 | offset] = index << 16 | cut.befores[piece] + offset
    pointed = [(key, places[position]) for key, position in zip(cut.keys, cut.key_pos, strict=True)]
    assert pointed == list(zip(whole.keys, whole.key_pos, strict=True))
