"""Every route: method, path, who may use it, and what answers it.

Levels: P everybody, R read-only, RW read-write, A admin. Parameters in a path stand for one segment, or with `:path`
for the rest of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ..answer import Answer
from ..auth import Level
from . import coordination, health, leases, messages, pipelines, queues, status, transactions
from .context import Call, Context

Handler = Callable[[Context, Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Row:
    """`head`: the route may be asked with HEAD. Not where a GET takes something."""

    method: str
    path: str
    level: Level
    handler: Handler
    head: bool = False


ROUTES: Final = (
    Row("POST", "/api/v1/push", "RW", messages.push),
    Row("GET", "/api/v1/pop", "RW", messages.pop),
    Row("GET", "/api/v1/pop/{rest:path}", "RW", messages.pop),
    Row("POST", "/api/v1/ack", "RW", messages.ack),
    Row("POST", "/api/v1/ack/batch", "RW", messages.ack_batch),
    Row("POST", "/api/v1/transaction", "RW", transactions.transaction),
    Row("POST", "/api/v1/lease/{leaseId}/extend", "RW", leases.extend),
    Row("POST", "/api/v1/configure", "RW", queues.configure_queue),
    Row("DELETE", "/api/v1/resources/queues/{queue}", "A", queues.delete_queue),
    Row("GET", "/api/v1/status/analytics", "R", status.analytics, head=True),
    Row("GET", "/api/v1/status/pipelines", "R", pipelines.states, head=True),
    Row("GET", "/api/v1/system/shared-state", "A", coordination.shared_state, head=True),
    Row("GET", "/internal/api/shared-state/stats", "A", coordination.shared_state, head=True),
    Row("GET", "/internal/api/inter-instance/stats", "A", coordination.shared_state, head=True),
    Row("POST", "/internal/api/notify", "A", coordination.notify),
    Row("GET", "/health", "P", health.health, head=True),
    Row("GET", "/ready", "P", health.ready, head=True),
    Row("GET", "/internal/api/engine/stats", "A", health.engine_stats, head=True),
)
