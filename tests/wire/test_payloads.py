"""Many payloads at once are judged as each of them is alone, and the first bad one is named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queenmq.wire.names import InvalidValue
from queenmq.wire.payload import check_payload, check_payloads, is_plain
from tests.wire.test_payload import DOCUMENTS, HALF_PAIRS, ORDINARY, REFUSED


def decodable(raw: bytes) -> bool:
    """Could it have come out of a decoder as `msgspec.Raw`?"""
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def complaint(payloads: list[bytes], max_depth: int = 256) -> str | None:
    try:
        check_payloads("items", [msgspec.Raw(payload) for payload in payloads], max_depth=max_depth)
    except InvalidValue as refused:
        return str(refused)
    return None


def single_complaint(payloads: list[bytes]) -> str | None:
    """The same, asked one by one."""
    for index, payload in enumerate(payloads):
        try:
            check_payload(f"items[{index}].payload", payload, valid_json=True)
        except InvalidValue as refused:
            return str(refused)
    return None


def test_ordinary_payloads_pass_together() -> None:
    assert complaint(ORDINARY) is None
    assert complaint([]) is None


@pytest.mark.parametrize("name", [name for name, (raw, _) in REFUSED.items() if decodable(raw)])
def test_one_bad_payload_is_found_among_good_ones(name: str) -> None:
    raw, reason = REFUSED[name]
    for neighbour in (b"1", b'"x"', b"[]", b"{}"):
        for before in ([neighbour], [*ORDINARY[:20], neighbour]):  # nothing else that looks odd, and much
            found = complaint([*before, raw, neighbour])
            assert found is not None
            assert found.startswith(f"items[{len(before)}].payload must be ")
            assert reason in found


def test_numbers_of_neighbours_do_not_add_up() -> None:
    assert complaint([b"1e9", b"99999", b"9" * 5999, b"9" * 5999, b'"0e00000"', b"0"] * 50) is None


def test_texts_that_write_out_to_much_together_pass_when_each_is_small() -> None:
    assert complaint([b"[" + b"1e9999," * 500 + b"1]"] * 100) is None


def test_a_short_payload_can_be_too_deep_for_a_small_limit() -> None:
    found = complaint([b"[[[]]]", b"[[[[]]]]"], max_depth=3)
    assert found is not None
    assert found.startswith("items[1].payload must be JSON nested at most 3 deep")


VALID = DOCUMENTS.filter(decodable)


@given(payloads=st.lists(st.one_of(VALID, st.sampled_from(ORDINARY)), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_together_is_as_alone(payloads: list[bytes]) -> None:
    assert complaint(payloads) == single_complaint(payloads)


def test_half_pairs_are_left_to_the_decoder_or_found() -> None:
    for half in HALF_PAIRS:
        raw = b'"' + half + b'"'
        assert not decodable(raw) or complaint([b"1", raw]) is not None


@pytest.mark.parametrize("name", [name for name, (raw, _) in REFUSED.items() if decodable(raw)])
def test_a_bad_payload_is_not_plain(name: str) -> None:
    assert not is_plain(REFUSED[name][0])


def test_a_payload_that_may_be_too_deep_is_not_plain() -> None:
    assert is_plain(b"[[[]]]", max_depth=3)
    assert not is_plain(b"[[[[]]]]", max_depth=3)


@given(payload=VALID)
@settings(max_examples=200, deadline=None)
def test_nothing_is_wrong_with_what_is_plain(payload: bytes) -> None:
    if is_plain(payload):
        assert single_complaint([payload]) is None
