"""Payloads into a struct column, as Spark's `from_json` makes it of the same text.

Arrow's own reader parses a whole batch of objects at once, and refuses it as a whole for one value of another type.
Then, and for what Arrow understands in another way than Spark, the batch is parsed message by message.
"""

from __future__ import annotations

import io
import re
from typing import Final

import pyarrow as pa
import pyarrow.json as pj

from .from_json import parser
from .json_tokens import MOST_DEEP, MOST_DIGITS

_BLOCK: Final = 64 << 20
# Minus zero among whole numbers, halves of surrogate pairs, and numbers that Spark finds too long.
_UNLIKE_ARROW: Final = re.compile(rf"-0[^.0-9]|\\u[dD][89a-fA-F]|[0-9][0-9.eE+-]{{{MOST_DIGITS}}}")


def parse_payloads(payloads: pa.Array, encrypted: pa.Array, kind: pa.StructType) -> pa.Array:
    """One struct for each payload; null where it is still encrypted."""
    texts = payloads.to_pylist()
    plain = not encrypted.true_count
    if plain and all(text.startswith("{") and _shallow(text) for text in texts):
        quick = _at_once(texts, kind)
        if quick is not None:
            return quick
    parsed = parser(kind)
    sealed = encrypted.to_pylist()
    return pa.array([None if s else parsed(t) for t, s in zip(texts, sealed, strict=True)], type=kind)


def _shallow(text: str) -> bool:
    return len(text) < MOST_DEEP or text.count("[") + text.count("{") < MOST_DEEP


def _at_once(texts: list[str], kind: pa.StructType) -> pa.Array | None:
    if not texts or not all(map(_simple, (kind.field(i).type for i in range(kind.num_fields)))):
        return None
    joined = "\n".join(texts)
    if _UNLIKE_ARROW.search(joined):
        return None
    try:
        table = pj.read_json(
            io.BytesIO(joined.encode()),
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
    """What Arrow reads just as Spark does, or refuses."""
    if pa.types.is_struct(kind):
        return all(_simple(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _simple(kind.value_type)
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    )
