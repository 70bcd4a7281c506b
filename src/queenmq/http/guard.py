"""Who may send a body. That is decided when a request's headers are there: what a stranger sends is not read.

The routes of the application ask again, which costs one look into the authenticator's memory: this is about what a
worker reads, that is about what it does. A request that needs no token can have a small body only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.routing import compile_path

from .auth import Level, require
from .caller import Caller
from .request import Request
from .routes.table import ROUTES, Row

MOST_OF_A_STRANGER: Final = 64 * 1024
"""Bytes that are kept of a request while nobody is known to be responsible for it."""


class Guard:
    """`authenticate` gets the value of the Authorization header and returns who that is, or raises. It may raise
    NeedsSlowPath: then `slowly` is asked, which can wait."""

    def __init__(
        self,
        authenticate: Callable[[bytes | None], Caller],
        slowly: Callable[[bytes | None], Awaitable[Caller]] | None = None,
        table: Sequence[Row] = ROUTES,
    ) -> None:
        self._authenticate = authenticate
        self._slowly = slowly or self._at_once
        paths: dict[str, dict[bytes, Level]] = {}
        for row in table:
            paths.setdefault(row.path, {})[row.method.encode()] = row.level
        self._levels = [(compile_path(path)[0], levels) for path, levels in paths.items()]

    async def _at_once(self, authorization: bytes | None) -> Caller:
        return self._authenticate(authorization)

    def caller(self, request: Request) -> Caller:
        """Of a request for messages. Raises what `admit` does."""
        caller = self._authenticate(request.authorization)
        require(caller, "RW")
        return caller

    def admit(self, request: Request) -> None:
        """Let the body come. Raises an AuthError, or NeedsSlowPath when `admit_slowly` has to be asked."""
        level = self._level(request)
        if level == "P":
            request.limit_body(MOST_OF_A_STRANGER)
        else:
            caller = self._authenticate(request.authorization)
            require(caller, level)
            request.caller = caller

    async def admit_slowly(self, request: Request) -> None:
        caller = await self._slowly(request.authorization)
        require(caller, self._level(request))
        request.caller = caller
        request.undecided = False

    def _level(self, request: Request) -> Level:
        """P for what is no route: its answer is for everybody too."""
        path = request.target()[0].decode("latin-1")
        for pattern, levels in self._levels:
            if pattern.match(path):
                return levels.get(request.method, "P")
        return "P"
