"""The servers that share a database, and their sessions.

A session is a number that only rises from one start of a server to the next, and the database gives it out: so
everybody can tell what a server says from what it said before it was restarted, whatever clocks do.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from .. import sql
from .pool import Executor, translated, undisturbed


class Session(NamedTuple):
    """`now_ms`: the database's clock when the session began. `floors`: the last known session of every other server;
    what it says in an earlier one is out of date."""

    session: int
    now_ms: int
    floors: dict[str, int]


async def begin_session(db: Executor, server_id: str) -> Session:
    """A server starts."""
    async with translated():
        begun = await undisturbed(partial(db.fetchrow, sql.query("begin_session"), server_id))
        rows = await db.fetch(sql.query("server_sessions"))
    floors = {row["server_id"]: row["session"] for row in rows if row["server_id"] != server_id}
    return Session(begun["session"], begun["now_ms"], floors)
