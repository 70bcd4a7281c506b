"""A TCP port in front of PostgreSQL's Unix socket, open while it is entered."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import parse_qs, urlsplit


class Relay:
    """Listens on `port` of localhost."""

    def __init__(self, dsn: str, port: int) -> None:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._port = port
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self.dsn = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse new connections and cut those there are."""
        assert self._server is not None
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_unix_connection(self._socket)
        for source, target in ((reader, their_writer), (their_reader, writer)):
            pipe = asyncio.ensure_future(_pump(source, target))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
    finally:
        target.close()
