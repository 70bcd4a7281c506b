"""Everything a worker needs to speak HTTP on connections that it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..engine.broker import Broker
from .app import build
from .caller import Caller
from .guard import Guard
from .handlers import Handlers
from .limits import Limits
from .protocol import HotProtocol
from .service import Service


class Endpoint:
    """One per worker. Make it inside the running event loop.

    `authenticate` gets the value of the Authorization header and returns who that is, or raises; None lets everybody do
    everything. It may raise NeedsSlowPath: then `authenticate_slowly` is asked, which can wait.
    """

    def __init__(
        self,
        broker: Broker,
        limits: Limits,
        *,
        authenticate: Callable[[bytes | None], Caller] | None = None,
        authenticate_slowly: Callable[[bytes | None], Awaitable[Caller]] | None = None,
        worker_id: int = 0,
    ) -> None:
        handlers = Handlers(broker, limits)
        app = build(
            broker,
            limits,
            handlers=handlers,
            authenticate=authenticate_slowly or authenticate,
            endpoint_stats=self.stats,
            draining=lambda: self._service.draining,
            worker_id=worker_id,
        )
        guard = None if authenticate is None else Guard(authenticate, authenticate_slowly)
        self._service = Service(handlers, app, limits, guard)

    @property
    def connections(self) -> int:
        return len(self._service.connections)

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one accepted connection."""
        return HotProtocol(self._service)

    def stats(self) -> dict[str, Any]:
        """Open connections, requests under way, and what was answered so far."""
        return self._service.stats()

    async def drain(self) -> None:
        """Take no further request, finish those under way, close every connection."""
        await self._service.drain()
