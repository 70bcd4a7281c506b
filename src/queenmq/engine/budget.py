"""How much a worker may hold for PostgreSQL. What goes beyond is refused at once, so memory stays bounded."""

from __future__ import annotations

from typing import Final

from .errors import Overloaded

ITEM_BYTES: Final = 256  # what a small item costs


class Budget:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """A request that is larger than everything allowed still passes when nothing else is held."""
        if self.used and self.used + size > self._limit:
            raise Overloaded("the server has more requests waiting than it may hold; send this one again later")
        self.used += size

    def give(self, size: int) -> None:
        self.used -= size
