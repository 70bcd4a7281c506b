"""The bodies of acks: one, or a batch for one group."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from ...wire.names import check_name, check_transaction_id
from ...wire.requests import AckBatchBody, AckEntry, AnyAckBatchBody, AnyAckEntry
from ..errors import InvalidField
from ..limits import Limits
from .bodies import UNDECODABLE, Decoder, missing
from .spelling import Names, Shape

MAX_ERROR: Final = 10_000
"""Characters kept of the text that says why a message failed."""

_SINGLE: Final = {
    "transactionId": "transactionId is required",
    "partitionId": "partitionId is required to ensure message uniqueness",
}
_BATCH: Final = {
    "": "acknowledgments array is required",
    "acknowledgments": "acknowledgments array is required",
    "acknowledgments[].transactionId": "Each acknowledgment must have a valid transactionId string",
    "acknowledgments[].partitionId": "Each acknowledgment must have a valid partitionId string",
}
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

_ENTRY: Final = Shape(Names.of(AckEntry))

_one: Final = Decoder(AckEntry, AnyAckEntry, _ENTRY, _SINGLE)
_many: Final = Decoder(
    AckBatchBody, AnyAckBatchBody, Shape(Names.of(AckBatchBody), {"acknowledgments": _ENTRY}), _BATCH
)


def parse_ack(body: bytes, limits: Limits) -> AckEntry:
    try:
        entry = _one.known(body or b"{}")
    except UNDECODABLE as error:
        entry, has_others = _one.otherwise(error, body, limits.max_json_depth)
        if has_others:
            _one.check_names(body)
    for field, value in (("transactionId", entry.transaction_id), ("partitionId", entry.partition_id)):
        if not value:
            raise missing(field, _SINGLE)
    check_acks([entry], lambda _: "transactionId")
    if entry.consumer_group:
        check_name("consumerGroup", entry.consumer_group, longest=limits.max_name_length)
    return entry


def parse_ack_batch(body: bytes, limits: Limits) -> tuple[list[AckEntry], str | None]:
    """The acks, and the group that they are for."""
    batch, has_others = _many(body, limits.max_json_depth)
    if has_others and len(batch.acknowledgments or ()) <= limits.max_push_items:
        _many.check_names(body)
    if batch.acknowledgments is None:
        raise missing("acknowledgments", _BATCH)
    if len(batch.acknowledgments) > limits.max_push_items:
        given, most = len(batch.acknowledgments), limits.max_push_items
        raise InvalidField(f"acknowledgments must be at most {most}, not {given}", field="acknowledgments")
    check_acks(batch.acknowledgments, "acknowledgments[{}].transactionId".format)
    if batch.consumer_group:
        check_name("consumerGroup", batch.consumer_group, longest=limits.max_name_length)
    return batch.acknowledgments, batch.consumer_group


def check_acks(entries: Sequence[AckEntry], field: Callable[[int], str]) -> None:
    """Refuse what would harm the acks of others, and make odd error texts fit to be stored. A message that cannot exist
    or a status that is not known fails by itself, later. `field` names the transactionId of an entry."""
    if "".join([entry.transaction_id for entry in entries]).encode().translate(None, _PRINTABLE):
        for index, entry in enumerate(entries):
            check_transaction_id(field(index), entry.transaction_id)
    for entry in entries:
        if entry.error:
            entry.error = _UNSTORABLE.sub("\ufffd", entry.error[:MAX_ERROR])
        if entry.status == "success":
            entry.status = "completed"
