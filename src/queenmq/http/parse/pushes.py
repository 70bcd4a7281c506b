"""The body of a push: decoded, and every item checked before anything is handed on.

Almost all items are fine, so the rules are asked of many at once: names that passed before are remembered, ids and
payloads are scanned joined together. Only when something is found are the items taken one by one, to name the first
bad one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...wire.names import InvalidValue, check_name, check_transaction_id, check_uuid
from ...wire.payload import check_payload, check_payloads, is_plain
from ...wire.requests import NULL, AnyPushBody, AnyPushEntry, PushBody, PushEntry
from ..errors import InvalidField
from ..limits import Limits
from .bodies import UNDECODABLE, Decoder, missing
from .spelling import Names, Shape

PHRASES: Final = {
    "": "items array is required",
    "items": "items array is required",
    "items[].queue": "Queue must be a string",
    "items[].partition": "Partition must be a string",
    "items[].transactionId": "TransactionId must be a string",
    "items[].traceId": "TraceId must be a string",
}

_REMEMBERED: Final = 65_536
_REMEMBERED_LENGTH: Final = 100
_PRINTABLE: Final = bytes(range(0x20, 0x7F))

ITEM_SHAPE: Final = Shape(Names.of(AnyPushEntry))

_decode: Final = Decoder(PushBody, AnyPushBody, Shape(Names.of(PushBody), {"items": ITEM_SHAPE}), PHRASES)
_decode_plain: Final = _decode.known


class PushParser:
    """One per worker: it remembers names that passed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: set[str | None] = {None}

    def __call__(self, body: bytes) -> list[PushEntry]:
        """Raises InvalidField, InvalidJson or InvalidValue for what is wrong first."""
        try:
            items = _decode_plain(body or b"{}").items
        except UNDECODABLE as error:
            items = self._decoded_otherwise(error, body)
        if items is None:
            raise missing("items", PHRASES)
        if items and not (len(items) == 1 and self._is_plain(items[0])):
            self.check(items)
        return items

    def _decoded_otherwise(self, error: Exception, body: bytes) -> list[PushEntry] | None:
        decoded, has_others = _decode.otherwise(error, body, self._limits.max_json_depth)
        if has_others:
            self.check_count(decoded.items or ())
            _decode.check_names(body)
            take_data(decoded.items or ())
        return decoded.items

    def check(self, items: Sequence[PushEntry], field: str = "items") -> None:
        """Every rule for items that are decoded already."""
        self.check_count(items, field)
        try:
            self._check_together(items, field)
        except InvalidValue:
            self._check_each(items, field)
            raise

    def check_count(self, items: Sequence[PushEntry], field: str = "items") -> None:
        if len(items) > self._limits.max_push_items:
            most = self._limits.max_push_items
            raise InvalidField(f"{field} must be at most {most}, not {len(items)}", field=field)

    def _is_plain(self, item: PushEntry) -> bool:
        """Can nothing be wrong with this item? Most requests have one, and it is like this."""
        known, name = self._known, item.transaction_id
        return (
            item.queue in known
            and item.partition in known
            and item.trace_id is None
            and (name is None or (len(name) <= self._limits.max_name_length and name.isascii() and name.isprintable()))
            and is_plain(bytes(item.payload), self._limits.max_json_depth)
        )

    def _check_together(self, items: Sequence[PushEntry], field: str) -> None:
        limits, known = self._limits, self._known
        queues, partitions = {item.queue for item in items}, {item.partition for item in items}
        if not (known.issuperset(queues) and known.issuperset(partitions)):
            self._learn((queues | partitions) - known, field)
        check_payloads(field, [item.payload for item in items], max_depth=limits.max_json_depth)
        ids = [item.transaction_id for item in items if item.transaction_id]
        if ids and (max(map(len, ids)) > limits.max_name_length or "".join(ids).encode().translate(None, _PRINTABLE)):
            for identifier in ids:
                check_transaction_id(field, identifier, longest=limits.max_name_length)
        for trace_id in [item.trace_id for item in items if item.trace_id is not None]:
            check_uuid(field, trace_id)

    def _learn(self, names: set[str | None], field: str) -> None:
        """Check names and remember them."""
        known = self._known
        if len(known) > _REMEMBERED:
            known.clear()
            known.add(None)
        for name in names:
            if name is not None:
                check_name(field, name, longest=self._limits.max_name_length)
                if len(name) <= _REMEMBERED_LENGTH:
                    known.add(name)

    def _check_each(self, items: Sequence[PushEntry], field: str) -> None:
        """The same rules, item by item, to name the first that breaks one."""
        longest, depth = self._limits.max_name_length, self._limits.max_json_depth
        for index, item in enumerate(items):
            where = f"{field}[{index}]."
            check_name(where + "queue", item.queue, longest=longest)
            if item.partition is not None:
                check_name(where + "partition", item.partition, longest=longest)
            if item.transaction_id is not None:
                check_transaction_id(where + "transactionId", item.transaction_id, longest=longest)
            if item.trace_id is not None:
                check_uuid(where + "traceId", item.trace_id)
            check_payload(where + "payload", bytes(item.payload), valid_json=True, max_depth=depth)


def take_data(items: Sequence[PushEntry], field: str = "items") -> None:
    """`data`, which is what a pop calls it, is another name of `payload`."""
    for index, item in enumerate(items):
        if isinstance(item, AnyPushEntry) and bytes(item.data) != b"null":
            if bytes(item.payload) != b"null":
                where = f"{field}[{index}]"
                sentence = f"{where} has payload and data, which are two names for the same; give one of them"
                raise InvalidField(sentence, field=f"{where}.data")
            item.payload, item.data = item.data, NULL
