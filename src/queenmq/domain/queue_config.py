"""What a server keeps in mind of a queue's configuration, and tells other servers."""

from __future__ import annotations

import msgspec


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every change of a queue has a higher `version` than all changes of all queues before it."""

    queue_id: int
    version: int
    namespace: str = ""
    task: str = ""
    priority: int = 0
    lease_time: int = 300
    retry_limit: int = 3
    retry_delay: int = 1000
    delayed_processing: int = 0
    window_buffer: int = 0
    ttl: int | None = None
    max_size: int = 0
    encryption_enabled: bool = False

    @property
    def bounded(self) -> bool:
        return self.max_size > 0
