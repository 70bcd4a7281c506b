"""What the bodies that are being read may take together, over all connections of a worker.

Only large bodies are counted; of small ones each connection holds one at most. A share goes back when its request lets
go of the body, however that comes about.
"""

from __future__ import annotations

from typing import Final

from .refusals import no_room

COUNTED_FROM: Final = 64 * 1024


class Room:
    def __init__(self, size: int) -> None:
        self._size = size
        self.used = 0

    def take(self, size: int) -> None:
        """Raises Refused when there is not as much left. A body that is alone always finds room."""
        if self.used and self.used + size > self._size:
            raise no_room()
        self.used += size

    def give(self, size: int) -> None:
        self.used -= size


class Share:
    """The part of the room that one body takes."""

    __slots__ = ("_room", "_size")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def grow(self, size: int) -> None:
        self._room.take(size)
        self._size += size

    def __del__(self) -> None:
        self._room.give(self._size)
