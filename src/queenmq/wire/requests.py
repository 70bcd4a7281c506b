"""The bodies of the messaging requests, as they are decoded: structure and types are checked here, rules elsewhere.

A missing field and an explicit null are the same everywhere, because clients send both. Unknown fields are ignored.
"""

from __future__ import annotations

import msgspec

NULL = msgspec.Raw(b"null")


class PushEntry(msgspec.Struct, gc=False, rename="camel"):
    """One message of a push. The payload stays as the client wrote it."""

    queue: str
    payload: msgspec.Raw | bytes = NULL
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None


class AckEntry(msgspec.Struct, gc=False, rename="camel"):
    """What became of one message. `consumer_group` counts in a single ack and in a transaction only."""

    transaction_id: str
    partition_id: str
    status: str | None = None
    lease_id: str | None = None
    error: str | None = None
    consumer_group: str | None = None
