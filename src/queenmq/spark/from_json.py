"""What Spark's `from_json` makes of a payload, value by value, with its default options.

A value that does not fit makes its field null and leaves the others as they are. An array or a map with such a value
is null as a whole, unless the value is a struct, which keeps what fits. A message that is no object is a struct of
nulls. Types whose text depends on the time zone of the session, or on Java, are refused when the read is planned.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from .json_tokens import CorruptPayload, Token, tokens

Converter = Callable[["Cursor"], Any]
_NOTHING: Final = Token("", None)
_WORDS: Final = {
    "NaN": "nan",
    **dict.fromkeys(("+INF", "+Infinity", "Infinity"), "inf"),
    **dict.fromkeys(("-INF", "-Infinity"), "-inf"),
}
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?")
_EXACT: Final = Context(prec=2000, rounding=ROUND_HALF_UP, Emax=MAX_EMAX, Emin=MIN_EMIN)
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED: Final = re.compile('["\\\\\x00-\x1f]|[\ud800-\udfff]|[\U00010000-\U0010ffff]')


class Misfit(ValueError):
    """A value that its type cannot hold."""


class Partial(Misfit):
    """A value of which some parts do not fit; it is kept with nulls in their places."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Cursor:
    """A place in the tokens of a message, moved as Jackson's parser moves."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._place = -1
        self._lost = False
        self.token = _NOTHING
        self.next()

    def next(self) -> bool:
        """To the next token; False at the end. Raises Misfit at a number that Jackson does not read: in an object
        already at its name, and then there is nothing where the value would be; in an array the cursor stays."""
        self._place += 1
        if self._lost or self._place >= len(self._tokens):
            self._lost = False
            self.token = _NOTHING
            return False
        found = self._tokens[self._place]
        if found.kind == "endless":
            raise Misfit
        self.token = found
        if found.kind == "name" and self._tokens[self._place + 1].kind == "endless":
            self._lost = True
            raise Misfit
        return True

    def before(self, end: str) -> bool:
        return self.next() and self.token.kind != end

    def skip(self) -> None:
        """At the beginning of an object or array, to its end."""
        depth = int(self.token.kind in ("{", "["))
        while depth > 0 and self.next():
            depth += (self.token.kind in ("{", "[")) - (self.token.kind in ("}", "]"))


def parser(kind: pa.StructType) -> Callable[[str], dict[str, Any]]:
    """A function from a payload to its struct."""
    convert = converter(kind)
    nothing = {field.name: None for field in kind}

    def parsed(payload: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] | None = convert(Cursor(tokens(payload)))
        except Partial as partial:
            found = partial.value
        except (Misfit, CorruptPayload):
            found = None
        return nothing if found is None else found

    return parsed


def converter(kind: pa.DataType) -> Converter:
    """What reads a value of this type at a cursor, and leaves the cursor at its last token. Raises Misfit."""
    made = _maker(kind)

    def convert(cursor: Cursor) -> Any:
        if cursor.token.kind == "name":
            cursor.next()
        return None if cursor.token.kind in ("null", "") else made(cursor)

    return convert


def _maker(kind: pa.DataType) -> Converter:
    if pa.types.is_struct(kind):
        return _object(kind)
    if pa.types.is_list(kind):
        return _array(converter(kind.value_type))
    if pa.types.is_map(kind):
        return _map(converter(kind.item_type))
    if pa.types.is_string(kind):
        return _string
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_floating(kind):
        return _float if kind.bit_width == 32 else _double
    return _decimal(kind.precision, kind.scale)


def _object(kind: pa.StructType) -> Converter:
    converters = {field.name: converter(field.type) for field in kind}

    def convert(cursor: Cursor) -> dict[str, Any]:
        _expect(cursor, "{")
        row: dict[str, Any] = dict.fromkeys(converters)
        bad = False
        while cursor.before("}"):
            field = cursor.token.field
            wanted = converters.get(field) if field is not None else None
            if field is None or wanted is None:
                cursor.skip()
                continue
            try:
                row[field] = wanted(cursor)
            except Partial as partial:
                row[field], bad = partial.value, True
            except Misfit:
                bad = True
                cursor.skip()
        if bad:
            raise Partial(row)
        return row

    return convert


def _array(element: Converter) -> Converter:
    def convert(cursor: Cursor) -> list[Any]:
        _expect(cursor, "[")
        values, bad = [], False
        while cursor.before("]"):
            try:
                values.append(element(cursor))
            except Partial as partial:
                values.append(partial.value)
                bad = True
        if bad:
            raise Partial(values)
        return values

    return convert


def _map(value: Converter) -> Converter:
    def convert(cursor: Cursor) -> list[tuple[str, Any]]:
        """Names that occur twice are there twice, as Spark has them."""
        _expect(cursor, "{")
        entries, bad, misfit = [], False, False
        while cursor.before("}"):
            name = _clean(cursor.token.field or "")
            try:
                entries.append((name, value(cursor)))
            except Partial as partial:
                entries.append((name, partial.value))
                bad = True
            except Misfit:
                misfit = True
                cursor.skip()
        if misfit:
            raise Misfit
        if bad:
            raise Partial(entries)
        return entries

    return convert


def _expect(cursor: Cursor, kind: str) -> None:
    if cursor.token.kind != kind:
        raise Misfit


def _boolean(cursor: Cursor) -> bool:
    if cursor.token.kind not in ("true", "false"):
        raise Misfit
    return cursor.token.kind == "true"


def _integer(bits: int) -> Converter:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(cursor: Cursor) -> int:
        _expect(cursor, "int")
        value = int(cursor.token.text)
        if bits == 8 and high < value <= 255:  # Jackson takes unsigned bytes too
            return value - 256
        if not low <= value <= high:
            raise Misfit
        return value

    return convert


def _double(cursor: Cursor) -> float:
    token = cursor.token
    if token.kind == "float":
        return float(token.text)
    if token.kind == "int":
        return float(token.text) + 0.0  # minus zero is no whole number
    return float(_number_word(token))


def _float(cursor: Cursor) -> float:
    """Rounded once, from the digits: Arrow's own reader of numbers does that, NumPy and Python round to a double."""
    token = cursor.token
    if token.kind not in ("float", "int"):
        return float(_number_word(token))
    value = float(token.text)
    if not 1e-50 < abs(value) < 1e38:
        import numpy as np

        with np.errstate(over="ignore", under="ignore"):
            value = float(np.float32(value))
    else:
        value = pa.scalar(token.text).cast(pa.float32()).as_py()
    return value + 0.0 if token.kind == "int" else value


def _number_word(token: Token) -> str:
    if token.kind != "string" or token.text not in _WORDS:
        raise Misfit
    return _WORDS[token.text]


def _decimal(precision: int, scale: int) -> Converter:
    step = Decimal(1).scaleb(-scale)

    def convert(cursor: Cursor) -> Decimal:
        token = cursor.token
        if token.kind not in ("int", "float", "string"):
            raise Misfit
        text = token.text.replace(",", "") if token.kind == "string" else token.text
        if not _DECIMAL.fullmatch(text) or any(letter > "\uffff" for letter in text):
            raise Misfit
        try:
            number = Decimal(text, _EXACT).quantize(step, context=_EXACT)
        except InvalidOperation:
            raise Misfit from None
        if len(number.as_tuple().digits) > precision:
            raise Misfit
        return number

    return convert


def _string(cursor: Cursor) -> str:
    """A string as it is; anything else as the JSON that Jackson writes of it."""
    token = cursor.token
    if token.kind == "string":
        return _clean(token.text)
    if token.kind in ("{", "["):
        return _written(cursor)
    if token.kind in ("}", "]"):
        raise Misfit
    return _scalar(token)


def _written(cursor: Cursor) -> str:
    parts: list[str] = []
    depth = 0
    while True:
        kind = cursor.token.kind
        opens, closes = kind in ("{", "["), kind in ("}", "]")
        if parts and not closes and parts[-1] not in ("{", "[", ":"):
            parts.append(",")
        parts.append(kind if opens or closes else _scalar(cursor.token))
        if kind == "name":
            parts.append(":")
        depth += opens - closes
        if depth == 0 or not cursor.next():
            return "".join(parts)


def _scalar(token: Token) -> str:
    if token.kind in ("string", "name"):
        return f'"{_ESCAPED.sub(_escape, token.text)}"'
    if token.kind == "int":
        return str(int(token.text))
    if token.kind == "float":
        return java_double(float(token.text))
    return token.kind


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    if letter in _SHORT:
        return _SHORT[letter]
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))


def java_double(value: float) -> str:
    """As Java 19 and newer write it; Java 17 writes some numbers from 10^16 on with more digits than they need."""
    if value in (float("inf"), float("-inf")):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    point = len(text) + exponent
    if not value:
        body = "0.0"
    elif 0 < point <= 7:
        body = f"{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
    elif -3 < point <= 0:
        body = f"0.{'0' * -point}{text}"
    else:
        body = f"{text[0]}.{text[1:] or '0'}E{point - 1}"
    return "-" * sign + body


def _clean(text: str) -> str:
    """A half of a surrogate pair is no character; Java writes a question mark."""
    return _SURROGATES.sub("?", text)
