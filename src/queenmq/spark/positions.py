"""Where a stream stands: the last message passed in each partition, kept in the database under a number, the epoch.

Spark writes an offset for every micro-batch. A map of 100,000 partitions would be megabytes each time; an epoch is a
few bytes. Its map is written before Spark hears of the number and never changed, so a restart reads exactly what was
planned. Most epochs hold only what moved since the one before.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from .. import sql
from ..domain.segments import array
from .connecting import call
from .errors import NotReady

if TYPE_CHECKING:
    import asyncpg
    import numpy.typing as npt
    from adbc_driver_postgresql import dbapi

    Ints = npt.NDArray[np.int64]

KEPT: Final = 200
"""Epochs that are kept; Spark can go back a hundred batches."""
_WHOLE_EVERY: Final = 50


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """The last message passed in each partition; in one that is not listed, none."""

    pids: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seqs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def at(self, pids: Ints) -> Ints:
        """The position in each of these partitions."""
        if not len(self.pids):
            return np.zeros(len(pids), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.pids, pids), len(self.pids) - 1)
        return np.where(self.pids[places] == pids, self.seqs[places], 0)

    def moved(self, change: Positions) -> Positions:
        """These, with what changed."""
        if not len(change.pids):
            return self
        stay = ~np.isin(self.pids, change.pids)
        pids = np.concatenate([self.pids[stay], change.pids])
        seqs = np.concatenate([self.seqs[stay], change.seqs])
        order = np.argsort(pids, kind="stable")
        return Positions(pids[order], seqs[order])

    def since(self, earlier: Positions) -> Positions:
        """What is further here than there."""
        further = self.seqs > earlier.at(self.pids)
        return Positions(self.pids[further], self.seqs[further])

    def encoded(self) -> bytes:
        """Differences of the ascending partition numbers, then the positions: both compress well."""
        steps = np.diff(self.pids, prepend=np.int64(0))
        return zlib.compress(steps.astype("<i8").tobytes() + self.seqs.astype("<i8").tobytes(), 1)

    @staticmethod
    def decoded(text: bytes) -> Positions:
        numbers = np.frombuffer(zlib.decompress(text), dtype="<i8").astype(np.int64)
        half = len(numbers) // 2
        return Positions(np.cumsum(numbers[:half]), numbers[half:])


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """One stored state of a stream."""

    number: int
    positions: Positions
    messages: int
    depth: int
    """How many epochs its positions are made of."""
    lineage: int
    """The first epoch of the stream."""

    @property
    def offset(self) -> dict[str, int]:
        """What Spark writes down."""
        return {"epoch": self.number, "position": self.messages}


@dataclass(frozen=True, slots=True)
class Moment:
    """When and of what a plan was made."""

    at: str
    snapshot: str


def look(cursor: dbapi.Cursor) -> Moment:
    """The moment that the rest of this transaction sees."""
    cursor.execute(sql.query("spark_snapshot"))
    [(at, snapshot)] = cursor.fetchall()
    return Moment(at.isoformat(), snapshot)


def keep_first(cursor: dbapi.Cursor, positions: Positions, moment: Moment) -> Epoch:
    """Store where a stream begins."""
    number = _keep(cursor, None, True, positions, 0, moment)
    return Epoch(number, positions, 0, 1, number)


def keep_next(cursor: dbapi.Cursor, before: Epoch, change: Positions, messages: int, moment: Moment) -> Epoch:
    """Store a step of a stream: the partitions that moved on, by so many messages in all."""
    after = before.positions.moved(change)
    passed = before.messages + messages
    whole = before.depth >= _WHOLE_EVERY or 2 * len(change.pids) >= len(after.pids)
    number = _keep(cursor, before.number, whole, after if whole else change, passed, moment)
    return Epoch(number, after, passed, 1 if whole else before.depth + 1, before.lineage)


def _keep(
    cursor: dbapi.Cursor, parent: int | None, whole: bool, positions: Positions, messages: int, moment: Moment
) -> int:
    values = (parent, whole, positions.encoded(), messages, moment.at, moment.snapshot)
    cursor.execute(sql.query("spark_keep_positions"), parameters=values)
    [(number,)] = cursor.fetchall()
    if number is None:
        raise _gone(parent)
    return int(number)


def load(cursor: dbapi.Cursor, number: int) -> Epoch:
    """A stored state. Raises NotReady when this database does not have it."""
    cursor.execute(sql.query("spark_positions"), parameters=(number,))
    return _assembled(number, cursor.fetchall())


def _assembled(number: int, rows: Sequence[Sequence[object]]) -> Epoch:
    """From an epoch and those it goes on from, newest first."""
    if not rows or not rows[-1][1]:
        raise _gone(number)
    positions = Positions()
    for _, _, text, _, _ in reversed(rows):
        assert isinstance(text, bytes)
        positions = positions.moved(Positions.decoded(text))
    _, _, _, messages, lineage = rows[0]
    assert isinstance(messages, int)
    assert isinstance(lineage, int)
    return Epoch(number, positions, messages, len(rows), lineage)


def _gone(number: int | None) -> NotReady:
    return NotReady(
        f"the positions of epoch {number} are not in this database: the checkpoint belongs to another one, is older "
        f"than the last {KEPT} batches, or was not used for 30 days. Start the query with a new checkpoint"
    )


def release_holds(url: str, epoch: int, holder: str) -> None:
    """Let retention have what the batch that ended at this epoch, and all before it, contain. Only for epochs whose
    batch is committed."""
    from ..storage import holds

    async def work(connection: asyncpg.Connection) -> None:
        rows = await connection.fetch(sql.query("spark_positions"), epoch)
        state = _assembled(epoch, [tuple(row) for row in rows]).positions
        archived = await connection.fetch(
            sql.query("spark_archived_to"), epoch, holder, state.pids.tolist(), state.seqs.tolist()
        )
        for row in archived:
            await holds.advance(connection, row["queue"], holder, row["archived_to"])

    call(url, work)


def publish(url: str, group: str, change: Positions) -> None:
    """Show the progress of a stream as that of a consumer group."""

    async def work(connection: asyncpg.Connection) -> None:
        pids, seqs = change.pids.tolist(), change.seqs.tolist()
        for row in await connection.fetch(sql.query("spark_unregistered"), group, pids):
            await connection.fetch(sql.query("register_group"), row["name"], group, "all", None)
        await connection.fetchval(sql.query("spark_publish_progress"), group, pids, seqs)

    if len(change.pids):
        call(url, work)


def looked(cursor: dbapi.Cursor, epoch: int, moment: Moment | None = None) -> None:
    """Note up to when a stream that stays at or behind this epoch has looked for what it lost: up to a moment, else up
    to when the epoch was chosen. This keeps the stream from being forgotten, too."""
    cursor.execute(sql.query("spark_touch_positions"), parameters=(epoch, moment and moment.at))


def drop_first(cursor: dbapi.Cursor, epoch: int) -> None:
    """Remove where a stream did not begin after all."""
    cursor.execute(sql.query("spark_drop_first"), parameters=(epoch,))


def forget(cursor: dbapi.Cursor, epoch: int) -> None:
    """Remove what no restart can ask for."""
    cursor.execute(sql.query("spark_forget_positions"), parameters=(epoch, KEPT))
    cursor.fetchall()


def list_text(values: Ints) -> str:
    return array(values.tolist())
