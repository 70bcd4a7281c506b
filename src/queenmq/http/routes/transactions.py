"""Pushes and acks that happen together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ...domain.ids import new_id
from ...engine.requests import TransactionAsk
from ...storage.ack import AckResult
from ...storage.errors import AckRefused, LeaseNotHeld, QueueFull
from ...storage.push import Verdict
from ...storage.transactions import Committed
from ...wire.requests import AckEntry, PushEntry
from ..answer import Answer
from ..parse.operations import parse_transaction
from .context import Call, Context


async def transaction(context: Context, call: Call) -> Answer:
    """200 also when it could not be done: clients read `success`, and would repeat a 5xx."""
    ask = parse_transaction(await call.body(), context.limits, context.handlers.parse_push)
    ask.producer_sub = call.caller.subject
    result: dict[str, Any] = {"transactionId": new_id(), "success": True, "results": []}
    try:
        committed = await context.broker.transaction(ask)
    except (AckRefused, LeaseNotHeld, QueueFull) as error:
        prefix = "ACK operation failed: " if isinstance(error, AckRefused) else ""
        result |= {"success": False, "error": prefix + error.message, "code": error.code}
    else:
        result["results"] = list(_results(ask, committed))
    return Answer(200, msgspec.json.encode(result))


def _results(ask: TransactionAsk, committed: Committed) -> Iterator[dict[str, Any]]:
    """One per message and ack, in the order in which they were sent."""
    acks, pushes = iter(committed.acks), iter(committed.pushes)
    index = 0
    for operation in ask.operations:
        if isinstance(operation, AckEntry):
            yield _acked(index, next(acks))
            index += 1
        else:
            for entry in operation:
                yield _pushed(index, entry, next(pushes))
                index += 1


def _pushed(index: int, entry: PushEntry, verdict: Verdict) -> dict[str, Any]:
    return {
        "index": index,
        "type": "push",
        "success": True,
        "status": verdict.status,
        "transactionId": verdict.transaction_id,
        "messageId": verdict.message_id,
        "partitionId": verdict.partition_id,
        "queueName": entry.queue,
    }


def _acked(index: int, result: AckResult) -> dict[str, Any]:
    return {
        "index": index,
        "type": "ack",
        "success": result.success,
        "transactionId": result.transaction_id,
        "error": result.error,
        "dlq": result.dlq,
        "queueName": result.queue,
        "partitionName": result.partition,
        "leaseReleased": result.lease_released,
    }
