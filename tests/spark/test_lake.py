"""A lake through Spark: what goes in comes out, whatever the queues are called, and other readers see the same."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from queenmq.spark import lake
from queenmq.spark.errors import PipelineError
from queenmq.spark.lake import reading
from queenmq.spark.lake.commit import Writer
from queenmq.spark.lake.filesystem import LocalFiles, open_lake
from queenmq.spark.lake.manifest import Log
from queenmq.spark.lake.parquet import FILE_COLUMNS, read_file
from queenmq.spark.options import COLUMNS
from queenmq.spark.schema import TYPES
from tests.spark.lakes import Table

NAMES = [
    *(
        "orders",
        "a/b",
        "ü",
        "a=b",
        "__HIVE_DEFAULT_PARTITION__",
        "007",
        "1e3",
        "null",
        "2026-01-01",
        "%2F",
        "a%",
        "..",
        "~",
    ),
    *("a b", "*?[x]{y}", "a:b#c'd\"e\\f", "_hidden", ".hidden", "日本", "😀", "a,b", "<a|b>^"),
    *("x" * 255, "y" * 80, "y" * 81, "ü" * 255, "%" * 255, "😀" * 255, "z" * 254 + "1", "z" * 254 + "2"),
]
MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)
SCHEMA = ", ".join(f"`{name}` {TYPES[name]}" for name in COLUMNS)


def row(queue: str, seq: int, created_at: datetime = MIDNIGHT, **more: Any) -> tuple[Any, ...]:
    found = dict.fromkeys(COLUMNS) | {"queue": queue, "partition": "p", "seq": seq, "message_id": f"m{seq}"}
    found |= {"payload": f'{{"n":{seq}}}', "encrypted": False, "created_at": created_at}
    return tuple((found | more).values())


def frame(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


def write(
    spark: SparkSession, home: Path, rows: list[tuple[Any, ...]], batch: int = 0, name: str = "archive:1"
) -> None:
    Writer(LocalFiles(home), name).write(batch, Table(frame(spark, rows).toArrow()))


def content(found: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(each) for each in found.select("queue", "seq").collect())


@pytest.fixture(scope="module")
def hours(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two queues, three messages in each of 3 hours around midnight, in two batches."""
    home = tmp_path_factory.mktemp("hours")
    rows = [
        row(queue, 3 * hour + minute // 25, MIDNIGHT + timedelta(hours=hour - 1, minutes=minute), encrypted=hour == 2)
        for queue in ("orders", "mails")
        for hour in (0, 1, 2)
        for minute in (0, 25, 50)
    ]
    write(spark, home, rows[:9])
    write(spark, home, rows[9:], batch=1)
    return home


def test_every_name_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row(name, number) for number, name in enumerate(NAMES)]
    write(spark, tmp_path, rows)
    assert content(lake.read(spark, tmp_path)) == Counter((name, number) for number, name in enumerate(NAMES))
    assert [file.queue for file in lake.files(tmp_path, ["z" * 254 + "1"])] == ["z" * 254 + "1"]
    assert content(lake.read(spark, tmp_path, ["z" * 254 + "?"])) == {
        ("z" * 254 + "1", 28): 1,
        ("z" * 254 + "2", 29): 1,
    }
    # Who reads the directories gets the names, too, but for those that are longer than a directory's name may be.
    plain = spark.read.schema(f"{SCHEMA}, date date, hour int").parquet(str(tmp_path))
    short = {(name, number) for number, name in enumerate(NAMES) if len(name) < 80}
    assert short <= set(content(plain))


def test_a_message_comes_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
    more = {
        "partition_id": "u",
        "transaction_id": "t",
        "trace_id": "x",
        "producer_sub": "s",
        "payload": '"\\u0000ü\\n"',
    }
    given = row("orders", 7, moment, encrypted=True, **more)
    write(spark, tmp_path, [given])
    (found,) = frame(spark, [given]).collect()
    assert lake.read(spark, tmp_path).collect() == [found]
    (file,) = lake.files(tmp_path)
    assert (file.rows, file.min_created_at, file.max_created_at, file.encrypted) == (1, moment, moment, True)
    assert file.bytes == (tmp_path / file.path).stat().st_size


def test_files_lie_where_their_hour_is(hours: Path) -> None:
    places = {re.sub("/part-.*", "", file.path) for file in lake.files(hours, ["orders"])}
    dates = ("date=2026-01-30/hour=23", "date=2026-01-31/hour=00", "date=2026-01-31/hour=01")
    assert places == {f"queue=orders/{each}" for each in dates}
    table = pq.read_schema(hours / lake.files(hours)[0].path)
    assert tuple(table.names) == FILE_COLUMNS
    assert str(table.field("created_at").type) == "timestamp[us, tz=UTC]"


def test_only_what_can_hold_the_wanted_messages_is_read(spark: SparkSession, hours: Path) -> None:
    since, until = MIDNIGHT + timedelta(minutes=25), MIDNIGHT + timedelta(minutes=60)
    found = lake.read(spark, hours, ["or*"], since, until)
    assert content(found) == {("orders", 4): 1, ("orders", 5): 1}
    assert len(found.inputFiles()) == 1
    assert content(lake.read(spark, hours, ["nothing"])) == {}
    assert lake.read(spark, hours, ["nothing"]).columns == lake.read(spark, hours).columns == list(COLUMNS)


def test_other_readers_see_the_same(spark: SparkSession, hours: Path) -> None:
    """A plain listing, and the ten lines that the documentation gives for the manifest."""
    text = Path("docs/spark-lake.md").read_text()
    code = re.search(r"```python\n(import json.*?)```", text, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    paths = names["committed"](hours)
    assert sorted(map(str, paths)) == sorted(str(hours / file.path) for file in lake.files(hours))
    assert ds.dataset(paths).count_rows() == 18
    assert spark.read.parquet(str(hours)).count() == 18


def test_compaction_keeps_every_message_and_removes_files_later(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(4):
        write(spark, tmp_path, [row(queue, batch) for queue in ("orders", "x" * 255)], batch)
    before = content(lake.read(spark, tmp_path))
    old = lake.read(spark, tmp_path)
    done = lake.compact(spark, tmp_path, min_files=4)
    assert (done.directories, done.files_before, done.files_after, done.swept) == (2, 8, 2, 0)
    assert len(lake.files(tmp_path)) == 2
    assert content(lake.read(spark, tmp_path)) == content(old) == before
    done = lake.compact(spark, tmp_path, min_files=4, grace_seconds=0)
    assert (done.directories, done.swept) == (0, 8)
    assert content(lake.read(spark, tmp_path)) == before
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 2
    assert lake.compact(spark, tmp_path, min_files=4, grace_seconds=0).swept == 0


def test_where_spark_has_no_file_system_python_reads(
    spark: SparkSession, hours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reading.reaches(spark, f"file://{hours}")
    assert not reading.reaches(spark, "s3://bucket/lake")
    since, until = MIDNIGHT - timedelta(minutes=35), (MIDNIGHT + timedelta(minutes=60)).replace(tzinfo=None)
    usual = sorted(lake.read(spark, hours, ["or*"], since, until).collect())
    monkeypatch.setattr(reading, "reaches", lambda *given: False)
    monkeypatch.setattr(reading, "_TASKS", 2)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # a time without a zone is none of Spark's zone
    try:
        found = lake.read(spark, hours, ["or*"], since, until)
        assert found.columns == list(COLUMNS)
        assert sorted(found.collect()) == usual
        assert [each.seq for each in usual] == [1, 2, 3, 4, 5]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_a_lake_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "my lake [1] {a,b} 100% %20 #x ?y *z"
    for batch in range(2):
        write(spark, home, [row("orders", batch)], batch)
    assert content(lake.read(spark, home)) == {("orders", 0): 1, ("orders", 1): 1}
    assert lake.compact(spark, home, min_files=2).files_after == 1
    assert content(lake.read(spark, home)) == {("orders", 0): 1, ("orders", 1): 1}


def test_what_is_missing_or_damaged_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"there is no lake at file://{tmp_path}"):
        lake.files(tmp_path)
    for batch in range(2):
        write(spark, tmp_path, [row("orders", batch)], batch)
    path = lake.files(tmp_path)[1].path
    good = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(good[:1000])
    cut = rf"{path} is damaged, it has 1,000 bytes instead of {len(good):,}; restore it"
    with pytest.raises(PipelineError, match=cut):
        lake.read(spark, tmp_path)
    with pytest.raises(PipelineError, match=cut):
        lake.compact(spark, tmp_path, min_files=2)
    (tmp_path / path).unlink()
    with pytest.raises(PipelineError, match=f"{path} is missing"):
        lake.read(spark, tmp_path)


def test_damage_inside_a_file_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    """The text is too short to be compressed. It is in the file several times; not all of them are read."""
    write(spark, tmp_path, [row("orders", 1, payload='"abcdefgh"')])
    path = tmp_path / lake.files(tmp_path)[0].path
    good = path.read_bytes()
    noticed = 0
    for found in re.finditer(b"abcdefgh", good):
        path.write_bytes(good[: found.start()] + b"ABCDEFGH" + good[found.end() :])
        try:
            (batch,) = read_file(f"file://{path}", "orders")
            assert batch["payload"].to_pylist() == ['"abcdefgh"']
        except OSError as error:
            noticed += f"{path} cannot be read" in str(error)
    assert noticed > 0


def test_a_uri_names_the_same_lake(tmp_path: Path, hours: Path) -> None:
    assert lake.files(f"file://{hours}") == lake.files(hours)
    assert open_lake(f"file://{tmp_path}/a%20b").uri() == f"file://{tmp_path}/a b"


def test_the_manifest_tells_its_writer(hours: Path) -> None:
    entries = [json.loads(path.read_text()) for path in sorted((hours / "_queen/manifest").glob("*.json"))]
    told = [(entry["batch"]["writer"], entry["batch"]["number"]) for entry in entries if entry["add"]]
    assert told == [("archive:1", 0), ("archive:1", 1)]
    assert Log(LocalFiles(hours)).state.owners == {"orders": "archive:1", "mails": "archive:1"}
