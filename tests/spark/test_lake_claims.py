"""A lake where a name can be written twice, as in object stores: the database decides whose entry it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pytest
from pyarrow import fs

from queenmq.spark.errors import OptionError, PipelineError
from queenmq.spark.lake import layout
from queenmq.spark.lake.claims import Claims
from queenmq.spark.lake.commit import Writer
from queenmq.spark.lake.filesystem import RemoteFiles, open_lake
from queenmq.spark.lake.manifest import Conflict
from tests.amounts import SCALE
from tests.spark.lakes import Died, Message, Messages, Watched, committed, visible

ARCHIVE = "archive:1"
BATCHES = ([Message("orders", 1), Message("a/b", 2)], [Message("orders", 3)])
ALL = Counter([1, 2, 3])
MORE = Counter([100])
Step = Callable[[str], None]


class Store(RemoteFiles):
    """A directory that replaces files, and calls back at what a writer does between its claim and the file."""

    def __init__(self, root: Path, database: str, step: Step = lambda what: None) -> None:
        super().__init__(fs.LocalFileSystem(), str(root), f"file://{root}", Claims(database))
        self._step = step

    def replace(self, path: str, content: bytes) -> None:
        self._step(f"before write {path}")
        super().replace(path, content)
        self._step(f"after write {path}")


class Lake:
    def __init__(self, root: Path, database: str) -> None:
        self.root = root
        self._database = database

    def files(self, step: Step = lambda what: None) -> Watched:
        return Watched(self.root, step, Store(self.root, self._database, step))

    def archive(self, step: Step = lambda what: None) -> None:
        writer = Writer(self.files(step), ARCHIVE)
        for number, batch in enumerate(BATCHES):
            writer.write(number, Messages(batch, step))

    def other(self) -> None:
        Writer(self.files(), "archive:2").write(0, Messages([Message("mails", 100)]))


def at_steps(tmp_path: Path, database: str, work: Callable[[Lake, Step], None], deed: Callable[[Lake], None]) -> int:
    """Do the work in one lake after the other, with a deed in the middle: at the first step, at the second and so on.
    Returns how many there were. The steps are the writes to the store; in long tests, all others, too."""
    for at in range(1, 1000):
        lake = Lake(tmp_path / str(at), database)
        left = at

        def step(what: str, lake: Lake = lake) -> None:
            nonlocal left
            if "write" in what or SCALE > 1:
                left -= 1
                if left == 0:
                    deed(lake)

        work(lake, step)
        if left > 0:
            return at - 1
    raise AssertionError("it never ends")


def test_two_archives_never_take_each_others_place(database: str, tmp_path: Path) -> None:
    """At each step of one, the other commits a batch."""

    def work(lake: Lake, step: Step) -> None:
        lake.archive(step)
        if (lake.root / "queue=mails").exists():
            assert committed(lake.root) == visible(lake.root) == ALL + MORE

    assert at_steps(tmp_path, database, work, Lake.other) >= 10


def test_a_run_that_was_taken_for_dead_changes_nothing(database: str, tmp_path: Path) -> None:
    refused = 0

    def work(lake: Lake, step: Step) -> None:
        nonlocal refused
        try:
            lake.archive(step)
        except (Conflict, FileNotFoundError):
            refused += 1
        assert committed(lake.root) == visible(lake.root) == ALL

    assert at_steps(tmp_path, database, work, Lake.archive) >= 10
    assert refused > 3


def test_an_entry_whose_owner_died_is_written_by_the_next(database: str, tmp_path: Path) -> None:
    def die(lake: Lake) -> None:
        raise Died

    def work(lake: Lake, step: Step) -> None:
        try:
            lake.archive(step)
        except Died:
            lake.other()
            lake.archive()
            assert committed(lake.root) == visible(lake.root) == ALL + MORE

    assert at_steps(tmp_path, database, work, die) >= 10


def test_of_many_at_once_each_gets_a_number(database: str, tmp_path: Path) -> None:
    many = 6
    start = Barrier(many)
    files = [Store(tmp_path, database) for _ in range(many)]
    terms: list[int] = []

    def run(number: int) -> None:
        start.wait()
        writer = Writer(files[number], f"archive:{number}")
        writer.write(0, Messages([Message(f"queue-{number}", number)]))
        terms.append(writer.term)

    threads = [Thread(target=run, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(terms)) == many
    assert committed(tmp_path) == visible(tmp_path) == Counter(range(many))


def test_a_lake_that_was_deleted_can_be_begun_again(database: str, tmp_path: Path) -> None:
    Lake(tmp_path / "lake", database).archive()
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    Lake(tmp_path / "lake", database).archive()
    assert committed(tmp_path / "lake") == visible(tmp_path / "lake") == ALL


def test_writing_needs_the_database(tmp_path: Path) -> None:
    files = RemoteFiles(fs.LocalFileSystem(), str(tmp_path), "s3://bucket/lake")
    with pytest.raises(PipelineError, match="writing to the lake s3://bucket/lake needs the database of its archive"):
        Writer(files, ARCHIVE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "uri",
    ["s3://key:secret@bucket/lake", "S3://key:1/secret@bucket/lake", "s3a://bucket/lake?secret_key=secret", "s3:/b"],
)
def test_secrets_in_a_uri_are_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(OptionError, match="credentials and endpoint come from the environment") as refused:
        open_lake(uri)
    assert "sec" not in refused.value.message
    assert "sec" not in repr(Claims("postgresql://queen:secret@host/db"))


def test_places_below_a_lake_keep_their_names(tmp_path: Path) -> None:
    for queue, name in (("*", "%2A"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a%2Fb", "a%252Fb")):
        uri = open_lake(tmp_path).below(layout.checkpoint(queue)).uri()
        assert uri == f"file://{tmp_path}/_queen/checkpoints/{name}"
