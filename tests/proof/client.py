"""A client that does what official ones do when a server goes away: connect again and repeat the same request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from typing import Any, NamedTuple

from benchmarks.load import render
from benchmarks.load.connection import Asking, BadAnswer

PATIENCE = 60.0
ATTEMPT = 20.0


class Reply(NamedTuple):
    """`attempts` above 1 say that an earlier attempt may have been carried out as well."""

    status: int
    body: Any
    attempts: int


class Client:
    """One keep-alive connection at a time. Answers of 500 and above are repeated too.

    `forgets`: the part of the answers to a POST that get lost on their way, after the server has done its work.
    """

    def __init__(self, port: int, forgets: float = 0.0, choice: random.Random | None = None) -> None:
        self.repeats = 0
        self.unanswered = 0
        """Attempts that got no answer, so that none knows whether they were carried out."""
        self._forgets = forgets
        self._choice = choice or random.Random()
        self._port = port
        self._host = f"127.0.0.1:{port}"
        self._connection: Asking | None = None

    async def get(self, target: str) -> Reply:
        return await self._call(render.get(self._host, target))

    async def post(self, target: str, body: object) -> Reply:
        request = render.post(self._host, target, json.dumps(body).encode())
        if self._choice.random() < self._forgets:
            lost = await self._call(request)
            self.close()
            reply = await self._call(request)
            return reply._replace(attempts=reply.attempts + lost.attempts)
        return await self._call(request)

    async def delete(self, target: str) -> Reply:
        return await self._call(render.get(self._host, target).replace(b"GET ", b"DELETE ", 1))

    async def leave(self, target: str, after: float) -> Reply | None:
        """Ask on a connection of its own, and close it after so many seconds. None when no answer had come by then."""
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setblocking(False)
            data = b""
            try:
                async with asyncio.timeout(after):
                    await loop.sock_connect(connection, ("127.0.0.1", self._port))
                    await loop.sock_sendall(connection, render.get(self._host, target))
                    data = await loop.sock_recv(connection, 1 << 20)
            except (OSError, TimeoutError):
                pass
            # What has come in the meantime is still read, immediately before the connection is closed.
            with contextlib.suppress(OSError):
                data += connection.recv(1 << 20)
        head, _, body = data.partition(b"\r\n\r\n")
        return Reply(int(head[9:12]), json.loads(body) if body else None, 1) if data else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _call(self, request: bytes) -> Reply:
        attempts = 0
        async with asyncio.timeout(PATIENCE):
            while True:
                attempts += 1
                status, body = await self._attempt(request)
                if status < 500:
                    return Reply(status, json.loads(body) if body else None, attempts)
                self.repeats += 1
                self.close()
                await asyncio.sleep(min(0.05 * attempts, 0.5))

    async def _attempt(self, request: bytes) -> tuple[int, bytes]:
        """Status 599 when there was no answer."""
        try:
            async with asyncio.timeout(ATTEMPT):
                return await (await self._connected()).ask(request)
        except (OSError, BadAnswer, TimeoutError) as error:
            self.unanswered += 1
            return 599, str(error).encode()

    async def _connected(self) -> Asking:
        if self._connection is None or self._connection.transport is None:
            connection = Asking()
            await connection.open(self._port)
            self._connection = connection
        return self._connection
