"""Answers to requests that are not even read to their end, because of how they are sent. The connection closes."""

from __future__ import annotations

from .errors import RETRY_AFTER, failure, retry_after

MAX_HEADERS = 256


class Refused(Exception):
    def __init__(self, status: int, code: str, error: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(error)
        self.answer = failure(status, error, code, headers=headers)


def bad_request(error: str) -> Refused:
    return Refused(400, "bad_request", error)


def timed_out(what: str, seconds: float) -> Refused:
    return Refused(408, "timeout", f"The request's {what} did not arrive within {seconds:g} seconds.")


def body_too_large(limit: int) -> Refused:
    return Refused(413, "body_too_large", f"The request body is larger than {limit} bytes, which is the most allowed.")


def unknown_encoding(name: bytes) -> Refused:
    shown = name.decode("ascii", "replace")[:40]
    error = f"The header content-encoding is {shown!r}; it can be gzip or identity."
    return Refused(415, "unknown_encoding", error)


def expectation_failed() -> Refused:
    return Refused(417, "expectation_failed", "The header expect can only be 100-continue.")


def headers_too_large(limit: int) -> Refused:
    error = (
        f"The request's headers are larger than {limit} bytes or more than {MAX_HEADERS}, which is the most allowed."
    )
    return Refused(431, "headers_too_large", error)


def no_room() -> Refused:
    error = "This server is reading as many large requests as it may; send this one again later."
    return Refused(503, "too_many_bodies", error, retry_after(RETRY_AFTER))


def too_many_connections() -> Refused:
    return Refused(503, "too_many_connections", "This server has as many connections as it may.")
