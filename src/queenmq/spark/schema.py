"""What a row of the source looks like, as Spark and as Arrow see it.

A query may name the columns it wants, through the option `columns` or a schema of its own. Spark does not tell a
Python source which columns a query uses, so naming them is how a wide read is made narrow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from .ddl import NotDdl, check_type
from .errors import OptionError
from .options import COLUMNS, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TYPES: Final = dict.fromkeys(COLUMNS, "string") | {
    "seq": "bigint",
    "encrypted": "boolean",
    "created_at": "timestamp",
}


PARSED: Final = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double")
_PARSED_TYPES: Final = (
    "of STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, ARRAY, MAP<STRING, …> and STRUCT; "
    "for other types parse the column payload with Spark's from_json"
)
_SUCH: Final = f"a schema such as 'total DOUBLE, customer STRING', with types {_PARSED_TYPES}"
_CORRUPT: Final = "_corrupt_record"

RANGES: Final = "ranges binary, messages bigint"
"""A row for each task of a micro-batch: the messages (lo, hi] of its partitions, and how many they are."""


def schema_for(options: ReadOptions) -> str:
    """The schema of a reader that was not given one, as DDL: only Spark's own parser reads it."""
    if options.dataset == "ranges":
        return RANGES
    if options.dataset != "messages":
        from .datasets import dataset_schema

        return dataset_schema(options.dataset)
    names = options.columns or (*COLUMNS, *(["data"] if options.payload_schema else []))
    return ", ".join(f"`{name}` {_data_type(options) if name == 'data' else TYPES[name]}" for name in names)


def every_column() -> StructType:
    """The schema of messages, for tasks that read them without a query of their own: it takes no parser."""
    from pyspark.sql.types import BooleanType, LongType, StringType, StructType, TimestampType

    kinds = {"seq": LongType(), "encrypted": BooleanType(), "created_at": TimestampType()}
    made = StructType()
    for name in COLUMNS:
        made.add(name, kinds.get(name, StringType()))
    return made


def check_schema(schema: StructType) -> None:
    """A schema that a query has given: columns of ours, with their types, and `data` as a struct that can be parsed."""
    for field in schema.fields:
        given = f"{field.name} {field.dataType.simpleString()}"
        if not field.nullable:
            raise OptionError("schema", f"{given} NOT NULL", "without NOT NULL: every column of a source is nullable")
        if field.name == "data":
            if field.dataType.typeName() != "struct":
                raise OptionError("schema", given, "data as a STRUCT<…>")
            _check_parsed("data", field.dataType)
        elif field.name not in TYPES:
            raise OptionError("schema", field.name, f"of {', '.join((*COLUMNS, 'data'))}")
        elif field.dataType.simpleString() != TYPES[field.name]:
            raise OptionError("schema", given, f"{field.name} {TYPES[field.name]}")


def _check_parsed(path: str, kind: Any) -> None:
    """Only types which are parsed just as `from_json` does it, without the session's time zone and settings."""
    name = kind.typeName()
    if name == "struct":
        _check_struct(path, kind)
    elif name == "array":
        _check_nullable(f"{path}[]", kind.containsNull)
        _check_parsed(f"{path}[]", kind.elementType)
    elif name == "map" and kind.keyType.simpleString() == "string":
        _check_nullable(f"{path}[]", kind.valueContainsNull)
        _check_parsed(f"{path}[]", kind.valueType)
    elif name != "decimal" and kind.simpleString() not in PARSED:
        raise OptionError("payloadSchema", f"{path} {kind.simpleString()}", _PARSED_TYPES)


def _check_struct(path: str, kind: StructType) -> None:
    names = [field.name for field in kind.fields]
    if not names or len(set(names)) < len(names):
        shown = f"{path} {kind.simpleString()}"
        raise OptionError("payloadSchema", shown, "a struct with one field or more, each with a name of its own")
    if path == "data" and _CORRUPT in names:
        allowed = f"without {_CORRUPT}, which only from_json fills: parse the column payload with it"
        raise OptionError("payloadSchema", kind.simpleString(), allowed)
    for field in kind.fields:
        _check_nullable(f"{path}.{field.name}", field.nullable)
        _check_parsed(f"{path}.{field.name}", field.dataType)


def _check_nullable(path: str, nullable: bool) -> None:
    if not nullable:
        raise OptionError("payloadSchema", f"{path} NOT NULL", "without NOT NULL: what does not fit the schema is null")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of the batches, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _data_type(options: ReadOptions) -> str:
    given = (options.payload_schema or "").strip()
    kind = given if re.match(r"struct *<", given, re.IGNORECASE) else f"struct<{given}>"
    try:
        check_type(kind if given else "")
    except NotDdl:
        raise OptionError("payloadSchema", given, _SUCH) from None
    return kind
