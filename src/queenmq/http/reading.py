"""Requests from a client's bytes: the parser's callbacks, and the limits that hold while a request is being read.

The parser cannot be stopped between two requests, so it is given little at a time: a slice, and with it only the rest
of a body whose length is known. That bounds how many requests are parsed ahead of the one being answered, and how far
headers can exceed their limit.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

import httptools

from .answer import Answer
from .errors import answer_for
from .guard import Guard
from .heads import CONTINUE
from .refusals import Refused, bad_request, headers_too_large
from .request import Headers, Request
from .service import Service

_SLICE = 4096
_SLICES_AT_ONCE = 8
_MUCH = 64 * 1024

NOTHING, HEAD, BODY = range(3)


class Reading(asyncio.Protocol, ABC):
    """The half of a connection that reads. The other half says what becomes of a complete request."""

    __slots__ = (
        "_deaf",
        "_headers",
        "_held",
        "_parser",
        "_quiet",
        "_reading",
        "_request",
        "_service",
        "_since",
        "_transport",
    )

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request = None  # type: ignore[assignment]
        self._headers: Headers = None  # type: ignore[assignment]
        self._reading = NOTHING
        self._quiet = 0
        """Bytes in the slices since the one in which the request began or the last piece of its body came: headers, or
        trailers."""
        self._since = 0.0
        """When the client began to do what it does now, or to do nothing."""
        self._held = b""
        """Not parsed yet."""
        self._deaf = False
        """What comes now is thrown away."""

    # The other half

    @abstractmethod
    def _must_wait(self) -> bool:
        """Is something before the next request?"""

    @abstractmethod
    def _admit(self, request: Request, guard: Guard) -> None:
        """Raises when the request's body must not come."""

    @abstractmethod
    def _accept(self, request: Request) -> None: ...

    @abstractmethod
    def _refuse(self, answer: Answer) -> None: ...

    @abstractmethod
    def _hold(self, data: bytes) -> None: ...

    @abstractmethod
    def _read_on_later(self) -> None:
        """Read no more before every other connection has had its turn."""

    @abstractmethod
    def _let_others(self) -> None:
        """Parse on when every other connection has had its turn."""

    # From bytes to the parser

    def data_received(self, data: bytes) -> None:
        if len(data) >= _MUCH:
            # More is probably there. The loop would go on with this connection for a long time.
            self._read_on_later()
        if self._deaf:
            return
        if self._held or self._must_wait():
            self._hold(data)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Parse until a request has to wait for another, or other connections for this one; keep the rest."""
        start, size, slices = 0, len(data), 0
        while start < size:
            end = min(size, start + self._slice())
            self._quiet += end - start
            start += self._parse(data if end - start == size else memoryview(data)[start:end])
            if self._deaf:
                return
            slices += 1
            if start < size and (self._must_wait() or slices == _SLICES_AT_ONCE):
                self._hold(data[start:])
                if not self._must_wait():
                    self._let_others()
                return

    def _slice(self) -> int:
        if self._reading != BODY or self._request.length is None:
            return _SLICE
        return _SLICE + self._request.length - self._request.read

    def _parse(self, piece: bytes | memoryview) -> int:
        """How much of it was parsed."""
        try:
            self._parser.feed_data(piece)
            if self._reading and self._quiet > self._service.limits.max_header_bytes:
                raise headers_too_large(self._service.limits.max_header_bytes)
            return len(piece)
        except httptools.HttpParserUpgrade as upgrade:
            parsed = int(upgrade.args[0])
        except httptools.HttpParserError as error:
            self._refuse_unparsed(error)
            return len(piece)
        except Refused as refused:
            self._refuse(refused.answer)
            return len(piece)
        # Not above, where this exception would stand as the cause of others.
        self._decline_upgrade()
        return parsed

    def _refuse_unparsed(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if isinstance(error, httptools.HttpParserCallbackError) and cause is not None:
            self._refuse_because(cause)
        else:
            self._refuse(bad_request(f"This is not an HTTP request: {error}.").answer)

    def _refuse_because(self, cause: BaseException) -> None:
        self._refuse(cause.answer if isinstance(cause, Refused) else answer_for(cause))

    def _decline_upgrade(self) -> None:
        """Read the request once more, as a plain one. The parser has not looked at its body."""
        request = self._request
        if request.method == b"CONNECT":
            self._refuse(bad_request("CONNECT is not possible here.").answer)
        else:
            self._parser = httptools.HttpRequestParser(self)
            self._parse(request.without_upgrade())

    # From the parser

    def on_message_begin(self) -> None:
        self._request = request = Request()
        self._headers = request.headers
        self._reading = HEAD
        self._quiet = 0
        self._since = self._service.now

    def on_url(self, url: bytes) -> None:
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, request, limits = self._parser, self._request, self._service.limits
        request.method = parser.get_method()
        request.version = parser.get_http_version()
        if parser.should_upgrade():
            return
        if self._quiet + _SLICE > limits.max_header_bytes:
            request.check_size(limits.max_header_bytes)
        request.keep_alive = parser.should_keep_alive()
        request.check_head(limits)
        request.room = self._service.room
        if request.length != 0 and self._service.guard is not None:
            self._admit(request, self._service.guard)
        self._reading = BODY
        self._since = self._service.now
        if request.expects_continue and not self._must_wait():
            self._ask_for_body()

    def _ask_for_body(self) -> None:
        self._request.expects_continue = False
        self._transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        self._request.add(body)

    def on_message_complete(self) -> None:
        if self._deaf or self._parser.should_upgrade():
            return
        request = self._request
        self._reading = NOTHING
        self._accept(request)
        if not request.keep_alive:
            self._deaf = True
