"""A request that Starlette answers: uvicorn's request-response cycle, with the whole body in hand and our headers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from .answer import Answer
from .errors import answer_for, failure
from .heads import CORS
from .refusals import bad_request
from .request import Headers, Request

if TYPE_CHECKING:
    from uvicorn._types import (
        ASGI3Application,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        HTTPScope,
        Scope,
    )

_log = logging.getLogger(__name__)
_NOT_WITH_204 = (b"content-type", b"content-length")


class AppCycle(RequestResponseCycle):
    """`answered` is called when the answer is written, `count` with its status."""

    def __init__(
        self,
        request: Request,
        transport: asyncio.Transport,
        *,
        keep_alive: bool,
        answered: Callable[[], None],
        count: Callable[[int], None],
    ) -> None:
        super().__init__(
            scope=_scope(request, transport),
            transport=transport,
            flow=FlowControl(transport),
            logger=_log,
            access_logger=_log,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=answered,
        )
        self.body += request.take_body()
        self.more_body = False
        self.message_event.set()
        self._count = count
        self.scope["state"]["lost"] = self._lost

    def _lost(self) -> bool:
        """The client has left before the answer was complete."""
        return self.disconnected

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start" and not self.response_started and not self.disconnected:
            self._count(message["status"])
            headers = _with_usual(message["status"], list(message.get("headers", ())))
            message = cast("ASGISendEvent", {**message, "headers": headers})
        await super().send(message)

    async def run_asgi(self, app: ASGI3Application) -> None:
        async def guarded(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:
                await self._fail(answer_for(error))

        await super().run_asgi(guarded)

    async def send_500_response(self) -> None:
        await self._fail(failure(500, "The server failed to answer; its log says why.", "internal_error"))

    async def _fail(self, answer: Answer) -> None:
        if self.response_started:
            return
        headers: Headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer.body)),
            *answer.headers,
        ]
        await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": answer.body, "more_body": False})

    def client_gone(self) -> None:
        """What the application asks or sends from now on tells it so."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()
        self.flow.resume_writing()


def _with_usual(status: int, headers: Headers) -> Headers:
    given = {name.lower() for name, _ in headers}
    usual = [(name, value) for name, value in CORS if name.lower() not in given]
    if status == 204:
        headers = [header for header in headers if header[0].lower() not in _NOT_WITH_204]
    return headers + usual


def _scope(request: Request, transport: asyncio.Transport) -> HTTPScope:
    raw_path, query = request.target()
    try:
        path = raw_path.decode("ascii")
    except UnicodeDecodeError:
        raise bad_request("The URL is not valid.") from None
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.version,
        "server": get_local_addr(transport),
        "client": get_remote_addr(transport),
        "scheme": "http",
        "method": request.method.decode("ascii"),
        "root_path": "",
        "path": unquote(path),
        "raw_path": raw_path,
        "query_string": query,
        "headers": request.headers,
        "state": {},
    }
    return cast("HTTPScope", scope)
