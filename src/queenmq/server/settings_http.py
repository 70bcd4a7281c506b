"""The settings of the HTTP interface: limits and timeouts."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.server.kinds import integer
from queenmq.server.rows import row

_SECTION = "HTTP"
_DAY = 24 * 60 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """Read by the workers; `queenmq.http.limits.Limits` is made from them."""

    max_body_bytes: int = row(
        "QUEEN_MAX_BODY_BYTES",
        integer(1_024, 32 * 1024 * 1024),
        32 * 1024 * 1024,
        section=_SECTION,
        unit="bytes",
        doc="Largest request body, also after decompression. A larger one is answered 413.",
    )
    max_buffered: int = row(
        "QUEEN_MAX_BUFFERED_MB",
        integer(1, 65_536),
        256,
        section=_SECTION,
        unit="MB",
        doc="Most one worker holds of large request bodies that are still arriving; more is answered 503.",
    )
    max_header_bytes: int = row(
        "QUEEN_MAX_HEADER_BYTES",
        integer(1_024, 1024 * 1024),
        64 * 1024,
        section=_SECTION,
        unit="bytes",
        doc="Largest request line and headers together. Larger ones are answered 431.",
    )
    max_push_items: int = row(
        "QUEEN_MAX_PUSH_ITEMS",
        integer(1, 65_536),
        10_000,
        section=_SECTION,
        unit="items",
        doc="Most items in one push, ack batch or transaction.",
    )
    max_name_length: int = row(
        "QUEEN_MAX_NAME_LENGTH",
        integer(1, 255),
        255,
        section=_SECTION,
        unit="characters",
        doc="Longest name of a queue, partition, group, namespace or task, and longest transactionId.",
    )
    max_json_depth: int = row(
        "QUEEN_MAX_JSON_DEPTH",
        integer(1, 256),
        256,
        section=_SECTION,
        doc="Deepest nesting of a payload.",
    )
    header_timeout: int = row(
        "QUEEN_HEADER_TIMEOUT_MS",
        integer(1, _DAY),
        10_000,
        section=_SECTION,
        unit="ms",
        doc="Longest a client may take to send a request's headers.",
    )
    body_timeout: int = row(
        "QUEEN_BODY_TIMEOUT_MS",
        integer(1, _DAY),
        30_000,
        section=_SECTION,
        unit="ms",
        doc="Longest a client may take to send a request's body, or read nothing of its answer.",
    )
    idle_timeout: int = row(
        "QUEEN_IDLE_TIMEOUT_MS",
        integer(1, _DAY),
        75_000,
        section=_SECTION,
        unit="ms",
        doc="How long a connection without a request is kept open.",
    )
    tcp_user_timeout: int = row(
        "QUEEN_TCP_USER_TIMEOUT_MS",
        integer(0, _DAY),
        30_000,
        section=_SECTION,
        unit="ms",
        doc="How long sent data may stay unacknowledged before a client counts as gone (Linux). 0: the system's own.",
    )
    tcp_keepalive: int = row(
        "QUEEN_TCP_KEEPALIVE_S",
        integer(0, 86_400),
        30,
        section=_SECTION,
        unit="s",
        doc="Silence after which TCP asks whether a waiting client is still there. 0 turns it off.",
    )
    max_connections: int = row(
        "QUEEN_MAX_CONNECTIONS",
        integer(1, 1_000_000),
        20_000,
        section=_SECTION,
        unit="connections",
        doc="Most open connections of one worker; more are answered 503 and closed.",
    )
