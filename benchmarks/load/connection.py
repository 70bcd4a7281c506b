"""One keep-alive connection: a request goes out, its answer is cut out of the bytes, and the next step follows.

No HTTP parser: the generator only has to find where an answer ends. An answer it cannot read, a wrong status or a
closed connection ends the run with an error, so that a broken server never looks fast.
"""

from __future__ import annotations

import asyncio
import re
from time import perf_counter
from typing import cast

_length = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search


class BadAnswer(Exception):
    """The server did something that a client must not accept."""


class Connection(asyncio.Protocol):
    """Give `send` a request; `answered` is called with its answer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.sent = 0.0
        self._data = b""
        self._head = 0
        self._need = 0

    async def open(self, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.lost(exc)

    def send(self, request: bytes) -> None:
        if self.transport is None:
            raise BadAnswer("the server has closed the connection")
        self.sent = perf_counter()
        self.transport.write(request)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        if not self._need:
            self._measure(data)
        if not self._need or len(data) < self._need:
            self._data = data
            return
        head, need = self._head, self._need
        self._data, self._need = b"", 0
        try:
            if len(data) > need:
                raise BadAnswer(f"{len(data) - need} bytes behind an answer: {data[need : need + 80]!r}")
            self.answered(int(data[9:12]), data[head:need])
        except Exception as error:
            self.failed(error)

    def _measure(self, data: bytes) -> None:
        """How long the answer is, as soon as its headers are here."""
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            found = _length(data, 0, end + 2)
            if found is None and data[9:12] != b"204":
                self.failed(BadAnswer(f"an answer without Content-Length: {data[:end]!r}"))
                return
            self._head = end + 4
            self._need = self._head + (int(found[1]) if found else 0)

    def answered(self, status: int, body: bytes) -> None:
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        raise NotImplementedError

    def lost(self, error: Exception | None) -> None:
        raise NotImplementedError


class Asking(Connection):
    """A connection for one who waits: `await ask(request)`."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._waiting = asyncio.get_running_loop().create_future()
        self.send(request)
        return await self._waiting

    async def expect(self, request: bytes, *statuses: int) -> bytes:
        status, body = await self.ask(request)
        if status not in statuses:
            raise BadAnswer(f"status {status}: {body[:300]!r}")
        return body

    def answered(self, status: int, body: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            raise BadAnswer(f"an answer that nobody asked for: {status}")
        self._waiting.set_result((status, body))

    def failed(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def lost(self, error: Exception | None) -> None:
        self.failed(BadAnswer(f"the server has closed the connection: {error}"))
