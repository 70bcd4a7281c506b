"""The Starlette application: every route, also the hot ones.

Routes are matched against the path as it was sent, so that an encoded slash belongs to a name; parameters are decoded
afterwards. One place checks who is calling and turns errors into answers. What every answer has, and the answer to
OPTIONS, comes from the protocol.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..engine.broker import Broker
from .answer import Answer, Work
from .auth import require
from .caller import ANYONE, Caller
from .errors import MethodNotAllowed, NotFound, answer_for
from .handlers import Handlers
from .limits import Limits
from .routes.context import Call, Context
from .routes.table import ROUTES, Row

Authenticate = Callable[[bytes | None], Caller | Awaitable[Caller]]
"""From the Authorization header to the caller; raises an AuthError."""


def build(
    broker: Broker,
    limits: Limits,
    *,
    handlers: Handlers | None = None,
    authenticate: Authenticate | None = None,
    endpoint_stats: Callable[[], Mapping[str, Any]] = dict,
    draining: Callable[[], bool] = lambda: False,
    worker_id: int = 0,
    table: Sequence[Row] = ROUTES,
) -> ASGIApp:
    """`handlers` are shared with the protocol when it has them already."""
    hot = handlers or Handlers(broker, limits)
    context = Context(broker, limits, hot, worker_id, endpoint_stats, draining)
    paths: dict[str, dict[str, Row]] = {}
    for row in table:
        methods = paths.setdefault(row.path, {})
        methods[row.method] = row
        if row.head:
            methods["HEAD"] = row
    routes = [Route(path, _Endpoint(methods, context, authenticate)) for path, methods in paths.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _unknown})
    app.router.redirect_slashes = False
    return _by_raw_path(app)


class _Endpoint:
    """One path: from the method to its row, from the caller to permission, from whatever happens to an answer."""

    def __init__(self, methods: Mapping[str, Row], context: Context, authenticate: Authenticate | None) -> None:
        self._methods = methods
        self._context = context
        self._authenticate = authenticate
        self._allow = ", ".join(sorted([*methods, "OPTIONS"])).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            answer = answer_for(error)
        work: Work | None = getattr(request.state, "work", None)
        if work is None:
            await _response(answer)(scope, receive, send)
            return
        sent = False
        try:
            await _response(answer)(scope, receive, send)
            sent = not getattr(request.state, "lost", _never)()
        finally:
            if sent:
                work.delivered()
            else:
                work.undelivered()

    async def _answer(self, request: Request) -> Answer:
        row = self._methods.get(request.method)
        if row is None:
            message = f"{request.method} is not possible here; the header Allow says what is"
            raise MethodNotAllowed(message, headers=[(b"Allow", self._allow)])
        caller = await self._caller(request, row)
        return await row.handler(self._context, Call(request, caller, self._context.limits))

    async def _caller(self, request: Request, row: Row) -> Caller:
        """Public routes ask nobody: a bad token must not make a health check fail."""
        if self._authenticate is None or row.level == "P":
            return ANYONE
        given = request.headers.getlist("authorization")
        found = self._authenticate(", ".join(given).encode("latin-1") if given else None)
        caller = await found if inspect.isawaitable(found) else found
        require(caller, row.level)
        return caller


def _by_raw_path(app: ASGIApp) -> ASGIApp:
    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "path": scope["raw_path"].decode("latin-1")}, receive, send)

    return routed


async def _unknown(request: Request, error: Exception) -> Response:
    """No route matches: the only error that does not come from one of ours."""
    return _response(answer_for(NotFound(f"There is no route {_shown(request.scope['path'])}")))


def _shown(path: str) -> str:
    return path if len(path) <= 100 else path[:97] + "..."


def _response(answer: Answer) -> Response:
    response = Response(answer.body, answer.status, media_type="application/json" if answer.body else None)
    response.raw_headers += [(name.lower(), value) for name, value in answer.headers]
    return response


def _never() -> bool:
    return False
