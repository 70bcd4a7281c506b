"""What a payload may be: JSON text that PostgreSQL's jsonb can hold and that our joined columns can carry.

`msgspec.Raw` checks the structure but lets through what jsonb refuses: invalid UTF-8, the escape for NUL, numbers
beyond numeric. An ordinary payload passes by a few scans at C speed; only one that looks suspicious is taken apart. The
exact checks are linear and never recurse, so hostile input costs time in proportion to its size and nothing more.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from .names import InvalidValue

MAX_DEPTH: Final = 256
MAX_BYTES: Final = 32 * 1024 * 1024
"""jsonb refuses a value of 256 MB, and a text of small numbers grows by a factor of 6 on its way there."""

_MAX_WRITTEN_OUT: Final = 256 * 1024 * 1024
_INTEGER_DIGITS: Final = 131072  # PostgreSQL's numeric: digits before the decimal point,
_FRACTION_DIGITS: Final = 16383  # and behind it
_NO_EXPONENT: Final = 10**9  # refused even for a zero
_MANY_DIGITS: Final = 6000  # fewer, and an exponent below 10,000, fit both

_MOST_ODD: Final = 100_000  # so many other ones are looked at in one payload
_SHALLOW: Final = 8  # levels that are taken off at once
_SLICE: Final = 1024 * 1024

_NUMBER: Final = re.compile(rb"-?([0-9]++)(?:\.([0-9]++))?(?:[eE]([+-]?[0-9]++))?")
_ODD_NUMBER: Final = re.compile(
    rb"[0-9.]{%d,}+(?:[eE][+-]?[0-9]++)?|[0-9]++(?:\.[0-9]++)?[eE][+-]?[0-9]{5,}+" % _MANY_DIGITS
)
_EXPONENT: Final = re.compile(rb"[0-9][eE][+-]?([0-9]{1,4}+)(?![0-9])")
_SOUND: Final = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?!0000)(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)

# The skeleton of a text in which a large number is found as a substring: digits become 0, what may end a number becomes
# a comma, signs go.
_SKELETON: Final = bytes(
    48 if byte in b"0123456789." else 101 if byte in b"eE" else 44 if byte in b",]} \t\n\r" else 32
    for byte in range(256)
)
_LARGE_EXPONENT: Final = b"0e00000"
_LONG_NUMBER: Final = b"0" * _MANY_DIGITS
_NEST: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")

_decode: Final = msgspec.json.Decoder(msgspec.Raw).decode


class InvalidPayload(InvalidValue):
    """A payload that cannot be stored, and why. It is named by its field and size, never quoted."""

    def __init__(self, field: str, raw: bytes, allowed: str, reason: str) -> None:
        super().__init__(field, f"{len(raw)} bytes {reason}", allowed)
        self.reason = reason


def check_payload(field: str, raw: bytes, *, valid_json: bool = False, max_depth: int = MAX_DEPTH) -> None:
    """Raise InvalidPayload for what cannot be stored. `valid_json`: `raw` came out of a decoder as `msgspec.Raw`."""
    if len(raw) > MAX_BYTES:
        raise InvalidPayload(field, raw, f"at most {MAX_BYTES} bytes", "of JSON")
    if not valid_json:
        _check_structure(field, raw, max_depth)
    if not raw.isascii():
        _check_utf8(field, raw)
    if b"\x1e" in raw:
        raise InvalidPayload(field, raw, "JSON without raw control characters", "with the byte 0x1E")
    if _has_odd_escapes(raw):
        _check_escapes(field, raw)
    if _may_be_too_deep(raw, max_depth):
        _check_depth(field, raw, max_depth)
    if _may_be_too_large(raw, len(raw)):
        _check_numbers(field, raw)


def is_plain(raw: bytes, max_depth: int = MAX_DEPTH) -> bool:
    """Whether a payload that came out of a decoder is so short and simple that nothing can be wrong with it."""
    return (
        len(raw) <= 2 * max_depth
        and len(raw) < _MANY_DIGITS
        and raw.isascii()
        and b"\\" not in raw
        and b"\x1e" not in raw
        and _LARGE_EXPONENT not in raw.translate(_SKELETON, b"+-")
    )


def check_payloads(field: str, payloads: Sequence[bytes], *, max_depth: int = MAX_DEPTH) -> None:
    """The same for many that came out of a decoder as `msgspec.Raw`, named `field[i].payload`.

    The scans run once over all of them; only when they find something is each looked at by itself.
    """
    joined, longest = b",".join(payloads), max(map(len, payloads), default=0)
    if (
        longest > MAX_BYTES
        or not (joined.isascii() or _is_utf8(joined))
        or b"\x1e" in joined
        or _has_odd_escapes(joined)
        or _may_be_too_large(joined, longest)
    ):
        for index, payload in enumerate(payloads):
            check_payload(f"{field}[{index}].payload", bytes(payload), valid_json=True, max_depth=max_depth)
    elif longest > 2 * max_depth:
        for index, payload in enumerate(payloads):
            if len(payload) > 2 * max_depth and _may_be_too_deep(raw := bytes(payload), max_depth):
                _check_depth(f"{field}[{index}].payload", raw, max_depth)


def _has_odd_escapes(raw: bytes) -> bool:
    return b"\\" in raw and (b"\\u0000" in raw or b"\\ud" in raw or b"\\uD" in raw)


def _may_be_too_deep(raw: bytes, max_depth: int) -> bool:
    return len(raw) > 2 * max_depth and raw.count(b"[") + raw.count(b"{") > max_depth


def _may_be_too_large(raw: bytes, longest: int) -> bool:
    """May a number have a large exponent or too many digits, or all numbers together be too much when written out?
    `longest` is the size of the longest payload in `raw`."""
    skeleton = raw.translate(_SKELETON, b"+-")
    if _LARGE_EXPONENT in skeleton:
        _, *rests = skeleton.split(_LARGE_EXPONENT)
        if not rests[-1].strip(b"0") or any(rest.lstrip(b"0").startswith(b",") for rest in rests):
            return True
    if longest < _MANY_DIGITS:
        return False
    if _LONG_NUMBER in skeleton:
        return True
    return skeleton.count(b"0e000") * 9999 + skeleton.count(b"0e") * 99 > _MAX_WRITTEN_OUT // 2


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_structure(field: str, raw: bytes, max_depth: int) -> None:
    try:
        _decode(raw)
    except RecursionError:
        raise _too_deep(field, raw, max_depth) from None
    except msgspec.DecodeError as error:
        raise InvalidPayload(field, raw, "valid JSON", f"that are not: {error}") from None


def _check_utf8(field: str, raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidPayload(field, raw, "valid UTF-8", f"with {error.reason} at {error.start}") from None


def _check_escapes(field: str, raw: bytes) -> None:
    r"""No \u0000, and surrogates only as a high one directly followed by a low one."""
    sound = _SOUND.match(raw)
    end = sound.end() if sound else 0
    if end == len(raw):
        return
    if raw.startswith(b"\\u0000", end):
        raise InvalidPayload(field, raw, r"JSON without \u0000, which PostgreSQL cannot store", r"with \u0000")
    raise InvalidPayload(field, raw, "JSON with surrogates in pairs only", "with half of a surrogate pair")


def _without_strings(raw: bytes) -> bytes:
    """What stands outside the strings of valid JSON. Backslashes stand inside only, and escape each other first."""
    return b"".join(raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _check_depth(field: str, raw: bytes, max_depth: int) -> None:
    """Strip the innermost brackets, one level at a time; what is left after that is rare, and is counted through."""
    nest = _without_strings(raw).translate(_NEST, _NOT_BRACKETS)
    shallow = min(_SHALLOW, max_depth)
    for _ in range(shallow):
        nest = nest.replace(b"[]", b"")
    if nest and shallow + max(accumulate(array("b", nest.translate(_STEPS)))) > max_depth:
        raise _too_deep(field, raw, max_depth)


def _too_deep(field: str, raw: bytes, max_depth: int) -> InvalidPayload:
    return InvalidPayload(field, raw, f"JSON nested at most {max_depth} deep", "nested deeper")


def _check_numbers(field: str, raw: bytes) -> None:
    """Every number fits PostgreSQL's numeric, and the payload stays readable when jsonb writes its exponents out."""
    text = _without_strings(raw)
    if len(raw) + _written_out(field, raw, text) > _MAX_WRITTEN_OUT:
        allowed = f"JSON of at most {_MAX_WRITTEN_OUT} bytes with its exponents written out"
        raise InvalidPayload(field, raw, allowed, "that write out to more")


def _written_out(field: str, raw: bytes, text: bytes) -> int:
    """How much longer the numbers in `text` become, at most; it ends early when that is too much."""
    added = 0
    skeleton = text.translate(_SKELETON, b"+-")
    if _LARGE_EXPONENT in skeleton or _LONG_NUMBER in skeleton:
        for count, match in enumerate(_ODD_NUMBER.finditer(text)):
            added += _check_number(field, raw, match[0])
            if count == _MOST_ODD:
                return _MAX_WRITTEN_OUT
    start = 0
    while start < len(text) and added <= _MAX_WRITTEN_OUT:
        end = text.find(b",", start + _SLICE)
        end = len(text) if end < 0 else end
        added += sum(map(int, _EXPONENT.findall(text, start, end)))
        start = end
    return added


def _check_number(field: str, raw: bytes, number: bytes) -> int:
    """How much longer it becomes when it is written out."""
    match = _NUMBER.fullmatch(number)
    digits, decimals, power = match.groups() if match else (b"", None, None)
    exponent = _exponent(power) if power else 0
    fraction = len(decimals) if decimals else 0
    significant = len((digits + (decimals or b"")).lstrip(b"0"))
    integer = significant - fraction + exponent if significant else 0
    if integer > _INTEGER_DIGITS or fraction - exponent > _FRACTION_DIGITS or exponent >= _NO_EXPONENT:
        allowed = f"JSON with numbers of at most {_INTEGER_DIGITS} digits, {_FRACTION_DIGITS} of them decimals"
        raise InvalidPayload(field, raw, allowed, "with a larger one")
    return max(integer, -exponent)


def _exponent(text: bytes) -> int:
    """The exponent, cut to ten digits: Python refuses to read very long ones, and so do we."""
    size = int(text.lstrip(b"+-").lstrip(b"0")[:10] or b"0")
    return -size if text.startswith(b"-") else size
