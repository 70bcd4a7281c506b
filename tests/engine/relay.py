"""PostgreSQL behind a relay that loses a reply, or everything, when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import parse_qs, urlsplit


class Relay:
    """Listens on a port of localhost and passes bytes on to PostgreSQL's socket.

    `lose_replies(n, after)`: the next n times PostgreSQL answers a statement, but for the first `after` times, the
    answer is thrown away and the connection closed. PostgreSQL has committed by then: it answers after it has.
    `hold_statement()`: the next statement stays under way until `pass_on`, and its connection is closed.
    `fall_silent()`: connections stay open, and nothing passes through them any more.
    """

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        query = parse_qs(self._parts.query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._to_lose = self._to_keep = 0
        self._refuses = False
        self._holds = False
        self._held: tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._silent: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.lost = 0
        self.accepted = 0
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

    def lose_replies(self, count: int, after: int = 0) -> None:
        self._to_lose = count
        self._to_keep = after

    def hold_statement(self) -> None:
        self._holds = True

    async def pass_on(self) -> None:
        """PostgreSQL gets the statement that was held, and carries it out."""
        assert self._held is not None, "no statement was held"
        data, theirs, ours = self._held
        ours.write(data)
        async with asyncio.timeout(20):
            await theirs.read(1)
        ours.transport.abort()

    def fall_silent(self) -> None:
        self._silent |= self._writers

    def refuse(self) -> None:
        """Let nobody in until `up`; who is in stays."""
        self._refuses = True

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
        self.accepted += 1
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
        self._writers.add(writer)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(writer)
            for pump in pumps:
                pump.cancel()
            held = None if pumps[0].cancelled() or not pumps[0].done() else pumps[0].result()
            if held is None:
                ours.transport.abort()
            else:
                await asyncio.gather(*pumps, return_exceptions=True)
                self._held = (held, theirs, ours)

    async def _ask(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asked: asyncio.Event
    ) -> bytes | None:
        """Returns a statement that is to be held."""
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                if data[:1] == b"B":  # Bind: a statement with its values, not a preparation
                    asked.set()
                    if self._holds:
                        self._holds = False
                        return data
                target.write(data)
                await target.drain()
        return None

    async def _answer(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                if asked.is_set() and self._to_keep:
                    self._to_keep -= 1
                elif asked.is_set() and self._to_lose:
                    self._to_lose -= 1
                    self.lost += 1
                    return
                asked.clear()
                if target in self._silent:
                    continue
                target.write(data)
                await target.drain()
