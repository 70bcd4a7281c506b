"""A batch is in a lake once, wherever its writer died, and whoever else wrote at that moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from queenmq.spark.errors import PipelineError
from queenmq.spark.lake import filesystem, layout, manifest
from queenmq.spark.lake.commit import Writer
from queenmq.spark.lake.filesystem import LocalFiles
from queenmq.spark.lake.manifest import Batch, Conflict, Entry, Log, LostMessages, State
from tests.amounts import SCALE
from tests.spark.lakes import Died, Message, Messages, Watched, committed, staged, visible

ARCHIVE = "archive:1"
FIRST = [Message("orders", seq) for seq in (1, 2, 3)]
SECOND = [Message("orders", 4), Message("a/b", 5), Message("orders", 6)]
THIRD = [Message("orders", 7)]
ALL = Counter(range(1, 8))
BATCHES = (FIRST, SECOND, THIRD)


class Plot:
    """Does something once, at the k-th step."""

    def __init__(self, at: int, deed: Callable[[], None]) -> None:
        self._left = at
        self._deed = deed
        self.done = False
        self.where: str | None = None

    def __call__(self, what: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.done = True
            self.where = what
            self._deed()


def die() -> None:
    raise Died


def run(lake: Path, step: Callable[[str], None] = lambda what: None, name: str = ARCHIVE) -> None:
    """What Spark does after a start: go on with the batch that it has not seen committed, here always the first."""
    writer = Writer(Watched(lake, step), name)
    for number, batch in enumerate(BATCHES):
        writer.write(number, Messages(batch, step))


def every_step(deed: Callable[[Plot], None], stride: int = 1) -> int:
    """Try a plot at the first step, the second and so on, until there are no more. Returns how many there were."""
    for at in range(1, 1000, stride):
        plot = Plot(at, die)
        deed(plot)
        if not plot.done:
            return at - 1
    raise AssertionError("it never ends")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after every second entry: their writing is among the steps. No power failures here."""
    monkeypatch.setattr(manifest, "SNAPSHOT_EVERY", 2)
    monkeypatch.setattr(filesystem, "_sync", lambda path: None)


def exact(lake: Path) -> None:
    assert committed(lake) == ALL
    assert visible(lake) == ALL
    assert staged(LocalFiles(lake)) == []


def test_batches_are_committed_and_read_back(tmp_path: Path) -> None:
    run(tmp_path)
    exact(tmp_path)


def test_dying_anywhere_and_starting_again_is_exact(tmp_path: Path) -> None:
    def killed_at(plot: Plot) -> None:
        lake = tmp_path / str(plot._left)
        try:
            run(lake, plot)
        except Died:
            assert committed(lake) <= ALL, plot.where
            run(lake)
        exact(lake)

    assert every_step(killed_at) > 60


def test_dying_twice_in_a_row_is_exact(tmp_path: Path) -> None:
    """The second time while the first is cleaned up."""

    def killed_at(plot: Plot) -> None:
        for second in range(1, 25):
            lake = tmp_path / f"{plot._left}-{second}"
            first = Plot(plot._left, die)
            for step in (first, Plot(second, die), lambda what: None):
                try:
                    run(lake, step)
                except Died:
                    continue
            plot.done = first.done
            exact(lake)

    assert every_step(killed_at, stride=1 if SCALE > 1 else 11) > 60


@pytest.mark.parametrize("does_all", [True, False])
def test_a_run_that_was_taken_for_dead_changes_nothing(tmp_path: Path, does_all: bool) -> None:
    """At each step of one run another starts on the same checkpoint, and does all the work or as yet nothing but taking
    back what it finds; then the first goes on."""
    refused = 0
    for at in range(1, 1000):
        lake = tmp_path / str(at)

        def other(lake: Path = lake) -> None:
            if does_all:
                run(lake)
            else:
                Writer(LocalFiles(lake), ARCHIVE)

        plot = Plot(at, other)
        try:
            run(lake, plot)
        except (Conflict, FileNotFoundError):
            refused += 1
        if not plot.done:
            break
        if not does_all:
            assert committed(lake) <= ALL, plot.where
            run(lake)
        assert (committed(lake), visible(lake)) == (ALL, ALL), plot.where
    assert refused > 30


def test_archives_of_different_queues_share_a_lake(tmp_path: Path) -> None:
    """At each step of one, the other commits a batch."""
    for at in range(1, 1000):
        lake = tmp_path / str(at)

        def other(lake: Path = lake) -> None:
            Writer(LocalFiles(lake), "archive:2").write(0, Messages([Message("mails", 100), Message("mails", 101)]))

        plot = Plot(at, other)
        run(lake, plot)
        if not plot.done:
            break
        assert committed(lake) == visible(lake) == ALL + Counter([100, 101]), plot.where
    assert at > 60


def test_a_queue_is_not_archived_twice_into_one_lake(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(Conflict, match="queue orders is archived into this lake from another checkpoint"):
        Writer(LocalFiles(tmp_path), "archive:2").write(0, Messages(FIRST))
    exact(tmp_path)


def test_a_batch_without_messages_leaves_no_trace(tmp_path: Path) -> None:
    writer = Writer(LocalFiles(tmp_path), ARCHIVE)
    before = writer.log.state.number
    assert writer.write(0, Messages([])) == ()
    assert Log(LocalFiles(tmp_path)).state.number == before
    assert staged(LocalFiles(tmp_path)) == []


def test_numbers_of_deleted_entries_are_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was away for long finds its next number free, as if nothing had happened."""
    monkeypatch.setattr(manifest, "KEPT", -manifest.KEPT)
    asleep = Writer(LocalFiles(tmp_path), "archive:2")
    run(tmp_path)
    for _ in range(10):
        Writer(LocalFiles(tmp_path), ARCHIVE)
    assert LocalFiles(tmp_path).read(layout.entry(asleep.term + 1)) is None
    asleep.write(0, Messages([Message("mails", 100)]))
    assert committed(tmp_path) == ALL + Counter([100])


def test_a_manifest_of_a_later_version_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    lake = LocalFiles(tmp_path)
    number = Log(lake).state.number
    later = Entry(batch=Batch(ARCHIVE), at=datetime.now(UTC), version=2)
    lake.replace(layout.entry(number + 1), manifest.sealed(later))
    with pytest.raises(PipelineError, match="was written by a newer queenmq"):
        Log(lake)


def test_a_manifest_of_something_else_is_refused(tmp_path: Path) -> None:
    LocalFiles(tmp_path).replace(layout.entry(1), manifest.sealed(State()))
    with pytest.raises(PipelineError, match=r"00001\.json is not a manifest of this queenmq"):
        Log(LocalFiles(tmp_path))


def test_a_manifest_that_is_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    """Less than everything would look like a lake, too. Entries up to the snapshot are not read."""
    run(tmp_path)
    lake = LocalFiles(tmp_path)
    Writer(lake, ARCHIVE)
    for path in (layout.snapshot(4), layout.entry(5)):
        good = lake.read(path) or b""
        assert Log(lake).state.number == 5
        for at in range(0, len(good), 5):
            for bad in (good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], good[:at]):
                (tmp_path / path).write_bytes(bad)
                with pytest.raises(PipelineError, match=rf"{path} is damaged"):
                    Log(lake)
        (tmp_path / path).write_bytes(good)
    (tmp_path / layout.snapshot(4)).unlink()
    (tmp_path / layout.snapshot(2)).unlink()
    (tmp_path / layout.entry(2)).unlink()
    with pytest.raises(PipelineError, match=rf"{layout.entry(2)} is missing, and others follow it"):
        Writer(lake, ARCHIVE)


def test_strangers_in_the_directories_of_a_lake_do_no_harm(tmp_path: Path) -> None:
    lake = LocalFiles(tmp_path)
    for path in (layout.MANIFEST, layout.SNAPSHOTS, layout.staging(ARCHIVE), layout.STAGING, "queue=orders"):
        lake.replace(f"{path}/notes.txt", b"mine")
    Writer(lake, ARCHIVE).write(0, Messages(FIRST))
    assert committed(tmp_path) == Counter([1, 2, 3])


def test_what_was_given_up_stays_in_the_manifest(tmp_path: Path) -> None:
    """Also in snapshots, and when the batch has no message left."""
    lost = LostMessages(queue="orders", partition="p", partition_number=7, first=1, last=3)
    writer = Writer(LocalFiles(tmp_path), ARCHIVE)
    assert writer.write(0, Messages([]), lost=[lost]) == ()
    assert writer.write(0, Messages(FIRST)) is None, "the batch is committed"
    for number, batch in enumerate(BATCHES, 1):
        writer.write(number, Messages(batch))
    assert (tmp_path / layout.SNAPSHOTS).is_dir()
    assert Log(LocalFiles(tmp_path)).state.lost == [lost]
