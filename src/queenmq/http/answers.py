"""The JSON of the hot answers: push, pop, ack."""

from __future__ import annotations

import msgspec

from ..engine.requests import PopAsk, PushReceipt
from ..storage.ack import AckResult
from ..storage.pop import PopResult

_encode = msgspec.json.Encoder().encode


def push(receipt: PushReceipt) -> bytes:
    """The body of a 201: one object per item."""
    return _encode(
        [
            {
                "index": index,
                "status": verdict.status,
                "transaction_id": verdict.transaction_id,
                "transactionId": verdict.transaction_id,
                "message_id": verdict.message_id,
                "messageId": verdict.message_id,
                "partition_id": verdict.partition_id,
                "partitionId": verdict.partition_id,
                "trace_id": item.trace_id,
                "queueName": item.queue,
            }
            for index, (item, verdict) in enumerate(zip(receipt.items, receipt.verdicts(), strict=True))
        ]
    )


def pop(result: PopResult, ask: PopAsk) -> bytes | None:
    """The body of a 200; None when there is nothing to deliver."""
    if not result.claims:
        return None
    messages = [
        {
            "id": message.id,
            "transactionId": message.transaction_id,
            "traceId": message.trace_id,
            "data": msgspec.Raw(message.payload),
            "producerSub": message.producer_sub,
            "createdAt": message.created_at.isoformat(timespec="microseconds")[:26] + "Z",
            "partitionId": claim.partition_uid,
            "partition": claim.partition,
            "leaseId": claim.lease_id or "",
            "consumerGroup": ask.group,
        }
        for claim in result.claims
        for message in claim.messages()
    ]
    first = result.claims[0]
    return _encode(
        {
            "success": True,
            "queue": ask.queue,
            "partition": first.partition,
            "partitionId": first.partition_uid,
            "leaseId": first.lease_id or "",
            "consumerGroup": ask.group,
            "partitionsClaimed": len(result.claims),
            "messages": messages,
        }
    )


def acks(results: list[AckResult]) -> bytes:
    """The body of a 200: one object per item."""
    return _encode(
        [
            {
                "index": result.index,
                "transactionId": result.transaction_id,
                "success": result.success,
                "error": result.error,
                "queueName": result.queue,
                "partitionName": result.partition,
                "leaseReleased": result.lease_released,
                "dlq": result.dlq,
            }
            for result in results
        ]
    )
