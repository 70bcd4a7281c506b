"""Pushes over HTTP, to a server and everything it may have in front of it.

The payload of a row is put into the request as it is: it was checked to be one JSON value. A server that is away,
stopping or overloaded is asked again, after the time it names or with growing pauses. What it refuses is told with the
row that is why, where the server says which one.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ..domain.segments import Parcel
from ..wire.requests import PushEntry
from .errors import OptionError, WriteRefused
from .pushing import MessageRefused, Patience, Tally

_TIMEOUT: Final = 60.0
_LATER: Final = {408, 425, 429, 500, 502, 503, 504}
_SETTLED: Final = {"queue_full", "encryption_unavailable"}  # of the queue, and not of the server as a whole
_TOO_LARGE: Final = 413
_STORED: Final = {"queued", "buffered", "accepted"}  # a server that answers 202 has them on disk
_FINE: Final = {*_STORED, "duplicate"}
_LONGEST_SENTENCE: Final = 300
_ITEM: Final = re.compile(r"items\[([0-9]{1,6})\]\.?")
_PLACES: Final = 10_000
_encode: Final = msgspec.json.Encoder().encode


class _Outcome(msgspec.Struct):
    """What became of one message."""

    status: str
    code: str | None = None
    error: str | None = None


class _Failure(msgspec.Struct):
    error: str = ""
    code: str | None = None
    field: str | None = None


_read_outcomes: Final = msgspec.json.Decoder(list[_Outcome]).decode
_read_failure: Final = msgspec.json.Decoder(_Failure).decode


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    retry_after: float | None


class HttpPusher:
    """One keep-alive connection, opened when it is needed."""

    def __init__(self, url: str, max_retry_seconds: float, token: str | None = None) -> None:
        self._url = urlsplit(url)
        self._path = f"{self._url.path.rstrip('/')}/api/v1/push"
        self._patience = max_retry_seconds
        self._headers = {"content-type": "application/json", **_authorization(token or os.environ.get("QUEEN_TOKEN"))}
        self._places: dict[tuple[str, str | None], bytes] = {}
        self._connection: HTTPConnection | None = None

    def push(self, parcel: Parcel) -> Tally:
        return self._stored([self._rendered(item) for item in parcel.items], range(len(parcel.items)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _stored(self, items: Sequence[bytes], positions: Sequence[int]) -> Tally:
        """`positions`: where each of them is in its parcel."""
        patience = Patience(self._patience)
        tally = Tally()
        while True:
            answer = self._answered(b'{"items":[' + b",".join(items) + b"]}", patience)
            if answer.status == _TOO_LARGE and len(items) > 1:
                return self._halved(items, positions)
            outcomes = self._outcomes(answer, positions)
            tally += _counted(outcomes)
            full = [index for index, outcome in enumerate(outcomes) if outcome.code == "queue_full"]
            if not full:
                return tally
            patience.wait(outcomes[full[0]].error or "the queue is full", answer.retry_after)
            items, positions = [items[index] for index in full], [positions[index] for index in full]
            if len(items) > 1:  # a queue may have room for some of them, or be smaller than a push
                return tally + self._halved(items, positions)

    def _halved(self, items: Sequence[bytes], positions: Sequence[int]) -> Tally:
        half = len(items) // 2
        return self._stored(items[:half], positions[:half]) + self._stored(items[half:], positions[half:])

    def _answered(self, body: bytes, patience: Patience) -> _Answer:
        """The first answer that settles something."""
        where = self._url.netloc
        while True:
            try:
                answer = self._asked(body)
            except ssl.SSLCertVerificationError as error:
                raise WriteRefused(f"{where} has no valid certificate: {error.verify_message}") from None
            except (OSError, HTTPException) as error:
                self.close()
                patience.wait(f"{where} does not answer ({type(error).__name__})")
                continue
            failure = _failure(answer)
            if answer.status not in _LATER or failure.code in _SETTLED:
                return answer
            patience.wait(f"{where} answers {answer.status}: {failure.error}", answer.retry_after)

    def _asked(self, body: bytes) -> _Answer:
        if self._connection is None:
            kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
            self._connection = kind(self._url.hostname or "", self._url.port, timeout=_TIMEOUT)
        # Who refuses a request need not read it to its end: there may be an answer although not all could be sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.request("POST", self._path, body, self._headers)
        response = self._connection.getresponse()
        return _Answer(response.status, response.read(), _seconds(response.getheader("retry-after")))

    def _outcomes(self, answer: _Answer, positions: Sequence[int]) -> list[_Outcome]:
        """One for each message. Raises WriteRefused when the server, or one of them, was refused."""
        where, count = self._url.netloc, len(positions)
        failure = _failure(answer)
        if failure.code == "queue_full":
            return [_Outcome("failed", failure.code, failure.error)] * count
        if not 200 <= answer.status < 300:
            raise _refusal(where, answer.status, failure, positions)
        try:
            outcomes = _read_outcomes(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise WriteRefused(f"{where} does not answer a push as a queenmq server does; check option url") from None
        if len(outcomes) != count:
            raise WriteRefused(f"{where} answers for {len(outcomes)} of {count} messages")
        for position, outcome in zip(positions, outcomes, strict=True):
            if outcome.status not in _FINE and outcome.code != "queue_full":
                why = f"{where} says {_cut(outcome.status)} of it: {_cut(outcome.error or 'no reason')}"
                raise MessageRefused(position, why)
        return outcomes

    def _rendered(self, item: PushEntry) -> bytes:
        place = (item.queue, item.partition)
        head = self._places.get(place)
        if head is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            head = b'{"queue":%b,"partition":%b,"transactionId":' % (_encode(item.queue), _encode(item.partition))
            self._places[place] = head
        trace = b',"traceId":"%b"' % item.trace_id.encode() if item.trace_id else b""
        return b'%b%b%b,"payload":%b}' % (head, _encode(item.transaction_id), trace, item.payload)


def _counted(outcomes: Sequence[_Outcome]) -> Tally:
    statuses = [outcome.status for outcome in outcomes]
    return Tally(sum(map(_STORED.__contains__, statuses)), statuses.count("duplicate"))


def _failure(answer: _Answer) -> _Failure:
    """What an answer that is not a success says, without the page of a proxy."""
    if 200 <= answer.status < 300:
        return _Failure()
    try:
        found = _read_failure(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Failure("no reason given")
    return _Failure(_cut(found.error or "no reason given"), found.code, found.field)


def _refusal(where: str, status: int, failure: _Failure, positions: Sequence[int]) -> WriteRefused:
    """With the message that is why, when the server names it or it was alone."""
    why = f"{where} refuses the push ({status}): {failure.error}"
    named = _ITEM.match(failure.field or "")
    if named and int(named[1]) < len(positions):
        return MessageRefused(positions[int(named[1])], why.replace(named[0], "", 1))
    if status == _TOO_LARGE:
        return MessageRefused(positions[0], why)
    return WriteRefused(f"{why}; option batchSize can be smaller" if failure.field == "items" else why)


def _authorization(token: str | None) -> dict[str, str]:
    """Without the end of line that files with secrets tend to have. No error may show it."""
    token = (token or "").strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise OptionError("QUEEN_TOKEN (environment)", "hidden", "a text of ASCII characters without spaces")
    return {"authorization": f"Bearer {token}"} if token else {}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SENTENCE else text[: _LONGEST_SENTENCE - 1] + "…"


def _seconds(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"[0-9]{1,6}", text.strip()) else None
