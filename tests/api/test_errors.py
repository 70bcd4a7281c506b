"""From an error to its answer."""

from __future__ import annotations

import asyncio
import json
import logging

import asyncpg
import pytest

from queenmq.domain.cipher import EncryptionUnavailable
from queenmq.engine.errors import EngineError, Overloaded, Stopping
from queenmq.http.auth import Forbidden, Unauthorized
from queenmq.http.errors import BodyTooLarge, InvalidField, NotFound, answer_for
from queenmq.storage.errors import (
    AckRefused,
    DatabaseUnavailable,
    LeaseNotHeld,
    MessageNeeded,
    MessageNotFound,
    QueueFull,
    StorageError,
)
from queenmq.wire.names import InvalidValue

EXPECTED: list[tuple[BaseException, int, str]] = [
    (InvalidValue("items[0].queue", 5, "a text"), 400, "invalid_value"),
    (InvalidField("x", field="y"), 400, "invalid_value"),
    (NotFound("x"), 404, "not_found"),
    (BodyTooLarge("x"), 413, "body_too_large"),
    (Unauthorized("x"), 401, "unauthorized"),
    (Forbidden("x"), 403, "forbidden"),
    (Overloaded("x", retry_after=3), 429, "overloaded"),
    (QueueFull("x"), 429, "queue_full"),
    (Stopping("x"), 503, "stopping"),
    (asyncio.CancelledError(), 503, "stopping"),
    (DatabaseUnavailable("secret host"), 503, "database_unavailable"),
    (EncryptionUnavailable("q"), 503, "encryption_unavailable"),
    (MessageNotFound("x"), 404, "message_not_found"),
    (LeaseNotHeld("x"), 409, "lease_not_held"),
    (AckRefused("x"), 409, "ack_refused"),
    (MessageNeeded("x"), 409, "message_needed"),
]
UNEXPECTED: list[Exception] = [
    ZeroDivisionError("secret"),
    StorageError("secret"),
    EngineError("secret"),
    asyncpg.UndefinedColumnError("secret sql"),
    RecursionError("secret"),
]


@pytest.mark.parametrize(("error", "status", "code"), EXPECTED, ids=lambda value: str(value)[:30])
def test_an_expected_error_has_its_status_and_code(error: BaseException, status: int, code: str) -> None:
    answer = answer_for(error)
    assert answer.status == status
    body = json.loads(answer.body)
    assert set(body) == {"error", "code", "field"}
    assert body["code"] == code
    assert body["error"]
    assert "secret" not in body["error"]


@pytest.mark.parametrize("error", [error for error, status, _ in EXPECTED if status in (429, 503)], ids=repr)
def test_who_may_come_again_is_told_when(error: BaseException) -> None:
    given = [value for name, value in answer_for(error).headers if name == b"Retry-After"]
    if isinstance(error, EncryptionUnavailable):
        assert given == []
    else:
        assert len(given) == 1
        assert int(given[0]) >= 1


def test_retry_after_is_in_whole_seconds() -> None:
    assert answer_for(Overloaded("x", retry_after=3)).headers == ((b"Retry-After", b"3"),)
    assert answer_for(Overloaded("x", retry_after=0)).headers == ((b"Retry-After", b"1"),)


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_an_unexpected_error_is_logged_once_and_tells_nobody_what_it_says(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise error
    except Exception as raised:
        with caplog.at_level(logging.DEBUG):
            answer = answer_for(raised)
    assert answer.status == 500
    assert json.loads(answer.body) == {
        "error": "The server failed to answer; its log says why.",
        "code": "internal_error",
        "field": None,
    }
    assert len(caplog.records) == 1
    assert type(error).__qualname__ in caplog.text
    assert "test_an_unexpected_error" in caplog.text  # the traceback
    assert "secret" not in caplog.text


def test_a_given_value_is_shown_in_ascii_and_cut() -> None:
    body = json.loads(answer_for(InvalidValue("queue", "é\n" * 500, "a text")).body)
    assert body["error"].isascii()
    assert len(body["error"]) < 500
