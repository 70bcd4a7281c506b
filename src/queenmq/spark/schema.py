"""What a row of the source looks like, as Spark and as Arrow see it.

A query may name the columns it wants, through the option `columns` or a schema of its own. Spark does not tell a
Python source which columns a query uses, so naming them is how a wide read is made narrow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

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
    """A schema that a query has given: columns of ours, with their types, and `data` as any struct."""
    for field in schema.fields:
        given = f"{field.name} {field.dataType.simpleString()}"
        if field.name == "data":
            if field.dataType.typeName() != "struct":
                raise OptionError("schema", given, "data as a STRUCT<…>")
        elif field.name not in TYPES:
            raise OptionError("schema", field.name, f"of {', '.join((*COLUMNS, 'data'))}")
        elif field.dataType.simpleString() != TYPES[field.name]:
            raise OptionError("schema", given, f"{field.name} {TYPES[field.name]}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of the batches, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _data_type(options: ReadOptions) -> str:
    given = (options.payload_schema or "").strip()
    if not given:
        raise OptionError("payloadSchema", "", "a schema such as 'total DOUBLE, customer STRING'")
    return given if re.match(r"struct *<", given, re.IGNORECASE) else f"struct<{given}>"
