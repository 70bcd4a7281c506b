"""A small site behind the real protocol, on uvloop in a thread of its own, and a client that speaks in raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from queenmq.http.answer import Answer, Work
from queenmq.http.caller import Caller
from queenmq.http.errors import InvalidField
from queenmq.http.limits import Limits
from queenmq.http.protocol import HotProtocol
from queenmq.http.service import Service

DEADLINE = 10.0
T = TypeVar("T")


def until(condition: Callable[[], object]) -> None:
    """Wait for it, but not for ever."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)


class TinyHandlers:
    """Push echoes, an ack echoes a moment later, a pop waits until the test answers it or says at once what it saw."""

    def __init__(self) -> None:
        self.polls: list[asyncio.Future[bytes | None]] = []
        self.callers: list[Caller] = []
        self.handled = 0

    def push(self, body: bytes, caller: Caller) -> Answer | Work:
        self.handled += 1
        self.callers.append(caller)
        if body == b"raise":
            raise InvalidField("items must be an array", field="items")
        return Answer(201, body)

    def ack(self, body: bytes, caller: Caller) -> Answer | Work:
        self.handled += 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, body)
        return Work(future, lambda result: Answer(200, result))

    def ack_batch(self, body: bytes, caller: Caller) -> Answer | Work:
        self.handled += 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, InvalidField("too late", field="status"))
        return Work(future, lambda result: Answer(200, result))

    def pop(self, path: str, query: bytes, caller: Caller) -> Answer | Work:
        self.handled += 1
        if query.startswith(b"big="):
            return Answer(200, b"x" * int(query[4:]))
        if query == b"headers":
            return Answer(429, b"{}", ((b"Retry-After", b"3"),))
        if query.startswith(b"at-once"):
            return Answer(200, json.dumps([path, query.decode()]).encode())
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.polls.append(future)
        return Work(future, lambda result: Answer(204) if result is None else Answer(200, result))


async def echo(request: Request) -> Response:
    body = await request.body()
    seen = {"method": request.method, "path": request.url.path, "query": request.url.query, "body": body.decode()}
    return JSONResponse({**seen, "headers": [name for name, _ in request.headers.items()]})


async def nothing(request: Request) -> Response:
    return Response(status_code=204, media_type="application/json", headers={"Access-Control-Allow-Origin": "*"})


async def stream(request: Request) -> Response:
    async def pieces() -> Any:
        for _ in range(400):
            yield b"x" * 10_000

    return StreamingResponse(pieces())


class Site:
    """Starts when entered. Everything of the protocol happens in its thread."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        handlers: TinyHandlers | None = None,
        send_buffer: int = 0,
        **options: Any,
    ) -> None:
        self.limits = limits or Limits()
        self.handlers = handlers or TinyHandlers()
        self.slow: list[asyncio.Event] = []
        self.gone = 0
        self._send_buffer = send_buffer
        self._options = options
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(DEADLINE)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.service = Service(self.handlers, self._app(), self.limits, **self._options)
        server = await self.loop.create_server(lambda: HotProtocol(self.service), "127.0.0.1", 0, backlog=1000)
        self.port = server.sockets[0].getsockname()[1]
        if self._send_buffer:
            with socket.socket(fileno=os.dup(server.sockets[0].fileno())) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
        self._started.set()
        await self._stop.wait()
        server.close()
        for future in self.handlers.polls:
            future.cancel()
        for event in self.slow:
            event.set()
        await asyncio.wait_for(self.service.drain(), DEADLINE)

    def _app(self) -> ASGIApp:
        async def slow(request: Request) -> Response:
            await request.body()
            event = asyncio.Event()
            self.slow.append(event)
            released = asyncio.ensure_future(event.wait())
            gone = asyncio.ensure_future(request.receive())
            await asyncio.wait([released, gone], return_when=asyncio.FIRST_COMPLETED)
            self.gone += not event.is_set()
            for future in (released, gone):
                future.cancel()
            return JSONResponse({"slow": True})

        hot = ["/api/v1/push", "/api/v1/pop", "/api/v1/pop/{rest:path}"]
        app = Starlette(
            routes=[
                Route("/echo/{rest:path}", echo, methods=["GET", "POST", "PUT", "DELETE"]),
                *[Route(path, echo, methods=["GET", "POST"]) for path in hot],
                Route("/nothing", nothing),
                Route("/stream", stream),
                Route("/slow", slow),
            ]
        )

        async def with_bugs(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/bug/late":
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
            if scope["path"].startswith("/bug"):
                raise RuntimeError(scope["query_string"])
            if scope["path"] != "/silence":
                await app(scope, receive, send)

        return with_bugs

    def call(self, work: Callable[[], T]) -> T:
        """Do it in the site's thread."""

        async def inside() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(inside(), self.loop).result(DEADLINE)

    def stats(self) -> dict[str, Any]:
        return self.call(self.service.stats)

    def body_read(self) -> int:
        """Bytes that have come of the request that a client is sending."""
        requests = [getattr(connection, "_request", None) for connection in list(self.service.connections)]
        return sum(request.read for request in requests if request is not None)

    def reading(self) -> list[int]:
        """What each connection is in the middle of."""
        return self.call(lambda: [each._reading for each in self.service.connections])  # type: ignore[attr-defined]

    def drain(self) -> Any:
        return asyncio.run_coroutine_threadsafe(self.service.drain(), self.loop)

    def parked(self, count: int) -> None:
        """Wait until so many requests are under way."""
        until(lambda: self.stats()["parked"] == count)

    def answer_poll(self, number: int, result: bytes | None) -> None:
        self.call(lambda: self.handlers.polls[number].set_result(result))

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[Client]:
        client = Client(self.port, **options)
        try:
            yield client
        finally:
            client.socket.close()

    def exchange(self, data: bytes) -> Reply:
        with self.client() as client:
            client.send(data)
            return client.reply()


@contextlib.contextmanager
def held_up(site: Site) -> Iterator[None]:
    """Keep the site's thread busy, so that it finds everything sent meanwhile at once."""
    began, go = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        go.wait(DEADLINE)

    site.loop.call_soon_threadsafe(wait)
    assert began.wait(DEADLINE)
    try:
        yield
    finally:
        go.set()


class Reply:
    """One answer as it came."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        assert len(self.headers) == len(headers), "a header came twice"
        self.body = body

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)
        assert set(error) == {"error", "code", "field"}
        return error

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:200]!r}"


class Client:
    def __init__(self, port: int, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(("127.0.0.1", port))
        self._read = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _more(self) -> bool:
        data = self.socket.recv(1 << 20)
        self._read += data
        return bool(data)

    def reply(self, *, head: bool = False) -> Reply:
        """The next answer, also an interim one. `head`: to a HEAD, so without its body."""
        while b"\r\n\r\n" not in self._read:
            assert self._more(), f"closed in the middle of {self._read!r}"
        start, _, self._read = self._read.partition(b"\r\n\r\n")
        line, *lines = start.decode().split("\r\n")
        headers = [(name, value) for name, _, value in (text.partition(": ") for text in lines)]
        status = int(line.split(" ")[1])
        assert line.startswith("HTTP/1.1 ")
        length = 0 if head else int({name.lower(): value for name, value in headers}.get("content-length", 0))
        while len(self._read) < length:
            assert self._more(), "closed in the middle of a body"
        body, self._read = self._read[:length], self._read[length:]
        return Reply(status, headers, body)

    def replies(self, count: int) -> list[Reply]:
        return [self.reply() for _ in range(count)]

    def answers(self, count: int) -> list[Reply]:
        """Replies without those that say that one is being worked on."""
        return [next(reply for reply in iter(self.reply, None) if reply.status != 100) for _ in range(count)]

    def rest(self) -> bytes:
        """Everything until the server closes."""
        with contextlib.suppress(ConnectionError):
            while self._more():
                pass
        rest, self._read = self._read, b""
        return rest

    def is_closed(self) -> bool:
        """Wait for the server to close, without another byte."""
        return self.rest() == b""


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: queen", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: queen", *headers, "", ""]).encode()


def chunked(path: str, *chunks: bytes, headers: tuple[str, ...] = (), end: bytes = b"0\r\n\r\n") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: queen", *headers, "Transfer-Encoding: chunked", "", ""]
    return "\r\n".join(lines).encode() + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end
