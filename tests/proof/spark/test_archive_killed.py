"""The archive is killed between its writes and its commits, while messages are pushed and retention is at work.

In the end the lake holds every message once. So retention has removed nothing that the lake did not hold.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from queenmq.domain.segments import PushItem
from queenmq.spark.lake import layout
from queenmq.spark.lake.filesystem import LocalFiles
from queenmq.spark.lake.manifest import Log
from queenmq.storage import holds, retention
from queenmq.storage.store import Store
from tests.amounts import SCALE
from tests.proof.spark.processes import executor, kill, killable

KILLS = 1 if SCALE <= 1 else 10
PATIENCE = 240.0
QUEUES = ("orders", "a/b")


class Lake:
    """What can be seen of a lake from outside, while an archive writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._commits = path / "_queen" / "checkpoints" / "%2A" / "commits"

    def batch(self) -> int:
        """The last batch that the manifest has, -1 when there is none."""
        for entry in sorted((self.path / layout.MANIFEST).glob("*.json"), reverse=True):
            batch = json.loads(entry.read_text())["batch"]
            if batch["writer"].startswith("archive:") and batch["number"] is not None:
                return int(batch["number"])
        return -1

    def is_staging(self) -> bool:
        return any((self.path / layout.STAGING).glob(f"*/*/{layout.DATA}"))

    def is_moving(self) -> bool:
        """The files have got, or are getting, their names, and the manifest does not know of them."""
        return any((self.path / layout.STAGING).glob(f"*/*/{layout.INTENT}"))

    def is_between_commits(self) -> bool:
        """The lake has a batch of which Spark does not know that it is committed."""
        batch = self.batch()
        return batch >= 0 and not (self._commits / str(batch)).exists()

    def payloads(self) -> Counter[int]:
        files = Log(LocalFiles(self.path)).state.files
        return Counter(int(text) for path in files for text in _column(self.path / path))

    def strays(self) -> set[str]:
        """Files of messages that the manifest does not know."""
        state = Log(LocalFiles(self.path)).state
        found = {str(path.relative_to(self.path)) for path in self.path.glob("queue=*/*/*/*.parquet")}
        return found - state.files.keys() - state.removed.keys()


def _column(path: Path) -> list[str]:
    return list(pq.ParquetFile(path).read(["payload"])["payload"].to_pylist())


def archiving(
    lake: Lake, database: str, *more: str, master: str = "local[2]"
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.proof.spark.archiving", str(lake.path), database, master, *more]
    return killable(command, lake.path.parent / "archive.log")


async def until(look: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert process is None or process.poll() is None, "the archive ended"
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def repeating(work: Callable[[], Awaitable[None]], pause: float) -> AsyncIterator[None]:
    ended = asyncio.Event()

    async def loop() -> None:
        while not ended.is_set():
            await work()
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), pause)

    task = asyncio.create_task(loop())
    try:
        yield
    finally:
        ended.set()
        await task


@pytest.mark.timeout(180 + 120 * (KILLS + 1))
async def test_the_lake_is_exact_and_retention_waits_for_it(database: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    store = await Store.open(database)
    numbers = itertools.count(1)
    pushed: Counter[int] = Counter()
    removed = 0

    async def push() -> None:
        chosen = [next(numbers) for _ in range(random.randint(1, 20))]
        await store.push([PushItem(random.choice(QUEUES), str(n).encode(), f"p{n % 3}") for n in chosen])
        pushed.update(chosen)

    async def trim() -> None:
        """Nobody has promised anything before the archive is there."""
        nonlocal removed
        if len(await holds.list_holds(store.pool)) == len(QUEUES):
            removed += (await retention.trim(store.pool, batch=1000)).messages

    try:
        for queue in QUEUES:
            await store.configure(queue, retentionEnabled=True, retentionSeconds=1)
        async with repeating(trim, 0.05):
            async with repeating(push, 0.05):
                for kill in range(KILLS):
                    await killed(lake, database, kill)
            await finished(lake, database)
        assert lake.payloads() == pushed
        assert lake.strays() == set()
        assert list((lake.path / layout.STAGING).glob("*/*")) == []
        assert removed > 0
    finally:
        await store.close()


@pytest.mark.timeout(180 + 60 * (KILLS + 1))
async def test_executors_may_die_too(database: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    store = await Store.open(database)
    pushed: Counter[int] = Counter()
    numbers = itertools.count(1)

    async def push() -> None:
        chosen = [next(numbers) for _ in range(20)]
        await store.push([PushItem("orders", str(n).encode(), f"p{n % 3}") for n in chosen])
        pushed.update(chosen)

    try:
        async with repeating(push, 0.02):
            with archiving(lake, database, master="local-cluster[2,1,1024]") as process:
                for number in range(KILLS):
                    before = lake.batch()
                    await until(lambda before=before: lake.batch() > before, process)  # type: ignore[misc]
                    await until(lake.is_staging, process)
                    chosen = executor(process.pid, number)
                    assert chosen, "there is no executor"
                    for pid in chosen:
                        kill(pid)
                last = lake.batch()
                await until(lambda: lake.batch() > last + 1, process)
        await finished(lake, database)
        assert lake.payloads() == pushed
        assert lake.strays() == set()
    finally:
        await store.close()


async def killed(lake: Lake, database: str, kill: int) -> None:
    """Start it, let it commit something, kill it at a moment that is different each time."""
    before = lake.batch()
    aims = (lake.is_between_commits, lake.is_moving, lake.is_staging, None)
    aim = aims[kill % len(aims)]
    with archiving(lake, database) as process:
        await until(lambda: lake.batch() > before + 1, process)
        if aim is None:
            await asyncio.sleep(random.random())
        else:
            await until(aim, process)


async def finished(lake: Lake, database: str) -> None:
    with archiving(lake, database, "once") as process:
        await until(lambda: process.poll() is not None)
        assert process.returncode == 0, (lake.path.parent / "archive.log").read_text()
