"""What a handler gives back: a finished answer, or work under way and how its result becomes one."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """Status, JSON body (empty for none) and headers besides the usual ones."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True)
class Work:
    """`answer` is called with the future's result. Cancelling the future says that the client has left."""

    future: Future[Any]
    answer: Callable[[Any], Answer]
