"""Who comes first, where a store cannot tell: object stores let two writers put the same name, and the later one wins.

An archive always has PostgreSQL, so that decides. One row for each lake holds the newest entry of its manifest, content
and all. It is replaced by the next one, and whoever was faster has the number. A claimed entry is written to the store
by its owner, or by the next who wants that number: so nobody waits for one that died, and one that wakes up late writes
what is there already. Nobody claims a number without having seen the entry before it in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from ...storage import system_state
from ..connecting import call

if TYPE_CHECKING:
    import asyncpg

    from ...storage.system_state import Json

_KEY: Final = "lake:"


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a file has to contain, and whether the one who asked has decided that."""

    content: bytes
    mine: bool


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of all lakes that are archived from one database."""

    database_url: str = field(repr=False)

    def claim(self, lake: str, path: str, content: bytes, is_there: Callable[[], bool]) -> Claimed | None:
        """The claim on a path, paths being claimed in ascending order. None when it is written and others follow it."""
        wanted: Json = {"path": path, "content": content.decode()}

        async def work(connection: asyncpg.Connection) -> Claimed | None:
            while True:
                known = cast(dict[str, str] | None, await system_state.get(connection, _KEY + lake))
                if known is not None and known["path"] == path:
                    return Claimed(known["content"].encode(), mine=False)
                # After the look at the claim: a later one was made by somebody who has seen this file.
                if is_there():
                    return None
                if await system_state.swap(connection, _KEY + lake, cast("Json", known), wanted):
                    return Claimed(content, mine=True)

        return call(self.database_url, work)
