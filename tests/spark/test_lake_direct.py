"""What an archive's tasks do: fetch the messages of a plan, and write them as Parquet by queue and hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StructType

from queenmq.domain.segments import PushItem
from queenmq.spark.errors import OptionError
from queenmq.spark.lake import direct
from queenmq.spark.lake.commit import Staged, Writer
from queenmq.spark.lake.filesystem import LocalFiles
from queenmq.spark.options import ReadOptions, read_options
from queenmq.spark.planning import Ranges
from queenmq.spark.reader import read_split
from queenmq.spark.schema import every_column
from queenmq.spark.source import QueenDataSource
from queenmq.spark.stream_reader import MessageStreamReader
from queenmq.storage.store import Store
from tests.spark.lakes import Message, Messages, committed, visible
from tests.spark.reading import opened

RANGES = StructType().add("ranges", BinaryType()).add("messages", LongType())


@pytest.fixture
async def queue(queue: Store, database: str) -> Store:
    """Three queues with messages of three hours, in segments of several sizes."""
    for number in range(30):
        names = [f"q{number % 3}"] * (1 + number % 4)
        await queue.push(
            [PushItem(queue=name, partition=f"p{number % 5}", payload=b'{"n":%d}' % number) for name in names]
        )
    connection = await asyncpg.connect(database)
    await connection.execute("update queen.segments set created_at = created_at - interval '1 hour' * (last_seq % 3)")
    await connection.close()
    return queue


def options(url: str) -> ReadOptions:
    return read_options({"databaseUrl": url, "queue": "*", "dataset": "ranges", "numSplits": "2"}, {})


def plans(url: str) -> list[pa.RecordBatch]:
    """What the stream of an archive carries: one row for each task."""
    source = MessageStreamReader(options(url), RANGES)
    opened.append(source)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    return [each for part in source.partitions(start, end) for each in source.read(part)]


def written(url: str, folder: Path) -> list[tuple[str, str, int, int]]:
    found = []
    for plan in plans(url):
        messages = (
            found
            for row in plan.to_pylist()
            for found in read_split(options(url), every_column(), Ranges.decoded(row["ranges"]))
        )
        for batch in direct._written(messages, f"file://{folder}"):
            found += [(row["path"], row["queue"], row["day"], row["hour"]) for row in batch.to_pylist()]
    return found


def messages(folder: Path, files: list[tuple[str, str, int, int]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for path, name, _, _ in files:
        rows = pq.read_table(folder / path).to_pylist()
        found.update((name, row["partition"], row["seq"], row["payload"]) for row in rows)
    return found


async def stored(queue: Store) -> Counter[tuple[Any, ...]]:
    rows = await queue.pool.fetch("select queue, partition, seq, payload::text from queen.messages")
    return Counter(tuple(row)[:3] for row in rows)


def without_payload(found: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    return Counter({key[:3]: count for key, count in found.items()})


async def test_every_message_is_in_one_file_of_its_queue_and_hour(database: str, queue: Store, tmp_path: Path) -> None:
    files = written(database, tmp_path)
    assert without_payload(messages(tmp_path, files)) == await stored(queue)
    for path, _, day, hour in files:
        times: list[datetime] = pq.read_table(tmp_path / path).column("created_at").to_pylist()
        assert {(int(at.timestamp()) // 86400, at.hour) for at in times} == {(day, hour)}
    assert {pq.read_schema(tmp_path / path).field("created_at").type for path, *_ in files} == {
        pa.timestamp("us", "UTC")
    }


async def test_with_few_files_open_at_once_there_are_more_of_them(
    database: str, queue: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = len(written(database, tmp_path / "a"))
    monkeypatch.setattr(direct, "OPEN_FILES", 1)
    files = written(database, tmp_path / "b")
    assert len(files) > usual
    assert without_payload(messages(tmp_path / "b", files)) == await stored(queue)


async def test_files_are_bounded(database: str, queue: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = len(written(database, tmp_path / "a"))
    monkeypatch.setattr(direct, "FILE_BYTES", 1)
    files = written(database, tmp_path / "b")
    assert len(files) > usual
    assert without_payload(messages(tmp_path / "b", files)) == await stored(queue)


async def test_row_groups_are_bounded(
    database: str, queue: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "ROW_GROUP_BYTES", 1)
    files = written(database, tmp_path)
    assert without_payload(messages(tmp_path, files)) == await stored(queue)
    assert max(pq.read_metadata(tmp_path / path).num_row_groups for path, *_ in files) > 1


class Attempted:
    """A batch of which an attempt that failed has left a file, too."""

    def __init__(self, batch: Messages) -> None:
        self._batch = batch

    def stage(self, uri: str) -> Sequence[Staged]:
        self._batch.stage(uri)
        folder = Path(uri.removeprefix("file://"))
        files = sorted(folder.rglob("*.parquet"))
        files[0].with_name("left-behind.parquet").write_bytes(files[0].read_bytes())
        return [Staged(str(path.relative_to(folder)), "orders", "2026-01-31", 23) for path in files]


def test_what_a_failed_attempt_has_left_does_not_count(tmp_path: Path) -> None:
    batch = [Message("orders", seq) for seq in (1, 2, 3)]
    Writer(LocalFiles(tmp_path), "archive:1").write(0, Attempted(Messages(batch, lambda what: None)))
    assert committed(tmp_path) == visible(tmp_path) == Counter([1, 2, 3])


def test_plans_travel_as_bytes() -> None:
    import numpy as np

    ranges = Ranges(np.array([1, 9]), np.array([0, 2**40]), np.array([5, 2**41]))
    found = Ranges.decoded(ranges.encoded())
    assert (found.pids.tolist(), found.los.tolist(), found.his.tolist()) == ([1, 9], [0, 2**40], [5, 2**41])


def test_ranges_are_for_streams(database: str) -> None:
    source = QueenDataSource({"databaseUrl": database, "queue": "*", "dataset": "ranges"})
    with pytest.raises(OptionError, match="only be read as a stream"):
        source.reader(RANGES)
