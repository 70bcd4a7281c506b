"""The options of a queue: one row each, with type, range and the column that stores it.

`parse` turns what a client sent into columns: null means "not sent", unknown options are ignored as older servers did,
anything else must fit its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..wire.names import InvalidValue

_INT4: Final = 2**31 - 1
_INT8: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    column: str
    kind: type
    default: str
    doc: str
    low: int = 0
    high: int = _INT4

    def check(self, value: object) -> int | bool:
        if self.kind is bool:
            if isinstance(value, bool):
                return value
            raise InvalidValue(f"options.{self.name}", value, "true or false")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise InvalidValue(f"options.{self.name}", value, f"an integer from {self.low} to {self.high}")
        return value


OPTIONS: Final = (
    Option("leaseTime", "lease_time", int, "300", "seconds a pop holds its messages; 0 means 60"),
    Option("retryLimit", "retry_limit", int, "3", "failed deliveries of a message before it is dead-lettered"),
    Option("retryDelay", "retry_delay", int, "1000", "milliseconds before a failed message comes again"),
    Option("delayedProcessing", "delayed_processing", int, "0", "seconds before a message may be delivered"),
    Option("windowBuffer", "window_buffer", int, "0", "seconds a partition must be quiet before it is delivered"),
    Option(
        "maxWaitTimeSeconds",
        "max_wait_time_seconds",
        int,
        "0",
        "seconds after which an unconsumed message is dead-lettered; 0 = never",
    ),
    Option(
        "maxSize", "max_size", int, "0", "messages not yet consumed that the queue takes; 0 = unlimited", high=_INT8
    ),
    Option("priority", "priority", int, "0", "which queue of a namespace is served first: the highest", low=-_INT4),
    Option(
        "ttl",
        "ttl",
        int,
        "not set",
        "seconds after which a message is neither delivered nor kept; off until set, 0 = off",
    ),
    Option(
        "deadLetterQueue",
        "dead_letter_queue",
        bool,
        "not set: on",
        "false: discard exhausted messages, with an audit row",
    ),
    Option("dlqAfterMaxRetries", "dlq_after_max_retries", bool, "not set: on", "false: retry without limit"),
    Option("retentionEnabled", "retention_enabled", bool, "false", "switch for the two retentions below"),
    Option("retentionSeconds", "retention_seconds", int, "0", "seconds to keep any message; 0 = forever"),
    Option(
        "completedRetentionSeconds",
        "completed_retention_seconds",
        int,
        "0",
        "seconds to keep messages consumed by all groups; 0 = forever",
    ),
    Option(
        "dedupWindowSeconds",
        "dedup_window_seconds",
        int,
        "3600",
        "seconds a transactionId is remembered at least, also after retention",
    ),
    Option("encryptionEnabled", "encryption_enabled", bool, "false", "payloads are encrypted at rest"),
)


def parse(options: Mapping[str, object]) -> dict[str, int | bool]:
    """The columns to change. Raises InvalidValue for the first value that does not fit."""
    return {
        option.column: option.check(options[option.name]) for option in OPTIONS if options.get(option.name) is not None
    }


def markdown() -> str:
    """The table of options in docs/queues.md."""
    rows = [f"| `{option.name}` | {option.kind.__name__} | {option.default} | {option.doc} |" for option in OPTIONS]
    return "\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *rows])
