"""Every refusal and failure as an answer: status, machine code, sentence, and the field it is about.

What a request asks for wrongly:

RequestError
├── InvalidField       400: a field is missing or not what it may be
├── InvalidJson        400: the body is not JSON
├── NotFound           404: no such route or thing
├── MethodNotAllowed   405: the route exists, not for this method
└── BodyTooLarge       413

InvalidValue (a rule for names and payloads) is a 400 too; errors of the engine, of storage and of encryption keep their
codes. Anything else is ours: it is logged, and the client is told nothing but that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ..domain.cipher import CipherError, EncryptionUnavailable
from ..engine.errors import EngineError, Overloaded, Stopping
from ..storage.errors import (
    AckRefused,
    DatabaseUnavailable,
    LeaseNotHeld,
    MessageNeeded,
    MessageNotFound,
    QueueFull,
    StorageError,
)
from ..wire.names import InvalidValue
from .answer import Answer
from .auth import AuthError

RETRY_AFTER: Final = 1
"""Seconds after which a client may try again that was turned away for no fault of its own."""

_log: Final = logging.getLogger("queenmq.http")
_encode: Final = msgspec.json.Encoder().encode

_CONFLICTS: Final = (LeaseNotHeld, AckRefused, MessageNeeded)


class RequestError(Exception):
    """A request that cannot be done as it was sent."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, field: str | None = None, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.headers = tuple(headers)


class InvalidField(RequestError):
    code = "invalid_value"


class InvalidJson(RequestError):
    code = "invalid_json"


class NotFound(RequestError):
    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"


class BodyTooLarge(RequestError):
    status = 413
    code = "body_too_large"


def failure(
    status: int,
    message: str,
    code: str,
    field: str | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    more: Mapping[str, Any] | None = None,
) -> Answer:
    """An answer in the shape that every error has; `more` adds to it."""
    body = {"error": message, "code": code, "field": field, **(more or {})}
    return Answer(status, _encode(body), tuple(headers))


def retry_after(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"Retry-After", b"%d" % max(1, round(seconds))),)


def answer_for(error: BaseException) -> Answer:
    """The answer to a request that ended with this error."""
    if isinstance(error, RequestError):
        return failure(error.status, error.message, error.code, error.field, error.headers)
    if isinstance(error, InvalidValue):
        return failure(400, str(error), "invalid_value", error.field)
    if isinstance(error, AuthError):
        return failure(error.status, error.message, error.code, headers=error.headers)
    if isinstance(error, asyncio.CancelledError):  # the engine was closed while it worked on it
        return _of_engine(Stopping(""))
    if isinstance(error, EngineError):
        return _of_engine(error)
    if isinstance(error, StorageError):
        return _of_storage(error)
    if isinstance(error, CipherError):
        return failure(503 if isinstance(error, EncryptionUnavailable) else 500, error.message, error.code)
    return _unexpected(error)


def _of_engine(error: EngineError) -> Answer:
    if isinstance(error, Overloaded):
        return failure(429, error.message, error.code, headers=retry_after(error.retry_after))
    if isinstance(error, Stopping):
        message = (
            "This server is stopping; send the request again with the same transactionIds, another one will answer."
        )
        return failure(503, message, error.code, headers=retry_after(RETRY_AFTER))
    return _unexpected(error)


def _of_storage(error: StorageError) -> Answer:
    if isinstance(error, DatabaseUnavailable):
        message = "The database cannot be reached; send the request again with the same transactionIds."
        return failure(503, message, error.code, headers=retry_after(RETRY_AFTER))
    if isinstance(error, QueueFull):
        return failure(429, error.message, error.code, headers=retry_after(RETRY_AFTER))
    if isinstance(error, MessageNotFound):
        return failure(404, error.message, error.code)
    if isinstance(error, _CONFLICTS):
        return failure(409, error.message, error.code)
    return _unexpected(error)


def _unexpected(error: BaseException) -> Answer:
    """Logged with where it happened. Its text may quote what a client sent, so only its kind is written down."""
    kind = type(error).__qualname__
    state = getattr(error, "sqlstate", None)
    shown = _Unexpected(f"{kind} (SQLSTATE {state})" if state else kind)
    _log.error("a request failed", exc_info=(_Unexpected, shown, error.__traceback__))
    return failure(500, "The server failed to answer; its log says why.", "internal_error")


class _Unexpected(Exception):
    """Stands in the log for an error whose text must not be written down."""
