"""The manifest: which files a lake consists of, as a log of numbered entries.

An entry is written once, under the next number, by whoever gets there first; it is the commit of what it says. So the
log puts all writers into one order, and each entry was checked against everything before it: a batch is committed once,
by the newest run of its writer; a queue has one archive; compaction removes only files that are there. Now and then all
entries are summed up in a snapshot, and readers start there. Whatever is damaged or missing ends a reading: less than
everything would look like a lake, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from ..errors import PipelineError
from . import layout
from .filesystem import Files

VERSION: Final = 1
SNAPSHOT_EVERY: Final = 50
SNAPSHOTS_KEPT: Final = 3
KEPT: Final = timedelta(days=1)
"""Entries that a snapshot contains stay this long: nobody takes so long between looking for a number and using it."""
LOST_KEPT: Final = 10_000
"""So many of the last losses stay in snapshots."""
COMPACTION: Final = "compaction:"
"""How the names of writers begin that rewrite files."""
_SEAL: Final = b',"crc32":'
_T = TypeVar("_T")


class Conflict(PipelineError):
    """The entry contradicts the log, and always will."""

    code = "lake_conflict"


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of messages. `path` is below the root; `encrypted`: some payloads are."""

    path: str
    queue: str
    date: str
    hour: int
    rows: int
    bytes: int
    min_created_at: datetime
    max_created_at: datetime
    encrypted: bool = False


class Batch(msgspec.Struct, frozen=True):
    """Whose entry it is. Without a number it opens a run of the writer, whose term is the entry's own number."""

    writer: str
    term: int = 0
    number: int | None = None


class LostMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that were gone before they could be archived, and that the user has given up. Without names when
    nothing but the number of their partition is known."""

    queue: str | None
    partition: str | None
    partition_number: int
    first: int
    last: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """`remove`: files that no longer count. `swept`: files removed before, which were deleted. `lost`: what the batch
    should have contained and does not."""

    batch: Batch
    at: datetime
    version: int = VERSION
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()
    lost: tuple[LostMessages, ...] = ()


class Standing(msgspec.Struct):
    """A writer's newest run, and the last batch that it or an earlier one committed."""

    term: int
    batch: int = -1


class State(msgspec.Struct, kw_only=True):
    """All entries up to `number`, summed up; this is also what a snapshot holds."""

    version: int = VERSION
    number: int = 0
    files: dict[str, DataFile] = {}
    removed: dict[str, datetime] = {}
    writers: dict[str, Standing] = {}
    owners: dict[str, str] = {}
    lost: list[LostMessages] = []

    def committed(self, writer: str) -> int:
        """The last batch of a writer, -1 when there is none."""
        return self.writers[writer].batch if writer in self.writers else -1

    def knows(self, path: str) -> bool:
        return path in self.files or path in self.removed

    def check(self, entry: Entry) -> None:
        """Raises Conflict when the entry may not follow."""
        batch = entry.batch
        if batch.number is None:
            return
        standing = self.writers[batch.writer]
        if standing.term != batch.term:
            raise Conflict(f"another run of {batch.writer} has taken over this lake; this one must end")
        if batch.number <= standing.batch:
            raise Conflict(f"batch {batch.number} of {batch.writer} is committed already")
        for path in entry.remove:
            if path not in self.files:
                raise Conflict(f"{path} was removed by somebody else")
        if not batch.writer.startswith(COMPACTION):
            self._check_owners(entry)

    def _check_owners(self, entry: Entry) -> None:
        for file in entry.add:
            if self.owners.get(file.queue, entry.batch.writer) != entry.batch.writer:
                raise Conflict(
                    f"queue {file.queue} is archived into this lake from another checkpoint already and would be in it "
                    "twice; go on with that checkpoint, or use another lake"
                )

    def apply(self, number: int, entry: Entry) -> None:
        batch = entry.batch
        if batch.number is None:
            self.writers[batch.writer] = Standing(number, self.committed(batch.writer))
        else:
            self.writers[batch.writer].batch = batch.number
        for file in entry.add:
            self.files[file.path] = file
            if not batch.writer.startswith(COMPACTION):
                self.owners[file.queue] = batch.writer
        for path in entry.remove:
            del self.files[path]
            self.removed[path] = entry.at
        for path in entry.swept:
            self.removed.pop(path, None)
        self.lost = [*self.lost, *entry.lost][-LOST_KEPT:]
        self.number = number


class Log:
    """The manifest of one lake, as far as it was read."""

    def __init__(self, files: Files, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._files = files
        self.now = now
        self._snapshot = 0
        self.state = State()
        written = max(self._numbers(layout.MANIFEST), default=0)
        self.refresh()
        if self.state.number < written:
            lost = self._files.uri(layout.entry(self.state.number + 1))
            raise PipelineError(f"{lost} is missing, and others follow it; restore it, or the lake is not complete")

    def refresh(self) -> None:
        """Read on. Entries may be gone when a snapshot has them, and their numbers must not be taken for free."""
        newest = max(self._numbers(layout.SNAPSHOTS), default=0)
        if newest > self._snapshot:
            self._snapshot = newest
            if newest > self.state.number:
                self.state = self._decoded(layout.snapshot(newest), State) or self.state
        while entry := self._decoded(layout.entry(self.state.number + 1), Entry):
            self.state.apply(self.state.number + 1, entry)

    def append(self, entry: Entry) -> int:
        """Commit an entry; returns its number. Raises Conflict."""
        content = sealed(entry)
        while True:
            self.refresh()
            self.state.check(entry)
            number = self.state.number + 1
            if self._files.put_if_absent(layout.entry(number), content):
                self.state.apply(number, entry)
                self._sum_up()
                return number

    def _sum_up(self) -> None:
        if self.state.number - self._snapshot >= SNAPSHOT_EVERY:
            self._files.replace(layout.snapshot(self.state.number), sealed(self.state))
            self._snapshot = self.state.number
            self._clean()

    def _clean(self) -> None:
        """Delete what newer snapshots contain, and files whose writer died before it could give them their name."""
        kept = sorted(self._numbers(layout.SNAPSHOTS))[-SNAPSHOTS_KEPT:]
        until = self.now() - KEPT
        for place in (layout.MANIFEST, layout.SNAPSHOTS, layout.TEMPORARY):
            for found in self._files.find(place):
                number = layout.numbered(found.path)
                covered = place == layout.TEMPORARY or (number is not None and number < kept[0])
                if covered and found.written < until:
                    self._files.delete(found.path)

    def _numbers(self, place: str) -> list[int]:
        numbers = (layout.numbered(found.path) for found in self._files.find(place))
        return [number for number in numbers if number is not None]

    def _decoded(self, path: str, kind: type[_T]) -> _T | None:
        content = self._files.read(path)
        if content is None:
            return None
        body, _, checksum = content.rpartition(_SEAL)
        if checksum != _checksum(body):
            raise PipelineError(f"{self._files.uri(path)} is damaged, its checksum is another; restore it")
        try:
            found = msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise PipelineError(f"{self._files.uri(path)} is not a manifest of this queenmq: {error}") from None
        if getattr(found, "version", None) != VERSION:
            raise PipelineError(f"{self._files.uri(path)} was written by a newer queenmq; update this one")
        return found


def sealed(what: Entry | State) -> bytes:
    """As JSON, with a checksum of everything else in the last place."""
    body = msgspec.json.encode(what)[:-1]
    return body + _SEAL + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return b"%d}" % zlib.crc32(body)
