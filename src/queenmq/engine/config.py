"""What the engine of one worker is told about its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Times are in seconds. Numbers of connections are those of one worker."""

    dsn: str
    connections: int = 16
    admin_connections: int = 10
    connect_timeout: float = 10.0
    statement_timeout_ms: int = 30_000
    pgbouncer: bool = False
    batch_wait: float = 0.005
    max_items: int = 4_000
    max_pending_bytes: int = 256 * 1024 * 1024
    retry_timeout: float = 10.0
    max_pop_bytes: int = 32 * 1024 * 1024
    poll_first: float = 0.1
    poll_threshold: int = 3
    poll_multiplier: float = 2.0
    poll_max: float = 1.0
    remember: bool = True
    max_partitions: int = 100_000
    partition_ttl: float = 300.0
    refresh_every: float = 60.0
