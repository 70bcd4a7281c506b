"""What a handler gives back: a finished answer, or work under way and how its result becomes one."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Answer(NamedTuple):
    """Status, JSON body (empty for none) and headers besides the usual ones."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Delivery(Protocol):
    """Is told what became of an answer."""

    def takes(self, result: Any) -> bool:
        """Whether what is handed to a client that has left cannot be given back."""

    def delivered(self, result: Any) -> None:
        """It was handed to the connection."""

    def undelivered(self, result: Any) -> None:
        """The client has left before."""


@dataclass(slots=True)
class Work:
    """`answer` is called with the future's result, and `delivery` is told whether the client got it. Cancelling the
    future says that the client has left."""

    future: Future[Any]
    answer: Callable[[Any], Answer]
    delivery: Delivery | None = None

    def give_up(self) -> None:
        """The client has left. If the work is done by now, its result goes back."""
        if not self.future.cancel():
            self.undelivered()

    def takes(self) -> bool:
        """See Delivery."""
        return self.delivery is not None and self._succeeded() and self.delivery.takes(self.future.result())

    def delivered(self) -> None:
        if self.delivery is not None and self._succeeded():
            self.delivery.delivered(self.future.result())

    def undelivered(self) -> None:
        if self.delivery is not None and self._succeeded():
            self.delivery.undelivered(self.future.result())

    def _succeeded(self) -> bool:
        return not self.future.cancelled() and self.future.exception() is None
