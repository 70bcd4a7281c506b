"""What a client may send, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times are in seconds."""

    max_body_bytes: int = 32 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_buffered_bytes: int = 256 * 1024 * 1024
    max_push_items: int = 10_000
    max_name_length: int = 255
    max_json_depth: int = 256
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    idle_timeout: float = 75.0
    tcp_user_timeout: float = 30.0
    tcp_keepalive: int = 30
    max_connections: int = 20_000
    default_batch_size: int = 1
    max_batch_size: int = 10_000
    default_timeout: float = 30.0
    max_timeout: float = 600.0
    default_subscription_mode: Literal["all", "new"] = "all"
