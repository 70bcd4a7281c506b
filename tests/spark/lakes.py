"""What the tests of the lake share: batches without Spark, a file system that fails, a look at what a lake holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from queenmq.domain.segments import PushItem
from queenmq.spark.lake import direct, layout
from queenmq.spark.lake.commit import Staged, Writer
from queenmq.spark.lake.filesystem import Files, Found, LocalFiles
from queenmq.spark.lake.manifest import Log
from queenmq.storage import holds
from queenmq.storage.store import Store

_SCHEMA = pa.schema([("seq", pa.int64()), ("encrypted", pa.bool_()), ("created_at", pa.timestamp("us", "UTC"))])
T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    queue: str
    seq: int
    created_at: datetime = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    encrypted: bool = False


class Died(Exception):
    """The process was killed here."""


class Watched:
    """A directory that calls back before and after each operation, so that one can die there, or do something else.

    An operation that leaves something half done calls back in the middle, too.
    """

    def __init__(self, root: Path, step: Callable[[str], None] = lambda what: None, files: Files | None = None) -> None:
        self._files = files or LocalFiles(root)
        self.step = step

    def read(self, path: str) -> bytes | None:
        return self._around(f"read {path}", lambda: self._files.read(path))

    def replace(self, path: str, content: bytes) -> None:
        self._half_written(content)
        self._around(f"replace {path}", lambda: self._files.replace(path, content))

    def put_if_absent(self, path: str, content: bytes) -> bool:
        self._half_written(content)
        return self._around(f"put {path}", lambda: self._files.put_if_absent(path, content))

    def move(self, source: str, target: str) -> None:
        self._around(f"move {target}", lambda: self._files.move(source, target))

    def delete(self, path: str) -> None:
        self._around(f"delete {path}", lambda: self._files.delete(path))

    def delete_tree(self, path: str) -> None:
        for found in self._files.find(path):
            self.step(f"before delete {found.path}")
            self._files.delete(found.path)
        self._around(f"delete {path}", lambda: self._files.delete_tree(path))

    def find(self, path: str) -> list[Found]:
        return self._around(f"find {path}", lambda: self._files.find(path))

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        return self._files.sizes(paths)

    def sync(self, paths: Iterable[str]) -> None:
        self._around("sync", lambda: self._files.sync(paths))

    def input(self, path: str) -> Any:
        return self._files.input(path)

    def uri(self, path: str = "") -> str:
        return self._files.uri(path)

    def below(self, path: str) -> Files:
        return self._files.below(path)

    def _around(self, what: str, work: Callable[[], T]) -> T:
        self.step(f"before {what}")
        result = work()
        self.step(f"after {what}")
        return result

    def _half_written(self, content: bytes) -> None:
        """The temporary file of a write that was never finished."""
        self._files.replace(f"{layout.TEMPORARY}/half", content[: len(content) // 2])
        self.step("half written")
        self._files.delete(f"{layout.TEMPORARY}/half")


class Messages:
    """A batch of messages, written without Spark: one file for each directory and two messages."""

    def __init__(self, messages: Iterable[Message], step: Callable[[str], None] = lambda what: None) -> None:
        self._messages = list(messages)
        self._step = step

    def stage(self, uri: str) -> list[Staged]:
        places: dict[tuple[str, str, int], list[Message]] = {}
        for each in self._messages:
            places.setdefault((each.queue, f"{each.created_at:%Y-%m-%d}", each.created_at.hour), []).append(each)
        staged: list[Staged] = []
        for place, messages in places.items():
            for start in range(0, len(messages), 2):
                staged.append(Staged(f"{len(staged)}.parquet", *place))
                self._write(Path(uri.removeprefix("file://"), staged[-1].path), messages[start : start + 2])
        return staged

    def _write(self, path: Path, messages: Sequence[Message]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
        self._step("staging")
        rows = [{"seq": m.seq, "encrypted": m.encrypted, "created_at": m.created_at} for m in messages]
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)
        self._step("staged")


class Table:
    """A batch of whole messages, with the columns of the source: what an archive's task writes."""

    def __init__(self, messages: pa.Table) -> None:
        self._messages = messages.combine_chunks()

    def stage(self, uri: str) -> list[Staged]:
        (told,) = direct._written(self._messages.to_batches(), uri)
        days = ((row, datetime.fromtimestamp(row["day"] * 86400, UTC).date()) for row in told.to_pylist())
        return [Staged(row["path"], row["queue"], day.isoformat(), row["hour"]) for row, day in days]


def seqs(lake: Path, paths: Iterable[str]) -> Counter[int]:
    """How often each message is in these files."""
    return Counter(seq for path in paths for seq in pq.ParquetFile(lake / path).read(["seq"])["seq"].to_pylist())


def committed(lake: Path) -> Counter[int]:
    """The messages that a reader of the manifest sees."""
    return seqs(lake, Log(LocalFiles(lake)).state.files)


def visible(lake: Path) -> Counter[int]:
    """The messages that a reader of the directories sees."""
    return seqs(lake, [found.path for found in LocalFiles(lake).find("") if not found.path.startswith("_queen")])


def staged(files: Files) -> list[str]:
    return [found.path for found in files.find(layout.STAGING)]


def items(queue: str, *numbers: int, partition: str = "p") -> list[PushItem]:
    return [PushItem(queue, str(number).encode(), partition, transaction_id=f"t{number}") for number in numbers]


class Blocking:
    """A store for tests that are not asynchronous: Spark blocks the thread."""

    def __init__(self, runner: asyncio.Runner, store: Store) -> None:
        self.run = runner.run
        self.store = store

    def push(self, *pushed: PushItem) -> None:
        self.run(self.store.push(list(pushed)))

    def holds(self) -> list[holds.Hold]:
        return self.run(holds.list_holds(self.store.pool))

    def kept(self, queue: str) -> list[int]:
        rows = self.run(self.store.pool.fetch("select seq from queen.messages where queue = $1 order by seq", queue))
        return [row["seq"] for row in rows]


def fill(spark: SparkSession, database: str, home: Path, batch: int = 0, **options: str) -> None:
    """Everything that is in the queues, as an archive would commit it."""
    given = {"queue": "*", "databaseUrl": database, "decrypt": "false"} | options
    messages = spark.read.format("queen").options(**given).load().toArrow()
    Writer(LocalFiles(home), "archive:1").write(batch, Table(messages))


@contextmanager
def blocking(database: str) -> Iterator[Blocking]:
    with asyncio.Runner() as runner:
        store = runner.run(Store.open(database))
        try:
            yield Blocking(runner, store)
        finally:
            runner.run(store.close())
