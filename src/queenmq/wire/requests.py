"""The bodies of the messaging requests, as they are decoded: structure and types are checked here, rules elsewhere.

A missing field and an explicit null are the same everywhere, because clients send both. Unknown fields are ignored.
"""

from __future__ import annotations

from typing import Final

import msgspec

NULL: Final = msgspec.Raw(b"null")


class PushEntry(msgspec.Struct, gc=False, rename="camel"):
    """One message of a push. The payload stays as the client wrote it."""

    queue: str
    payload: msgspec.Raw = NULL
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None


class PushBody(msgspec.Struct, gc=False):
    items: list[PushEntry] | None = None


class AckEntry(msgspec.Struct, gc=False, rename="camel"):
    """What became of one message. `consumer_group` counts in a single ack and in a transaction only."""

    transaction_id: str
    partition_id: str
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None
    consumer_group: str | None = None


class AckBatchBody(msgspec.Struct, gc=False, rename="camel"):
    """Acks of one group."""

    acknowledgments: list[AckEntry] | None = None
    consumer_group: str | None = None


class OperationEntry(msgspec.Struct, gc=False, rename="camel"):
    """One step of a transaction: `type` push with `items`, or `type` ack with the fields of an ack."""

    type: str | None = None
    items: list[PushEntry] | None = None
    transaction_id: str | None = None
    partition_id: str | None = None
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None
    consumer_group: str | None = None


class TransactionBody(msgspec.Struct, gc=False, rename="camel"):
    """`kv` and `timers` are steps of newer clients that this server does not know."""

    operations: list[OperationEntry] | None = None
    required_leases: list[str | None] | None = None
    kv: list[msgspec.Raw] | None = None
    timers: list[msgspec.Raw] | None = None


class ConfigureBody(msgspec.Struct, gc=False):
    """The options stay as they were sent: those that are not known may be anything."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: dict[str, msgspec.Raw] | None = None


class NotifyBody(msgspec.Struct, gc=False):
    queue: str | None = None
    partition: str | None = None


class LeaseBody(msgspec.Struct, gc=False):
    seconds: int | float | None = None
