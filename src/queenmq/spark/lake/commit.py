"""Exactly-once writes: a batch of files appears in a lake as a whole or not at all, whenever its writer dies.

A batch is written to a staging directory that readers do not see. Then an intent says which names its files will get,
they are moved there, and the entry in the manifest commits it. Who dies in between is followed by another run of the
same writer. It opens a term of its own in the manifest, which shuts out the run before, should that be still alive
somewhere; takes back what intents announced and the manifest does not know; and writes the batch again, or leaves it
out when the manifest has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow.parquet as pq

from . import layout
from .filesystem import Files
from .manifest import Batch, Conflict, DataFile, Entry, Log, LostMessages


@dataclass(frozen=True, slots=True)
class Staged:
    """A file in a staging directory, and where its messages belong."""

    path: str
    queue: str
    date: str
    hour: int


class Source(Protocol):
    """Where a batch comes from."""

    def stage(self, uri: str) -> Sequence[Staged]:
        """Write Parquet files into a new directory, and say which of them count."""


class Nothing:
    """A batch that adds no files."""

    def stage(self, uri: str) -> Sequence[Staged]:
        return ()


@dataclass(frozen=True, slots=True)
class _Move:
    staged: str
    file: DataFile


class Writer:
    """One run of a writer. Its name must outlive it: only a writer of the same name takes back what it left."""

    def __init__(self, files: Files, name: str, log: Log | None = None) -> None:
        self._files = files
        self.name = name
        self.log = log or Log(files)
        self.term = self.log.append(Entry(batch=Batch(name), at=self.log.now()))
        self._take_back_all()

    def write(
        self,
        batch: int,
        source: Source,
        *,
        remove: Sequence[str] = (),
        swept: Sequence[str] = (),
        lost: Sequence[LostMessages] = (),
    ) -> tuple[DataFile, ...] | None:
        """Commit a batch; None when that was done before. Raises Conflict, and then nothing is left of it."""
        self.log.refresh()
        if batch <= self.log.state.committed(self.name):
            return None
        place = layout.staging(self.name, self.term, batch)
        self._take_back(place)
        moves = self._moves(place, batch, source.stage(self._files.uri(f"{place}/{layout.DATA}")))
        added = tuple(move.file for move in moves)
        if added or remove or swept or lost:
            self._files.replace(f"{place}/{layout.INTENT}", msgspec.json.encode([file.path for file in added]))
            for move in moves:
                self._files.move(move.staged, move.file.path)
            self._files.sync(file.path for file in added)
            commit, at = Batch(self.name, self.term, batch), self.log.now()
            entry = Entry(batch=commit, at=at, add=added, remove=tuple(remove), swept=tuple(swept), lost=tuple(lost))
            self._append(place, entry)
        self._files.delete_tree(place)
        return added

    def _append(self, place: str, entry: Entry) -> None:
        try:
            self.log.append(entry)
        except Conflict:
            # Another run may have deleted the intent already, while the files were on their way.
            self._forget(file.path for file in entry.add)
            self._files.delete_tree(place)
            raise

    def _moves(self, place: str, batch: int, staged: Sequence[Staged]) -> list[_Move]:
        root = f"{place}/{layout.DATA}"
        moves = []
        for number, each in enumerate(staged):
            name = f"{root}/{each.path}"
            path = layout.part(each.queue, each.date, each.hour, f"{self.term}-{batch}-{number}")
            moves.append(_Move(name, self._described(name, path, each)))
        return moves

    def _described(self, name: str, path: str, staged: Staged) -> DataFile:
        with closing(self._files.input(name)) as file:
            size = file.size()
            footer = pq.read_metadata(file)
        created = list(_statistics(footer, "created_at"))
        return DataFile(
            path=path,
            queue=staged.queue,
            date=staged.date,
            hour=staged.hour,
            rows=footer.num_rows,
            bytes=size,
            min_created_at=min(each.min for each in created),
            max_created_at=max(each.max for each in created),
            encrypted=any(each.max for each in _statistics(footer, "encrypted")),
        )

    def _take_back_all(self) -> None:
        place = layout.staging(self.name)
        batches = {re.match(f"{re.escape(place)}/[^/]+", found.path) for found in self._files.find(place)}
        for each in sorted({batch[0] for batch in batches if batch}):
            self._take_back(each)
        self._files.delete_tree(place)

    def _take_back(self, place: str) -> None:
        """Undo what a run left in its staging directory, and the directory itself as the last."""
        intent = self._files.read(f"{place}/{layout.INTENT}")
        self._forget(msgspec.json.decode(intent, type=list[str]) if intent else ())
        self._files.delete_tree(place)

    def _forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            if not self.log.state.knows(path):
                self._files.delete(path)


def _statistics(footer: Any, column: str) -> Iterator[Any]:
    """The least and greatest value of a column in each row group."""
    position = footer.schema.to_arrow_schema().get_field_index(column)
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(position).statistics
        if statistics is not None and statistics.has_min_max:
            yield statistics
