"""Everything a worker needs to speak HTTP on connections that it is given."""

from __future__ import annotations

import asyncio

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ..engine.broker import Broker
from .app import build
from .limits import Limits


class Endpoint:
    """One per worker. Make it inside the running event loop."""

    def __init__(self, broker: Broker, limits: Limits) -> None:
        self._state = ServerState()
        self._config = Config(
            build(broker, limits), ws="none", lifespan="off", access_log=False, log_config=None, server_header=False
        )
        self._config.load()

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one accepted connection."""
        return HttpToolsProtocol(config=self._config, server_state=self._state, app_state={})

    async def drain(self) -> None:
        """Take no further request, finish those under way, close every connection."""
        for connection in list(self._state.connections):
            connection.shutdown()
        while self._state.connections:
            await asyncio.sleep(0.01)
