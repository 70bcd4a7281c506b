"""The bodies of the messaging requests, as they are decoded: structure and types are checked here, rules elsewhere.

A missing field and an explicit null are the same everywhere, because clients send both.

Each body has two structs. The first knows no other fields than its own and is tried first, because nearly all requests
have no others. The second, whose name begins with Any, ignores fields that are not known; in a push it takes `data` as
another name of `payload`. Whether a field that is not known was misspelt is looked at elsewhere.
"""

from __future__ import annotations

from typing import Final

import msgspec

NULL: Final = msgspec.Raw(b"null")


class PushEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    """One message of a push. The payload stays as the client wrote it."""

    queue: str
    payload: msgspec.Raw = NULL
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None


class PushBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    items: list[PushEntry] | None = None


class AckEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    """What became of one message. `consumer_group` counts in a single ack and in a transaction only."""

    transaction_id: str
    partition_id: str
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None
    consumer_group: str | None = None


class AckBatchBody(msgspec.Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    """Acks of one group."""

    acknowledgments: list[AckEntry] | None = None
    consumer_group: str | None = None


class OperationEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    """One step of a transaction: `type` push with `items`, or `type` ack with the fields of an ack."""

    type: str | None = None
    items: list[PushEntry] | None = None
    transaction_id: str | None = None
    partition_id: str | None = None
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None
    consumer_group: str | None = None


class TransactionBody(msgspec.Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    """`kv` and `timers` are steps of newer clients that this server does not know."""

    operations: list[OperationEntry] | None = None
    required_leases: list[str | None] | None = None
    kv: list[msgspec.Raw] | None = None
    timers: list[msgspec.Raw] | None = None


class ConfigureBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The options stay as they were sent: they are decoded elsewhere."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: msgspec.Raw = NULL


class NotifyBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    queue: str | None = None
    partition: str | None = None


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    seconds: int | float | None = None


class AnyPushEntry(PushEntry, forbid_unknown_fields=False, gc=False, rename="camel"):
    data: msgspec.Raw = NULL


class AnyPushBody(PushBody, forbid_unknown_fields=False, gc=False):
    items: list[AnyPushEntry] | None = None  # type: ignore[assignment]


class AnyAckEntry(AckEntry, forbid_unknown_fields=False, gc=False, rename="camel"):
    pass


class AnyAckBatchBody(AckBatchBody, forbid_unknown_fields=False, gc=False, rename="camel"):
    acknowledgments: list[AnyAckEntry] | None = None  # type: ignore[assignment]


class AnyOperationEntry(OperationEntry, forbid_unknown_fields=False, gc=False, rename="camel"):
    items: list[AnyPushEntry] | None = None  # type: ignore[assignment]


class AnyTransactionBody(TransactionBody, forbid_unknown_fields=False, gc=False, rename="camel"):
    operations: list[AnyOperationEntry] | None = None  # type: ignore[assignment]


class AnyConfigureBody(ConfigureBody, forbid_unknown_fields=False, gc=False):
    pass


class AnyNotifyBody(NotifyBody, forbid_unknown_fields=False, gc=False):
    pass


class AnyLeaseBody(LeaseBody, forbid_unknown_fields=False, gc=False):
    pass
