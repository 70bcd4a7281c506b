"""What every route gets: the worker's parts, and the request with its address and body already read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from ...engine.broker import Broker
from ..answer import Answer, Work
from ..caller import Caller
from ..errors import BodyTooLarge
from ..handlers import Handlers
from ..limits import Limits
from ..parse.text import segment


@dataclass(slots=True)
class Context:
    """One per worker."""

    broker: Broker
    limits: Limits
    handlers: Handlers
    worker_id: int = 0
    endpoint_stats: Callable[[], Mapping[str, Any]] = dict
    draining: Callable[[], bool] = lambda: False
    asking: asyncio.Task[str | None] | None = None
    """What the database was last asked for /ready."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a route."""

    request: Request
    caller: Caller
    limits: Limits

    def param(self, name: str) -> str:
        """A parameter of the path."""
        return segment(name, self.request.path_params[name])

    @property
    def raw_path(self) -> str:
        """The path as it was sent, one character per byte."""
        return str(self.request.scope["path"])

    @property
    def query(self) -> bytes:
        return bytes(self.request.scope["query_string"])

    async def body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in self.request.stream():
            size += len(part)
            if size > self.limits.max_body_bytes:
                raise BodyTooLarge(f"The request body is larger than {self.limits.max_body_bytes} bytes.")
            parts.append(part)
        return b"".join(parts)

    async def finished(self, work: Answer | Work) -> Answer:
        """The answer, once the work is done: also when the client has left, because it was asked for."""
        if isinstance(work, Answer):
            return work
        return work.answer(await work.future)

    async def finished_if_wanted(self, work: Answer | Work) -> Answer:
        """The same, but when the client leaves before, the work is cancelled."""
        if isinstance(work, Answer):
            return work
        gone = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((work.future, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.future.done():
                answer = work.answer(work.future.result())
                self.request.state.work = work
                return answer
            return Answer(204)
        finally:
            gone.cancel()
            if getattr(self.request.state, "work", None) is None:
                work.give_up()

    async def _gone(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
