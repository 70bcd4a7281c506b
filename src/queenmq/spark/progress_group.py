"""The consumer group under which a stream shows its progress. Nothing else may consume in it: showing progress moves
the group's cursors and ends its leases, so a consumer would miss the messages that the stream has read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .. import sql
from . import positions
from .errors import OptionError
from .positions import Positions

if TYPE_CHECKING:
    from adbc_driver_postgresql import dbapi

log = logging.getLogger("queenmq.spark")
_HARM = "the stream moves the cursors of this group, so its consumers miss messages"


class ProgressGroup:
    """What one running stream shows. `check` comes before the first `show`."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self.name = name
        self._shown = Positions()
        self._left_at: Positions | None = None
        self._warned = False

    @property
    def checked(self) -> bool:
        return self._left_at is not None

    def check(self, cursor: dbapi.Cursor, everywhere: Positions, start: Positions) -> None:
        """Refuse a group whose consumers hold leases; warn of one whose cursors moved a short while ago and are further
        than the stream. `everywhere`: the stream's position in all partitions, also in those where it is 0."""
        for queue, leased, moved in _beside(cursor, self.name, everywhere):
            if leased:
                raise OptionError(
                    "consumerGroup",
                    self.name,
                    f"a group without consumers, and consumers hold leases on {leased} partitions of queue {queue!r}",
                )
            if moved:
                self._warn(queue)
        self._left_at = start

    def show(self, cursor: dbapi.Cursor, reached: Positions) -> None:
        """Move the cursors to where the stream is, and warn once when something else has moved them."""
        change = reached.since(self._shown)
        if self._left_at is not None and not self._warned and len(change.pids):
            known = Positions(change.pids, self._left_at.at(change.pids))
            for queue, _, _ in _beside(cursor, self.name, known):
                self._warn(queue)
        positions.publish(self._url, self.name, change)
        self._shown, self._left_at = reached, reached

    def _warn(self, queue: str) -> None:
        if not self._warned:
            log.warning(
                "consumer group %r of queue %r has other consumers: %s; give the stream a consumerGroup of its own",
                self.name,
                queue,
                _HARM,
            )
        self._warned = True


def _beside(cursor: dbapi.Cursor, group: str, known: Positions) -> list[tuple[str, int, int]]:
    """Queues with consumers beside the stream: how many cursors are leased, and how many were moved."""
    pids, seqs = positions.list_text(known.pids), positions.list_text(known.seqs)
    cursor.execute(sql.query("spark_group_consumers"), parameters=(group, pids, seqs))
    return [(queue, leased, moved) for queue, leased, moved in cursor.fetchall() if leased or moved]
