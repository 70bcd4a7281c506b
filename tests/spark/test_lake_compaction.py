"""Which files are compacted, and that a compaction that dies changes nothing; without Spark."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from queenmq.spark.errors import PipelineError
from queenmq.spark.lake import filesystem
from queenmq.spark.lake.checkpoint import Checkpoint
from queenmq.spark.lake.commit import Nothing, Writer
from queenmq.spark.lake.compaction import Limits, candidates
from queenmq.spark.lake.filesystem import LocalFiles
from queenmq.spark.lake.manifest import Conflict, DataFile, Log
from tests.spark.lakes import Died, Message, Messages, Watched, committed, seqs, staged

NAME = "compaction:1"
MESSAGES = [Message("orders", seq) for seq in range(1, 6)]
ALL = Counter(range(1, 6))
MOMENT = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture(autouse=True)
def without_power_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_sync", lambda path: None)


def file(name: str, size: int, hour: int = 0, queue: str = "orders") -> DataFile:
    more = {"date": "2026-01-31", "rows": 1, "min_created_at": MOMENT, "max_created_at": MOMENT}
    return DataFile(path=name, queue=queue, hour=hour, bytes=size, **more)  # type: ignore[arg-type]


def test_directories_with_many_small_files_are_chosen() -> None:
    limits = Limits(min_files=3, target_bytes=100, small_bytes=50)
    few = [file(f"few-{n}", 1, hour=1) for n in range(2)]
    large = [file(f"large-{n}", 50, hour=2) for n in range(9)]
    many = [file(f"many-{n}", 1, hour=3) for n in range(4)]
    heavy = [file(f"heavy-{n}", 49, hour=4) for n in range(3)]
    chosen = [each.path for each in candidates([*few, *large, *many, *heavy], limits)]
    # The fullest directory first; of the heavy ones only as many as fit into one file of the wanted size.
    assert chosen == [f"many-{n}" for n in range(4)] + ["heavy-0", "heavy-1"]


def test_at_least_two_files_become_one() -> None:
    limits = Limits(min_files=2, target_bytes=10, small_bytes=50)
    assert len(candidates([file("a", 40), file("b", 40), file("c", 40)], limits)) == 2


def test_a_compaction_that_dies_anywhere_changes_nothing(tmp_path: Path) -> None:
    class Killer:
        def __init__(self, at: int) -> None:
            self.left = at

        def __call__(self, what: str) -> None:
            self.left -= 1
            if self.left == 0:
                raise Died(what)

    def compacted(files: Any, step: Any) -> None:
        writer = Writer(files, NAME)
        old = [path for path in writer.log.state.files if path.split("part-")[1].startswith("1-")]
        writer.write(writer.log.state.committed(NAME) + 1, Messages(MESSAGES, step) if old else Nothing(), remove=old)

    for at in range(1, 1000):
        lake = tmp_path / str(at)
        Writer(LocalFiles(lake), "archive:1").write(0, Messages(MESSAGES))
        killer = Killer(at)
        try:
            compacted(Watched(lake, killer), killer)
        except Died:
            assert committed(lake) == ALL
            compacted(LocalFiles(lake), lambda what: None)
        state = Log(LocalFiles(lake)).state
        found = {each.path for each in LocalFiles(lake).find("") if each.path.endswith(".parquet")}
        assert (committed(lake), len(state.removed)) == (ALL, 3)
        assert found == state.files.keys() | state.removed.keys()
        assert seqs(lake, state.removed) == ALL
        assert staged(LocalFiles(lake)) == []
        if killer.left > 0:
            break
    assert at > 30


def test_a_file_is_not_compacted_twice(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    Writer(files, "archive:1").write(0, Messages(MESSAGES))
    old = sorted(Log(files).state.files)
    first, second = Writer(files, NAME), Writer(files, "compaction:2")
    first.write(0, Messages(MESSAGES), remove=old)
    with pytest.raises(Conflict, match="was removed by somebody else"):
        second.write(0, Messages(MESSAGES), remove=old)
    assert committed(tmp_path) == ALL
    assert len(list(tmp_path.glob("queue=*/*/*/*.parquet"))) == 2 * len(old)


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: str) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PipelineError, match="is on a file system without hard links"):
        Writer(LocalFiles(tmp_path), NAME)


def test_a_checkpoint_tells_the_last_commit(tmp_path: Path) -> None:
    checkpoint = Checkpoint(LocalFiles(tmp_path))
    assert checkpoint.committed() is None
    with pytest.raises(PipelineError, match="there is no query in the checkpoint"):
        checkpoint.query_id()
    (tmp_path / "metadata").write_text(json.dumps({"id": "a-b"}))
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch in (9, 10, 11):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"epoch":{batch}}}')
    for name in ("9", "10", ".11.crc", ".11.tmp"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    assert (checkpoint.query_id(), checkpoint.committed()) == ("a-b", {"epoch": 10})
