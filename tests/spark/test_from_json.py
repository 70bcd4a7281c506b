"""`payloadSchema` against Spark's own `from_json`: the same struct for every payload and every schema, or a refusal.

Schemas and payloads are drawn at random. Each payload is parsed alone, where Arrow's reader may take it, and beside
one that sends all of them down the slow path. FROM_JSON_SEED repeats a run.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from queenmq.spark.errors import OptionError
from queenmq.spark.options import ReadOptions, read_options
from queenmq.spark.payloads import parse_payloads
from queenmq.spark.schema import arrow_schema, schema_for

SEED = int(os.environ.get("FROM_JSON_SEED", random.randrange(10**6)))
SCHEMAS = 25
PER_SCHEMA = 150
NAMES = ("a", "b", "A", "ü")
WRITTEN_NAMES = (*(f'"{name}"' for name in NAMES), '"\\u0061"', '"c"', '""')
SCALARS: tuple[T.DataType, ...] = (
    *(T.StringType(), T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType()),
    *(T.FloatType(), T.DoubleType(), T.DecimalType(5, 2), T.DecimalType(38, 0), T.DecimalType(38, 38)),
)
INTEGERS = (0, 1, 127, 128, 255, 256, 32767, 32768, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**22 + 1, 10**38, 10**400)
NUMBERS = (
    *("-0.0", "0.0", "0e0", "1.0", "1.50", "1e2", "1E+2", "1e-2", "1e400", "-1e400", "1e-400", "0.001", "-0e0"),
    *("9999999.0", "1e7", "0.00099", "999.995", "999.994", "-999.995", "1.00000017881393432617187499", "1e-999999"),
    *("16777217.0", "3.4028236e38", "1.4e-45", "7e-46", "0." + "1" * 60, "1" * 999 + ".5", "1" * 1000 + ".5"),
)
TEXTS = (
    *("", "x", "1", "1.5", "-0", "1e2", "1,234.5", "+1", " 1", "1_0", ".5", "5.", ".", "NaN", "Infinity", "-Infinity"),
    *("+INF", "-INF", "INF", "nan", "true", "null", "2025-01-31", "\u0661", "\U0001d7cf", "\x00", '\x1f\n\t"\\/'),
    *("ü\u2028", "\U0001f600", "\x7f", "1" * 39),
)
ESCAPES = ('"\\ud800"', '"x\\udc00y"', '"\\/\\u0041"', '"\\ud83d\\ude00"')

LONG = "1" * 1000 + ".5"
CORNERS = (
    *('{"a": -0}', '{"b": -0}', '{"a": -0, "b": "x"}', '{"a": 1, "a": "x"}', '{"a": 1, "a": null}', '{"b": "\\ud800"}'),
    *(
        '{"b": ["\\ud800", "\U0001f600"]}',
        '{"a": 1e400, "b": 1e400}',
        '{"a": "NaN", "b": "NaN"}',
        "7",
        "null",
        '"x"',
        "[]",
    ),
    *(
        '[{"a": 1}]',
        '{"c": [1, "x", {"a": 7}], "a": 2}',
        '{"d": {"x": "y", "a": 7}, "a": 2}',
        '{"d": {"x": 1, "x": 2}}',
    ),
    *(
        '{"c": [1.5, [2]], "a": 3}',
        f'{{"a": 1, "z": {"[" * 999}{"]" * 999}}}',
        f'{{"a": 1, "z": {"[" * 1000}{"]" * 1000}}}',
    ),
    *(
        f'{{"a": {LONG}}}',
        f'{{"a": 1, "z": {LONG}}}',
        f'{{"a": 1, "b": [{LONG}]}}',
        f'{{"a": 1, "b": {{"x": {LONG}}}, "a": 2}}',
    ),
    *(f'{{"a": 1, "c": [1, {LONG}], "a": 2}}', f'{{"a": 1, "c": [{LONG}, "x", {{"a": 7}}], "a": 2}}'),
    *(
        f'{{"e": {{"a": 1, "z": {LONG}}}, "a": 2}}',
        f'{{"a": 3, "e": {{"a": 1, "f": {{"x": {LONG}, "a": 8}}}}, "a": 2}}',
    ),
)
CORNER_SCHEMA = T.StructType(
    [
        T.StructField("a", T.DoubleType()),
        T.StructField("b", T.StringType()),
        T.StructField("c", T.ArrayType(T.IntegerType())),
        T.StructField("d", T.MapType(T.StringType(), T.IntegerType())),
        T.StructField(
            "e",
            T.StructType(
                [T.StructField("a", T.FloatType()), T.StructField("f", T.StructType().add("x", T.LongType()))]
            ),
        ),
    ]
)
# Without the map, which Arrow's reader is not asked for.
ARROW_SCHEMA = T.StructType(CORNER_SCHEMA.fields[:3])


class Drawer:
    """Draws schemas, and payloads that mostly fit them."""

    def __init__(self, seed: int) -> None:
        self._choice = random.Random(seed)

    def schema(self, depth: int = 3) -> T.StructType:
        names = self._choice.sample(NAMES, self._choice.randint(1, 3))
        return T.StructType([T.StructField(name, self._type(depth - 1)) for name in names])

    def payload(self, schema: T.StructType) -> str:
        return self._fitting(schema) if self._choice.random() < 0.8 else self._value(3)

    def _type(self, depth: int) -> T.DataType:
        dice = self._choice.random()
        if depth == 0 or dice < 0.6:
            return self._choice.choice(SCALARS)
        if dice < 0.75:
            return T.ArrayType(self._type(depth - 1))
        return T.MapType(T.StringType(), self._type(depth - 1)) if dice < 0.85 else self.schema(depth)

    def _fitting(self, kind: T.DataType) -> str:
        """Mostly what the type can hold: Arrow's reader takes it, and a misfit has good values beside it."""
        if self._choice.random() < 0.06:
            return self._value(2)
        if isinstance(kind, T.StructType):
            fields = [(json.dumps(field.name), field.dataType) for field in kind.fields if self._choice.random() < 0.9]
            drawn = [(name, self._fitting(of)) for name, of in fields]
            if self._choice.random() < 0.2:
                drawn.append((self._choice.choice(WRITTEN_NAMES), self._value(2)))
            self._choice.shuffle(drawn)
            return self._object(drawn)
        if isinstance(kind, T.ArrayType):
            return self._array([self._fitting(kind.elementType) for _ in range(self._choice.randrange(4))])
        if isinstance(kind, T.MapType):
            return self._named([self._fitting(kind.valueType) for _ in range(self._choice.randrange(4))])
        if isinstance(kind, T.StringType):
            return self._text()
        if isinstance(kind, T.BooleanType):
            return self._choice.choice(("true", "false"))
        return str(self._choice.randint(-128, 127)) if isinstance(kind, T.IntegralType) else self._number()

    def _value(self, depth: int) -> str:
        dice = self._choice.randrange(7 if depth else 4)
        if dice == 0:
            return self._choice.choice(("null", "true", "false"))
        if dice in (1, 2):
            return self._number()
        if dice == 3:
            return self._text()
        values = [self._value(depth - 1) for _ in range(self._choice.randrange(4))]
        return self._array(values) if dice == 4 else self._named(values)

    def _number(self) -> str:
        """Java 17 writes some numbers between 10^16 and 10^25 with more digits than they need: none of those."""
        dice = self._choice.randrange(6)
        if dice == 0:
            return self._choice.choice(NUMBERS)
        if dice == 1:
            return self._choice.choice(("", "-")) + str(self._choice.choice(INTEGERS))
        if dice == 2:
            return str(self._choice.randrange(-(10 ** self._choice.randrange(1, 25)), 10**9))
        if dice == 3:
            return f"{self._choice.uniform(-1000, 1000):.{self._choice.randrange(1, 4)}f}"
        drawn: float = struct.unpack("d", self._choice.randbytes(8))[0]
        return repr(drawn) if math.isfinite(drawn) and not 1e15 < abs(drawn) < 1e26 else "0.1"

    def _text(self) -> str:
        if self._choice.random() < 0.1:
            return self._choice.choice(ESCAPES)
        text = self._choice.choice(TEXTS) if self._choice.random() < 0.7 else chr(self._choice.randrange(0xD800))
        return json.dumps(text, ensure_ascii=self._choice.random() < 0.5)

    def _array(self, values: list[str]) -> str:
        return f"[{(',' + self._gap()).join(values)}]"

    def _named(self, values: list[str]) -> str:
        return self._object([(self._choice.choice(WRITTEN_NAMES), value) for value in values])

    def _object(self, fields: list[tuple[str, str]]) -> str:
        inner = f"{self._gap()},".join(f"{name}:{self._gap()}{value}" for name, value in fields)
        return f"{{{inner}{self._gap()}}}"

    def _gap(self) -> str:
        return self._choice.choice(("", "", "", " ", "\n\t"))


def ours(schema: T.StructType, texts: list[str], more: list[str]) -> list[Any]:
    kind = arrow_schema(T.StructType().add("data", schema)).field(0).type
    given = [*texts, *more]
    found = parse_payloads(pa.array(given, pa.string()), pa.array([False] * len(given)), kind)
    return [*found.to_pylist()][: len(texts)]


def comparable(value: Any) -> Any:
    """Minus zero and zero differ, NaN is like NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    return value


def drawn() -> list[tuple[T.StructType, list[str]]]:
    drawer = Drawer(SEED)
    schemas = [drawer.schema() for _ in range(SCHEMAS)]
    random_ones = [(schema, [drawer.payload(schema) for _ in range(PER_SCHEMA)]) for schema in schemas]
    return [(CORNER_SCHEMA, list(CORNERS)), (ARROW_SCHEMA, list(CORNERS)), *random_ones]


def spark_says(spark: SparkSession, schema: T.StructType, texts: list[str]) -> list[Any]:
    """A frame made of an Arrow table is small enough for Spark to answer on the driver, without a job."""
    frame = spark.createDataFrame(pa.table({"payload": texts}))
    answers: list[Any] = frame.select(F.from_json("payload", schema)).toArrow().column(0).to_pylist()
    return answers


def test_payload_schema_is_from_json(spark: SparkSession) -> None:
    print(f"FROM_JSON_SEED={SEED}")
    for schema, texts in drawn():
        wanted, slow = spark_says(spark, schema, texts), ours(schema, texts, ["[]"])
        for text, want, have in zip(texts, wanted, slow, strict=True):
            said = f"FROM_JSON_SEED={SEED}: {text} as {schema.simpleString()}"
            assert comparable(have) == comparable(want), said
            assert comparable(ours(schema, [text], [])) == comparable([want]), f"alone, {said}"


@pytest.mark.parametrize(
    ("schema", "given", "allowed"),
    [
        ("at TIMESTAMP", "data.at timestamp", "from_json"),
        ("at TIMESTAMP_NTZ", "data.at timestamp_ntz", "from_json"),
        ("on DATE", "data.on date", "from_json"),
        ("raw BINARY", "data.raw binary", "from_json"),
        ("a VARIANT", "data.a variant", "from_json"),
        ("a ARRAY<INTERVAL DAY>", "data.a[] interval day", "from_json"),
        ("a STRUCT<b: VARCHAR(3)>", "data.a.b varchar(3)", "from_json"),
        ("a CHAR(3)", "data.a char(3)", "from_json"),
        ("a MAP<INT, INT>", "data.a map<int,int>", "from_json"),
        ("a STRING COLLATE UNICODE", "data.a string collate UNICODE", "from_json"),
        ("a INT, _corrupt_record STRING", "struct<a:int,_corrupt_record:string>", "from_json"),
        ("a INT NOT NULL", "data.a NOT NULL", "without NOT NULL"),
        ("a INT, a INT", "data struct<a:int,a:int>", "a name of its own"),
    ],
)
def test_a_schema_that_is_parsed_otherwise_is_refused_at_planning(
    spark: SparkSession, schema: str, given: str, allowed: str
) -> None:
    """There is no database behind this address: the refusal comes before the first question to it."""
    source = spark.read.format("queen").options(databaseUrl="postgresql://queen@127.0.0.1:9/queen", queue="orders")
    with pytest.raises(PySparkException, match=re.escape(f"option payloadSchema is '{given}'; it must be")) as caught:
        source.option("payloadSchema", schema).load().collect()
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        "a FOO",
        "a",
        "nonsense",
        "a INT b INT",
        "a INT,",
        "a ARRAY<INT",
        "a MAP<STRING>",
        "a INT>, b STRUCT<c INT",
        "a-b INT",
        "ü INT",
    ],
)
def test_a_text_that_is_no_schema_is_refused_in_one_sentence(schema: str) -> None:
    """Spark's own parser would quote a longer text than the option."""
    said = f"option payloadSchema is '{schema}'; it must be a schema such as 'total DOUBLE, customer STRING'"
    with pytest.raises(OptionError, match=re.escape(said)):
        schema_for(asked(schema))


@pytest.mark.parametrize(
    "schema",
    [
        "a: INT, `b-c` string COMMENT 'it''s', d DECIMAL(10, 2)",
        "STRUCT <a ARRAY<MAP<STRING, STRUCT<>>>, not DEC>",
        "`ü` numeric(3) /* of 3 */ COMMENT 'x', array ARRAY<array<INT>> -- nested\n, map byte NOT NULL",
        "t TIMESTAMP WITHOUT TIME ZONE, i INTERVAL DAY TO SECOND, v VARCHAR(3), s STRING COLLATE UNICODE, r REAL",
    ],
)
def test_what_spark_takes_for_a_schema_is_left_to_it(spark: SparkSession, schema: str) -> None:
    wanted = schema_for(asked(schema)).rpartition("`data` ")[2]
    assert T.StructType.fromDDL(f"data {wanted}").simpleString().startswith("struct<data:struct<")


def asked(schema: str) -> ReadOptions:
    return read_options(
        {"queue": "orders", "databaseUrl": "postgresql://queen@127.0.0.1:9/queen", "payloadSchema": schema}
    )
