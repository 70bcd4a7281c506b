"""What servers say to each other: one message for each kind of packet, and its MessagePack payload.

A payload is a map with the fields of the message. It is read strictly: what is missing, of another type or out of range
makes the whole payload malformed, so that who acts on a message need not check it again. Fields that are not known are
skipped, since a later version may send more.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from ..domain.queue_config import QueueConfig
from .packets import MAX_SENDER, Kind

MAX_NAME: Final = 255
_LARGEST: Final = 2**63 - 1

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
NameOrNone = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Attended = Annotated[str, msgspec.Meta(max_length=MAX_NAME + 1)]
"""What consumers wait for: a queue, or nothing for any queue of a namespace. A mark may follow a queue's name."""
ServerId = Annotated[str, msgspec.Meta(pattern=rf"\A[!-~]{{1,{MAX_SENDER}}}\Z")]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
Version = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


class MalformedPayload(ValueError):
    """The payload is not a message of its kind."""


class MessageAvailable(msgspec.Struct, frozen=True):
    """The partition has new messages."""

    queue: Name
    partition: Name
    ts: Milliseconds


class PartitionFree(msgspec.Struct, frozen=True):
    """Nobody holds the partition for this group any more."""

    queue: Name
    partition: Name
    consumer_group: Name
    ts: Milliseconds


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sender is alive. `queues`: for how many queues it has consumers; -1: it does not say."""

    ts: Milliseconds
    queues: Count = -1


class QueueConfigSet(msgspec.Struct, frozen=True):
    """The queue was created or changed. `version` is that of the configuration, which travels beside it."""

    queue: Name
    config: QueueConfig
    version: Version

    def __post_init__(self) -> None:
        if self.version != self.config.version:
            raise ValueError(f"version {self.version} with a configuration of version {self.config.version}")


class QueueConfigDelete(msgspec.Struct, frozen=True):
    queue: Name


class ConsumerRegistered(msgspec.Struct, frozen=True):
    """The server has consumers for the queue."""

    queue: Attended
    server_id: ServerId


class ConsumerDeregistered(msgspec.Struct, frozen=True):
    queue: Attended
    server_id: ServerId


class PartitionDeleted(msgspec.Struct, frozen=True):
    queue: Name
    partition: Name


class LeaseHintAcquired(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server leased the partition for the group. The queue's name is empty when the sender does not know it."""

    partition_id: Name
    consumer_group: Name
    server_id: ServerId
    expires_at_ms: Milliseconds
    queue: NameOrNone = ""


class LeaseHintReleased(msgspec.Struct, frozen=True, omit_defaults=True):
    partition_id: Name
    consumer_group: Name
    server_id: ServerId
    queue: NameOrNone = ""


Message = (
    MessageAvailable
    | PartitionFree
    | Heartbeat
    | QueueConfigSet
    | QueueConfigDelete
    | ConsumerRegistered
    | ConsumerDeregistered
    | PartitionDeleted
    | LeaseHintAcquired
    | LeaseHintReleased
)


class _QueueConfigSetPayload(msgspec.Struct, frozen=True):
    """As it travels: the configuration has no version inside."""

    queue: Name
    config: dict[str, Any]
    version: Version


_TYPES: Final[dict[Kind, type[Message]]] = {
    Kind.MESSAGE_AVAILABLE: MessageAvailable,
    Kind.PARTITION_FREE: PartitionFree,
    Kind.HEARTBEAT: Heartbeat,
    Kind.QUEUE_CONFIG_SET: QueueConfigSet,
    Kind.QUEUE_CONFIG_DELETE: QueueConfigDelete,
    Kind.CONSUMER_REGISTERED: ConsumerRegistered,
    Kind.CONSUMER_DEREGISTERED: ConsumerDeregistered,
    Kind.PARTITION_DELETED: PartitionDeleted,
    Kind.LEASE_HINT_ACQUIRED: LeaseHintAcquired,
    Kind.LEASE_HINT_RELEASED: LeaseHintReleased,
}
_KINDS: Final = {kind_of: kind for kind, kind_of in _TYPES.items()}
_ON_THE_WIRE: Final[dict[Kind, type[Any]]] = {**_TYPES, Kind.QUEUE_CONFIG_SET: _QueueConfigSetPayload}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(shape) for kind, shape in _ON_THE_WIRE.items()}
_encode: Final = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> tuple[Kind, bytes]:
    """The kind of packet for this message, and its payload."""
    payload = _without_version(message) if isinstance(message, QueueConfigSet) else message
    return _KINDS[type(message)], _encode(payload)


def decode(kind: Kind, payload: bytes) -> Message:
    """Raises MalformedPayload, and nothing else, whatever the payload is."""
    try:
        message = _DECODERS[kind].decode(payload)
        return _with_version(message) if isinstance(message, _QueueConfigSetPayload) else message
    # RecursionError: nested too deep. UnicodeDecodeError: a text that is not UTF-8.
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedPayload(f"{kind.name}: {error}") from None


def _without_version(message: QueueConfigSet) -> _QueueConfigSetPayload:
    config = msgspec.structs.asdict(message.config)
    del config["version"]
    return _QueueConfigSetPayload(message.queue, config, message.version)


def _with_version(payload: _QueueConfigSetPayload) -> QueueConfigSet:
    config = msgspec.convert({**payload.config, "version": payload.version}, QueueConfig)
    for value in msgspec.structs.astuple(config):
        if (isinstance(value, int) and value > _LARGEST) or (isinstance(value, str) and len(value) > MAX_NAME):
            raise msgspec.ValidationError("a value of the configuration is out of range")
    return QueueConfigSet(payload.queue, config, payload.version)
