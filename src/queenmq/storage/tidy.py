"""Keep the small hot tables small.

Every pop and ack writes a new version of its cursor, and because `ready_at` is indexed, only VACUUM can reuse the old
one's place. Autovacuum looks at a table once in a while; here the table is vacuumed after so much work instead, which
costs about a millisecond per thousands of messages and holds the size whatever the pace. Pops, acks and pushes go on
meanwhile.
"""

from __future__ import annotations

from typing import Final

from .. import sql
from .pool import Executor, translated

_LEAST: Final = 500
_SHARE_OF_ROWS: Final = 0.2


class Tidier:
    """Counts the cursor updates of one process and says when the next vacuum is due."""

    def __init__(self) -> None:
        self._updates = 0
        self._due_at = _LEAST

    def note(self, updates: int) -> None:
        """That many cursors were written: one per partition woken, leased or acked."""
        self._updates += updates

    @property
    def due(self) -> bool:
        return self._updates >= self._due_at

    async def run(self, db: Executor) -> None:
        """Vacuum now; a table that somebody else is vacuuming is left to them. Not inside a transaction."""
        self._updates = 0
        async with translated():
            await db.execute(sql.query("vacuum_cursors"))
            rows = await db.fetchval(sql.query("cursor_count"))
        self._due_at = max(_LEAST, int(rows * _SHARE_OF_ROWS))
