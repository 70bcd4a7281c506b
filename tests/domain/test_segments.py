"""Packing: what goes into a segment comes out of it, in order, with the ids given before the first attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.domain.ids import MESSAGES_PER_SEGMENT, dedup_key, is_uuid, message_id, new_segment_base
from queenmq.domain.segments import Place, PushItem, encode, group
from queenmq.wire.names import InvalidValue

PLACES = [Place(n, f"uid-{n}", 1, n == 2, False) for n in range(1, 5)]

texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=8)
pushes = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), texts), st.one_of(st.none(), texts), st.booleans()), min_size=1
)


@given(pushes)
def test_every_message_is_packed_once_in_order_or_is_a_twin(
    rows: list[tuple[int, str | None, str | None, bool]],
) -> None:
    items = [
        PushItem("q", b"%d" % n, transaction_id=tx, producer_sub=sub, encrypted=mark)
        for n, (_, tx, sub, mark) in enumerate(rows)
    ]
    segments, twins = group(items, [PLACES[row[0]] for row in rows])
    encoded = encode(segments, items)
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
    assert sorted([*seen, *twins]) == list(range(len(rows)))
    for twin, first in twins.items():
        assert first < twin
        assert rows[first][:2] == rows[twin][:2]


@given(pushes)
def test_keys_point_at_their_messages(rows: list[tuple[int, str | None, str | None, bool]]) -> None:
    items = [PushItem("q", b"1", transaction_id=tx) for _, tx, _, _ in rows]
    segments, _ = group(items, [PLACES[row[0]] for row in rows])
    encoded = encode(segments, items)
    columns = [_column(tx, n) for tx, n in zip(encoded.txs, encoded.ns, strict=True)]
    pointed = set()
    for key, position in zip(encoded.keys, encoded.key_pos, strict=True):
        segment, offset = position >> 16, position & 0xFFFF
        if key == encoded.bases[segment]:
            assert offset == 0
            assert "" in columns[segment]
        else:
            assert key == dedup_key(columns[segment][offset])
            pointed.add((segment, offset))
    named = {(segment, offset) for segment, column in enumerate(columns) for offset, tx in enumerate(column) if tx}
    assert pointed == named


def test_encoding_again_gives_the_same_ids_also_without_a_duplicate() -> None:
    items = [PushItem("q", b"1"), PushItem("q", b"2", transaction_id="t"), PushItem("q", b"3")]
    segments, _ = group(items, [PLACES[0]] * 3)
    first = encode(segments, items)
    assert encode(segments, items) == first
    segments[0].keep([True, False, True])
    again = encode(segments, items)
    assert again.bases == first.bases
    assert again.datas == [b"1\x1e3"]
    segments[0].keep([False, False])
    assert encode(segments, items).pids == []


def test_bounded_queues_are_named_once() -> None:
    items = [PushItem("q", b"1"), PushItem("q", b"2")]
    segments, _ = group(items, [PLACES[1], PLACES[0]])
    assert encode(segments, items).bounded == [1]


def test_a_segment_holds_no_more_than_its_ids_can_count() -> None:
    items = [PushItem("q", b"1")] * (MESSAGES_PER_SEGMENT + 1)
    with pytest.raises(InvalidValue, match="at most 65536 per partition"):
        group(items, [PLACES[0]] * len(items))
    assert group(items[:-1], [PLACES[0]] * MESSAGES_PER_SEGMENT)[0][0].ids()[-1].endswith("ffff")


@given(st.text(max_size=40), st.text(max_size=40))
def test_dedup_keys_are_uuids_and_tell_ids_apart(one: str, other: str) -> None:
    one, other = (text.encode("utf-8", "replace").decode() for text in (one, other))
    assert is_uuid(dedup_key(one))
    assert (dedup_key(one) == dedup_key(other)) == (one == other)


def test_a_canonical_uuid_is_its_own_key_and_another_spelling_is_not() -> None:
    base = new_segment_base()
    assert dedup_key(base) == base
    for other in (base.upper(), base.replace("-", ""), f"{{{base}}}", base[:19] + "f" + base[20:]):
        assert dedup_key(other) not in (base, other)


def _column(joined: bytes | None, count: int) -> list[str]:
    return [""] * count if joined is None else joined.decode().split("\x1e")
