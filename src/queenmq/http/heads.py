"""The bytes in front of an answer's body: status line and headers, built once per status."""

from __future__ import annotations

from http import HTTPStatus

from .answer import Answer

CORS = (
    (b"Access-Control-Allow-Origin", b"*"),
    (b"Access-Control-Allow-Methods", b"GET, POST, PUT, DELETE, OPTIONS"),
    (b"Access-Control-Allow-Headers", b"Content-Type, Authorization"),
)
PREFLIGHT = Answer(204, b"", ((b"Access-Control-Max-Age", b"86400"),))
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _start(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    kind = b"" if status == 204 else b"Content-Type: application/json\r\n"
    return b"HTTP/1.1 %d %b\r\n%b%b" % (status, phrase.encode(), kind, _lines(CORS))


_STARTS = {status: _start(status) for status in range(200, 600)}
_USUAL = {status: start + b"Content-Length: " for status, start in _STARTS.items() if status != 204}


def head(answer: Answer, *, keep_alive: bool) -> bytes:
    """Everything up to and including the empty line."""
    status, body, headers = answer
    if keep_alive and not headers and status != 204:
        return b"%b%d\r\n\r\n" % (_USUAL[status], len(body))
    length = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
    close = b"" if keep_alive else b"Connection: close\r\n"
    return b"%b%b%b%b\r\n" % (_STARTS[status], _lines(headers), length, close)
