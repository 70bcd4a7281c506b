"""Payloads: what is accepted, PostgreSQL's jsonb holds and gives back equal; what it refuses is refused, by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from decimal import Decimal

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from queenmq.wire.names import InvalidValue
from queenmq.wire.payload import MAX_BYTES, check_payload

ORDINARY = [
    b"null",
    b"0",
    b"-0",
    b'""',
    b' {"a" : [1, 2.50, -3e5, true]} \n',
    '"Zoë 🐝"'.encode(),
    b'"\\u00e9 \\\\ \\" \\/ \\b"',
    b'"\\ud83d\\ude00"',
    b'"\\uD83D\\uDE00 twice \\ud83d\\ude00"',
    b'"\\\\u0000"',
    b'"\\\\\\\\u0000 \\\\ud800"',
    b'"u0000 ud800"',
    b'{"\\ud83d\\ude00": 1}',
    b"1e400",
    b"1e131071",
    b"0e5",
    b"1e-16383",
    b"9" * 131072,
    b"1." + b"0" * 16383,
    b'"1e999999 1e9999999999, "',
    b'"' + b"9" * 200_000 + b'"',
    b'"' + b"[" * 10_000 + b'"',
    b"[" * 256 + b"]" * 256,
    b'[{"a":' * 128 + b"1" + b"}]" * 128,
    b"[" + b"[]," * 5000 + b"[]]",
    b'["\\\\", "' + b"[" * 300 + b'", "\\"' + b"[" * 300 + b'"]',
    b'{"id":"9e107d9d-372b-7012-8345-1e12345e1234"}',
    b"0e00000001",
    b"0e140000",
    b"0.0000001e131078",
]

REFUSED = {
    "empty": (b"", "valid JSON"),
    "two values": (b"1 2", "valid JSON"),
    "trailing comma": (b"[1,]", "valid JSON"),
    "bare word": (b"NaN", "valid JSON"),
    "single quotes": (b"'a'", "valid JSON"),
    "leading zero": (b"01", "valid JSON"),
    "open string": (b'"abc', "valid JSON"),
    "bad escape": (b'"\\x"', "valid JSON"),
    "newline in a string": (b'"a\nb"', "valid JSON"),
    "byte order mark": (b"\xef\xbb\xbf1", "valid JSON"),
    "separator": (b'"a\x1eb"', "valid JSON"),
    "separator outside": (b"1\x1e", "valid JSON"),
    "nul": (b"1\x00", "valid JSON"),
    "latin-1": (b'"\xfc"', "valid UTF-8"),
    "overlong": (b'"\xc0\x80"', "valid UTF-8"),
    "surrogate in UTF-8": (b'"\xed\xa0\x80"', "valid UTF-8"),
    "cut character": (b'"\xf0\x9f\x98"', "valid UTF-8"),
    "escaped nul": (b'"\\u0000"', r"\u0000"),
    "escaped nul after an escaped backslash": (b'"\\\\\\u0000"', r"\u0000"),
    "escaped nul in a key": (b'{"a\\u0000": 1}', r"\u0000"),
    "escaped nul after a pair": (b'"\\ud83d\\ude00\\u0000"', r"\u0000"),
    "exponent": (b"1e131072", "numbers"),
    "exponent in a list": (b'["a", 1E+131072]', "numbers"),
    "endless exponent": (b"1e" + b"9" * 5000, "numbers"),
    "zero with an endless exponent": (b"0e99999999999", "numbers"),
    "zero with an exponent of 10 digits": (b"0e1073741824", "numbers"),
    "negative exponent": (b"1e-20000", "numbers"),
    "zero with many decimals": (b"0e-16384", "numbers"),
    "decimals and exponent": (b"0." + b"1" * 7000 + b"e-9384", "numbers"),
    "digits": (b"9" * 200_000, "numbers"),
    "decimals": (b"0." + b"1" * 16384, "numbers"),
    "deep list": (b"[" * 257 + b"]" * 257, "nested at most 256"),
    "deep mixture": (b'[{"]":' * 129 + b"1" + b"}]" * 129, "nested at most 256"),
    "deep behind a backslash": (b'["\\\\", ' + b"[" * 300 + b"]" * 301, "nested at most 256"),
    "very deep": (b"[" * 100_000 + b"]" * 100_000, "nested at most 256"),
    "very deep object": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested at most 256"),
    "very deep and never closed": (b"[" * 100_000, "nested at most 256"),
    "exponents that write out to gigabytes": (b"[" + b"1e99999," * 4000 + b"1]", "written out"),
    "short exponents that write out to gigabytes": (b"[" + b"1e9999," * 40_000 + b"1]", "written out"),
    "size": (b'"' + b"a" * MAX_BYTES + b'"', "at most 33554432 bytes"),
}
HALF_PAIRS = [
    b"\\ud800",
    b"\\udc00",
    b"\\udc00\\ud800",
    b"\\ud800\\ud800",
    b"\\ud800 \\udc00",
    b"\\ud800\\n",
    b"\\ud800\\\\udc00",
]


def accepted(raw: bytes, *, valid_json: bool = False) -> bool:
    try:
        check_payload("payload", raw, valid_json=valid_json)
    except InvalidValue:
        return False
    return True


def value(text: str | bytes) -> object:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@pytest.fixture
async def postgres(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def stored(postgres: asyncpg.Connection, raw: bytes) -> str | None:
    """What jsonb makes of it, by the way the view takes; None when it refuses."""
    try:
        return str(await postgres.fetchval("select convert_from($1::bytea, 'UTF8')::jsonb::text", raw))
    except (asyncpg.DataError, asyncpg.StatementTooComplexError, asyncpg.ProgramLimitExceededError):
        return None


@pytest.mark.parametrize("raw", ORDINARY, ids=lambda raw: repr(raw[:30]))
async def test_accepted_payloads_come_back_equal(postgres: asyncpg.Connection, raw: bytes) -> None:
    assert accepted(raw)
    assert accepted(raw, valid_json=True)
    text = await stored(postgres, raw)
    assert text is not None
    assert value(text) == value(raw)


@pytest.mark.parametrize(("raw", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_the_field_and_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        check_payload("items[3].payload", raw)
    assert refused.value.field == "items[3].payload"
    assert str(refused.value).startswith("items[3].payload must be ")
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", [name for name, (_, reason) in REFUSED.items() if reason != "written out"])
async def test_jsonb_refuses_the_same_but_for_our_own_limits(postgres: asyncpg.Connection, name: str) -> None:
    held = await stored(postgres, REFUSED[name][0]) is not None
    assert held == (name in ("deep list", "deep mixture", "deep behind a backslash", "size"))


@pytest.mark.parametrize("half", HALF_PAIRS)
async def test_half_a_surrogate_pair_is_refused(postgres: asyncpg.Connection, half: bytes) -> None:
    for raw in (b'"' + half + b'"', b'{"' + half + b'":1}', b'["\\ud83d\\ude00' + half + b'"]'):
        assert not accepted(raw)
        assert not accepted(raw, valid_json=True)
        assert await stored(postgres, raw) is None


@pytest.mark.parametrize("raw", [b'"\xff"', b'"\\u0000"', b"1e131072", b"9" * 200_000, b"[" * 300 + b"]" * 300])
def test_what_raw_lets_through_is_refused_after_it(raw: bytes) -> None:
    """`msgspec.Raw` accepts these, so a caller that used it still depends on the check."""
    assert bytes(msgspec.json.decode(raw, type=msgspec.Raw)) == raw
    with pytest.raises(InvalidValue):
        check_payload("payload", raw, valid_json=True)


def test_the_depth_is_the_callers_choice() -> None:
    check_payload("payload", b"[[[]]]", max_depth=3)
    with pytest.raises(InvalidValue, match="nested at most 2 deep"):
        check_payload("payload", b"[[[]]]", max_depth=2)


STRING_PIECES = st.sampled_from([
    b"a", b"[", b"]", b"{", b" ", b"\\\\", b"\\n", b"\\u0041", b"\\u0000", b"\\ud83d", b"\\ude00", b"\\uD83D",
    b"\\uDE00", b"u0000", b"1e999999", b"\\\"", "é".encode(), "🐝".encode(), b"\xff", b"\x1e", b"\n", b"\\x",
    b"\xed\xa0\x80",
])  # fmt: skip
STRINGS = st.lists(STRING_PIECES, max_size=6).map(lambda pieces: b'"' + b"".join(pieces) + b'"')
EXPONENTS = st.one_of(
    st.just(""),
    st.integers(-20_000, 135_000).map(lambda e: f"e{e}"),
    st.sampled_from(["e+5", "E-007", "e", "e16383", "e-16383"]),
)
NUMBERS = st.tuples(
    st.sampled_from(["", "-", "+"]), st.sampled_from(["0", "7", "00", "123456789", "9" * 7000]),
    st.sampled_from(["", ".0", ".25", ".", "." + "1" * 9000]), EXPONENTS,
).map(lambda parts: "".join(parts).encode())  # fmt: skip
SCALARS = st.one_of(STRINGS, NUMBERS, st.sampled_from([b"null", b"true", b"false", b"nul", b""]))
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: b"[" + b", ".join(items) + b"]"),
        st.lists(st.tuples(STRINGS, inner), max_size=3).map(
            lambda pairs: b"{" + b",".join(key + b":" + item for key, item in pairs) + b"}"
        ),
    ),
    max_leaves=8,
)


@given(raws=st.lists(st.one_of(DOCUMENTS, st.binary(max_size=12)), min_size=20, max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@example(raws=[b'["\\\\\\\\\\u0000"]', b'"\\\\\\\\u0000"', b'"\\ud83d\\\\ude00"'])
async def test_exactly_what_jsonb_holds_is_accepted(postgres: asyncpg.Connection, raws: list[bytes]) -> None:
    for raw in raws:
        text = await stored(postgres, raw)
        assert accepted(raw) == (text is not None), raw[:200]
        if text is not None:
            assert accepted(raw, valid_json=True)
            assert value(text) == value(raw)
