"""The bodies of transactions, of queue configurations, of notifications and of lease extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ...domain.options import OPTIONS
from ...engine.requests import TransactionAsk
from ...wire.names import InvalidValue, check_name
from ...wire.requests import (
    AckEntry,
    AnyConfigureBody,
    AnyLeaseBody,
    AnyNotifyBody,
    AnyTransactionBody,
    ConfigureBody,
    LeaseBody,
    NotifyBody,
    OperationEntry,
    PushEntry,
    TransactionBody,
)
from ..errors import InvalidField
from ..limits import Limits
from .acks import check_acks
from .bodies import Decoder, invalid, missing
from .pushes import ITEM_SHAPE, PushParser, take_data
from .pushes import PHRASES as PUSH_PHRASES
from .spelling import Names, Shape

DEFAULT_EXTENSION: Final = 60
MAX_EXTENSION: Final = 86_400

_TRANSACTION: Final = {
    "": "operations array required",
    "operations": "operations array required",
    "operations[].transactionId": "transactionId is required",
    "operations[].partitionId": "partitionId is required to ensure message uniqueness",
    **{f"operations[].{field}": phrase for field, phrase in PUSH_PHRASES.items() if field},
}
_CONFIGURE: Final = {"queue": "queue is required"}
_NOTIFY: Final = _CONFIGURE
_LEASE: Final = {"seconds": f"seconds must be an integer from 1 to {MAX_EXTENSION}"}

_OPERATION: Final = Shape(Names.of(OperationEntry), {"items": ITEM_SHAPE})
_OPTIONS: Final = Shape(Names(option.name for option in OPTIONS))
_ABSENT: Final = msgspec.Raw(b"")

_transaction: Final = Decoder(
    TransactionBody, AnyTransactionBody, Shape(Names.of(TransactionBody), {"operations": _OPERATION}), _TRANSACTION
)
_configure: Final = Decoder(
    ConfigureBody, AnyConfigureBody, Shape(Names.of(ConfigureBody), {"options": _OPTIONS}), _CONFIGURE
)
_lease: Final = Decoder(LeaseBody, AnyLeaseBody, Shape(Names.of(LeaseBody)), _LEASE)
_notify: Final = Decoder(NotifyBody, AnyNotifyBody, Shape(Names.of(NotifyBody)), _NOTIFY)
_sent_options: Final = msgspec.json.Decoder(
    msgspec.defstruct("SentOptions", [(option.name, msgspec.Raw, _ABSENT) for option in OPTIONS])
).decode


@dataclass(frozen=True, slots=True)
class Configuration:
    """`namespace` and `task` None: as they are."""

    queue: str
    namespace: str | None
    task: str | None
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """`partition` None: any of the queue."""

    queue: str
    partition: str | None


def parse_transaction(body: bytes, limits: Limits, pushes: PushParser) -> TransactionAsk:
    """What the engine is asked; raises for the first operation that may not be done."""
    decoded, has_others = _transaction(body, limits.max_json_depth)
    if has_others and _size(decoded) <= limits.max_push_items:
        _transaction.check_names(body)
    for name, extra in (("kv", decoded.kv), ("timers", decoded.timers)):
        if extra:
            raise InvalidField(f"{name} operations are not supported by this server", field=name)
    if decoded.operations is None:
        raise missing("operations", _TRANSACTION)
    if not decoded.operations:
        raise InvalidField("operations array cannot be empty", field="operations")
    steps = [_step(f"operations[{index}]", entry) for index, entry in enumerate(decoded.operations)]
    total = sum(1 if isinstance(step, AckEntry) else len(step) for step in steps)
    if total > limits.max_push_items:
        raise InvalidField(
            f"operations must hold at most {limits.max_push_items} messages and acks, not {total}", field="operations"
        )
    for index, step in enumerate(steps):
        if has_others and not isinstance(step, AckEntry):
            take_data(step, f"operations[{index}].items")
        _check_step(f"operations[{index}]", step, limits, pushes)
    return TransactionAsk(steps, _leases(decoded.required_leases or (), limits))


def _size(body: TransactionBody) -> int:
    return sum(len(entry.items) if entry.items else 1 for entry in body.operations or ())


def parse_configure(body: bytes, limits: Limits) -> Configuration:
    decoded, has_others = _configure(body, limits.max_json_depth)
    if has_others or bytes(decoded.options) != b"null":
        _configure.check_names(body)
    if not decoded.queue:
        raise missing("queue", _CONFIGURE)
    for field, value, empty in (
        ("queue", decoded.queue, False),
        ("namespace", decoded.namespace, True),
        ("task", decoded.task, True),
    ):
        if value is not None:
            check_name(field, value, empty=empty, longest=limits.max_name_length)
    return Configuration(decoded.queue, decoded.namespace, decoded.task, _options(decoded.options))


def _options(given: msgspec.Raw) -> dict[str, Any]:
    """The values of the options that are known. One that cannot be a value goes on as text, which no option takes."""
    if bytes(given) == b"null":
        return {}
    try:
        sent = msgspec.structs.asdict(_sent_options(given))
    except msgspec.ValidationError as error:
        raise invalid(f"{error} - at `$.options`", _CONFIGURE) from None
    return {name: _scalar(raw) for name, value in sent.items() if (raw := bytes(value))}


def _scalar(raw: bytes) -> Any:
    if raw[:1] not in (b"[", b"{"):
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return raw.decode(errors="replace")


def parse_notify(body: bytes, limits: Limits) -> Notification:
    decoded, has_others = _notify(body, limits.max_json_depth)
    if has_others:
        _notify.check_names(body)
    if not decoded.queue:
        raise missing("queue", _NOTIFY)
    check_name("queue", decoded.queue, longest=limits.max_name_length)
    if decoded.partition:
        check_name("partition", decoded.partition, longest=limits.max_name_length)
    return Notification(decoded.queue, decoded.partition or None)


def parse_lease(body: bytes) -> int:
    """For how many seconds."""
    decoded, has_others = _lease(body)
    if has_others:
        _lease.check_names(body)
    seconds = decoded.seconds
    if seconds is None:
        return DEFAULT_EXTENSION
    if not 1 <= seconds <= MAX_EXTENSION or seconds != int(seconds):
        raise InvalidValue("seconds", seconds, f"an integer from 1 to {MAX_EXTENSION}")
    return int(seconds)


def _leases(given: Sequence[str | None], limits: Limits) -> tuple[str, ...]:
    """Each once. A text that is no lease is one that nobody holds, but it is not passed around at any length."""
    if len(given) > limits.max_push_items:
        most = limits.max_push_items
        raise InvalidField(f"requiredLeases must be at most {most}, not {len(given)}", field="requiredLeases")
    for index, lease in enumerate(given):
        if lease:
            check_name(f"requiredLeases[{index}]", lease, longest=limits.max_name_length)
    return tuple(dict.fromkeys(lease for lease in given if lease))


def _step(where: str, entry: OperationEntry) -> list[PushEntry] | AckEntry:
    if entry.type == "push":
        if entry.items is None:
            raise missing(f"{where}.items", _TRANSACTION)
        return entry.items
    if entry.type != "ack":
        allowed = f"{where}.type must be push or ack"
        raise InvalidField(f"Unknown operation type: {_shown(entry.type)}: {allowed}", field=f"{where}.type")
    for field, value in (("transactionId", entry.transaction_id), ("partitionId", entry.partition_id)):
        if not value:
            raise missing(f"{where}.{field}", _TRANSACTION)
    return AckEntry(
        entry.transaction_id or "",
        entry.partition_id or "",
        entry.status,
        entry.lease_id,
        entry.error,
        entry.consumer_group,
    )


def _check_step(where: str, step: list[PushEntry] | AckEntry, limits: Limits, pushes: PushParser) -> None:
    if isinstance(step, AckEntry):
        check_acks([step], lambda _: f"{where}.transactionId")
        if step.consumer_group:
            check_name(f"{where}.consumerGroup", step.consumer_group, longest=limits.max_name_length)
    elif step:
        pushes.check(step, f"{where}.items")


def _shown(value: str | None) -> str:
    return "null" if value is None else ascii(value if len(value) <= 60 else value[:57] + "...")
