"""The Starlette application: every route, also the hot ones."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..engine.broker import Broker
from .limits import Limits


def build(broker: Broker, limits: Limits) -> Starlette:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    return Starlette(routes=[Route("/health", health)])
