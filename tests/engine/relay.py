"""PostgreSQL behind a relay that loses a reply, or everything, when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import parse_qs, urlsplit


class Relay:
    """Listens on a port of localhost and passes bytes on to PostgreSQL's socket.

    `lose_replies(n)`: the next n times PostgreSQL answers a statement, the answer is thrown away and the connection
    closed. PostgreSQL has committed by then: it answers after it has.
    """

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        query = parse_qs(self._parts.query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._to_lose = 0
        self._refuses = False
        self.lost = 0
        self.dsn = ""

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.dsn = f"postgresql://{self._parts.username}@127.0.0.1:{port}{self._parts.path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()

    def lose_replies(self, count: int) -> None:
        self._to_lose = count

    async def cut(self) -> None:
        """End every connection."""
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def down(self) -> None:
        """PostgreSQL is away until `up`."""
        self._refuses = True
        await self.cut()

    def up(self) -> None:
        self._refuses = False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        link = asyncio.ensure_future(self._link(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        link.add_done_callback(lambda _: writer.transport.abort())  # also when it is cancelled before it begins

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(self._socket)
        asked = asyncio.Event()
        pumps = [
            asyncio.ensure_future(self._ask(reader, ours, asked)),
            asyncio.ensure_future(self._answer(theirs, writer, asked)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            ours.transport.abort()

    async def _ask(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                if data[:1] == b"B":  # Bind: a statement with its values, not a preparation
                    asked.set()
                target.write(data)
                await target.drain()

    async def _answer(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                if asked.is_set() and self._to_lose:
                    self._to_lose -= 1
                    self.lost += 1
                    return
                asked.clear()
                target.write(data)
                await target.drain()
