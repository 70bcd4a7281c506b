"""Payloads into a struct column. What does not fit the schema becomes null, as Spark's `from_json` has it: a queue
takes any JSON, and one odd message must not stop a query.

Arrow's own reader parses a whole batch of objects at once, but refuses it as a whole for one value of another type.
Then the batch is parsed message by message.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json as pj

_BLOCK = 64 << 20
_DIGITS = Context(prec=100, rounding=ROUND_HALF_UP)  # more than Spark's decimals have, and rounded as Spark does
_decode: Callable[[str], Any] = msgspec.json.Decoder().decode


def parse_payloads(payloads: pa.Array, encrypted: pa.Array, kind: pa.StructType) -> pa.Array:
    """One struct for each payload; null where it is no object, or still encrypted."""
    texts = payloads.to_pylist()
    plain = not encrypted.true_count
    if plain and all(text.startswith("{") for text in texts):
        quick = _at_once(texts, kind)
        if quick is not None:
            return quick
    sealed = encrypted.to_pylist()
    return pa.array([None if s else _fit(_parsed(t), kind) for t, s in zip(texts, sealed, strict=True)], type=kind)


def _at_once(texts: list[str], kind: pa.StructType) -> pa.Array | None:
    if not texts or not all(map(_simple, (kind.field(i).type for i in range(kind.num_fields)))):
        return None
    source = io.BytesIO("\n".join(texts).encode())
    try:
        table = pj.read_json(
            source,
            read_options=pj.ReadOptions(use_threads=False, block_size=_BLOCK),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(list(kind)), newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(texts):
        return None
    found = table.combine_chunks().to_struct_array()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _simple(kind: pa.DataType) -> bool:
    """What Arrow reads just as we do: it knows other forms of times, dates and decimals."""
    if pa.types.is_struct(kind):
        return all(_simple(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _simple(kind.value_type)
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    )


def _parsed(text: str) -> Any:
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _fit(value: Any, kind: pa.DataType) -> Any:
    """The value as that type, or None."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: _fit(value.get(f.name), f.type) for f in kind} if isinstance(value, dict) else None
    if pa.types.is_list(kind):
        return [_fit(each, kind.value_type) for each in value] if isinstance(value, list) else None
    if pa.types.is_map(kind):
        fits = isinstance(value, dict) and pa.types.is_string(kind.key_type)
        return [(k, _fit(v, kind.item_type)) for k, v in value.items()] if fits else None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    return _fit_number(value, kind) if isinstance(value, int | float) else _fit_text(value, kind)


def _fit_number(value: float, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind):
        return float(Decimal(value)) if isinstance(value, int) else value  # one that is too large is infinite
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return value if isinstance(value, int) and -limit <= value < limit else None
    if pa.types.is_decimal(kind):
        return _decimal(str(value), kind)
    return None


def _fit_text(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return None
    try:
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        if pa.types.is_date(kind):
            return date.fromisoformat(value)
        if pa.types.is_decimal(kind):
            return _decimal(value, kind)
        if pa.types.is_binary(kind):
            return base64.b64decode(value, validate=True)
    except (ValueError, OverflowError):
        pass
    return None


def _decimal(text: str, kind: pa.DataType) -> Decimal | None:
    try:
        number = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), context=_DIGITS)
    except InvalidOperation:
        return None
    return number if number.is_finite() and len(number.as_tuple().digits) <= kind.precision else None
