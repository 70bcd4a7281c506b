"""The hot operations: from a request's bytes to work for the engine, and from its result to an answer.

Called by the protocol for each request and by the routes of the application, with the same results. They never raise
for what a client sent: that is an answer too.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ..domain.segments import Receipt
from ..engine.acks import Stretch
from ..engine.broker import Broker
from ..engine.requests import PopAsk
from ..storage.pop import PopResult
from . import answers
from .answer import Answer, Work
from .caller import Caller
from .errors import RETRY_AFTER, answer_for, failure, retry_after
from .limits import Limits
from .parse.acks import parse_ack, parse_ack_batch
from .parse.pops import PopParser
from .parse.pushes import PushParser

_NOTHING_PUSHED: Final = Answer(201, b"[]")
_NOTHING_ACKED: Final = Answer(200, b"[]")
_NO_MESSAGES: Final = Answer(204)


class Handlers:
    """One per worker."""

    def __init__(self, broker: Broker, limits: Limits) -> None:
        self._broker = broker
        self._limits = limits
        self.parse_push: Final = PushParser(limits)
        self.parse_pop: Final = PopParser(limits)

    def push(self, body: bytes, caller: Caller) -> Answer | Work:
        try:
            items = self.parse_push(body)
            if not items:
                return _NOTHING_PUSHED
            return Work(self._broker.push(items, caller.subject, len(body)), _pushed)
        except Exception as error:
            return answer_for(error)

    def ack(self, body: bytes, caller: Caller) -> Answer | Work:
        try:
            entry = parse_ack(body, self._limits)
            return Work(self._broker.ack([entry], entry.consumer_group, len(body)), _acked)
        except Exception as error:
            return answer_for(error)

    def ack_batch(self, body: bytes, caller: Caller) -> Answer | Work:
        try:
            entries, group = parse_ack_batch(body, self._limits)
            if not entries:
                return _NOTHING_ACKED
            return Work(self._broker.ack(entries, group, len(body)), _acked)
        except Exception as error:
            return answer_for(error)

    def pop(self, path: str, query: bytes, caller: Caller) -> Answer | Work:
        """`path` is what follows /api/v1/pop, as it was sent."""
        try:
            address = self.parse_pop(path, query)
            ask = address.ask()
            ask.confirmed = True
            show = partial(_sized if address.autopilot else _popped, ask)
            return Work(self._broker.pop(ask), show, _Popped(self._broker, ask))
        except Exception as error:
            return answer_for(error)


class _Popped:
    """The delivery of a pop's answer."""

    __slots__ = ("_ask", "_broker")

    def __init__(self, broker: Broker, ask: PopAsk) -> None:
        self._broker = broker
        self._ask = ask

    def takes(self, result: PopResult) -> bool:
        return self._ask.auto_ack and bool(result.claims)

    def delivered(self, result: PopResult) -> None:
        self._broker.delivered(self._ask, result)

    def undelivered(self, result: PopResult) -> None:
        self._broker.undelivered(result)


def _pushed(receipt: Receipt) -> Answer:
    if not receipt.complete:
        verdicts = receipt.verdicts()
        if all(verdict.status == "queue_full" for verdict in verdicts):
            # Nothing was stored, so the whole request may come again; newer clients do that by themselves after a 429.
            return failure(429, verdicts[0].error or "", "queue_full", "items", retry_after(RETRY_AFTER))
        if all(verdict.status == "failed" for verdict in verdicts):
            return failure(503, verdicts[0].error or "", "encryption_unavailable", "items")
    return Answer(201, answers.push(receipt))


def _acked(stretches: list[Stretch]) -> Answer:
    return Answer(200, answers.acks(stretches))


def _popped(ask: PopAsk, result: PopResult) -> Answer:
    body = answers.pop(result, ask)
    return _NO_MESSAGES if body is None else Answer(200, body)


def _sized(ask: PopAsk, result: PopResult) -> Answer:
    """The answer to a pop that left its size to us says which one it was."""
    status, body, _ = _popped(ask, result)
    if not body:
        return _NO_MESSAGES
    return Answer(status, b'%b,"autopilot":{"partitions":%d,"batch":%d}}' % (body[:-1], ask.partitions, ask.batch))
