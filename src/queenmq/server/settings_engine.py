"""The settings of the engine: how requests are batched, and how parked pops look for messages."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.server.kinds import BOOLEAN, choice, integer, number
from queenmq.server.rows import row

_SIDECAR = "Sidecar"
_POPS = "Pops and long polling"
_DAY = 24 * 60 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Read by the workers; `queenmq.engine.config.EngineConfig` is made from them."""

    sidecar_pool_size: int = row(
        "SIDECAR_POOL_SIZE",
        integer(1, 10_000),
        32,
        section=_SIDECAR,
        unit="connections",
        doc="Most connections one server opens for pushes, pops and acks, split among its workers.",
    )
    sidecar_micro_batch_wait: int = row(
        "SIDECAR_MICRO_BATCH_WAIT_MS",
        integer(0, 1_000),
        5,
        section=_SIDECAR,
        unit="ms",
        doc="Longest a push waits for the flush before it, so that both share fewer commits; then it goes beside it.",
    )
    sidecar_max_items: int = row(
        "SIDECAR_MAX_ITEMS_PER_TX",
        integer(1, 65_536),
        4_000,
        section=_SIDECAR,
        unit="messages",
        doc="Most messages of several requests that share one transaction. A larger request goes alone.",
    )
    sidecar_max_pending: int = row(
        "SIDECAR_MAX_PENDING_MB",
        integer(1, 65_536),
        256,
        section=_SIDECAR,
        unit="MB",
        doc="Most request data one worker holds for PostgreSQL; more is answered 429 with Retry-After.",
    )
    sidecar_retry_timeout: int = row(
        "SIDECAR_RETRY_TIMEOUT_MS",
        integer(0, _DAY),
        10_000,
        section=_SIDECAR,
        unit="ms",
        doc="How long a worker repeats what PostgreSQL did not answer, before the client is told 503.",
    )
    pgbouncer: bool = row(
        "QUEEN_PGBOUNCER",
        BOOLEAN,
        False,
        section=_SIDECAR,
        default_doc="false",
        doc="The database is reached through PgBouncer in transaction mode (1.21 or newer). See docs/pgbouncer.md.",
    )
    default_batch_size: int = row(
        "DEFAULT_BATCH_SIZE",
        integer(1, 10_000),
        1,
        section=_POPS,
        unit="messages",
        doc="Messages a pop gets that does not say how many.",
    )
    max_batch_size: int = row(
        "QUEEN_MAX_POP_BATCH",
        integer(1, 100_000),
        10_000,
        section=_POPS,
        unit="messages",
        doc="Most messages one pop gets, whatever it asks for.",
    )
    max_pop: int = row(
        "QUEEN_MAX_POP_MB",
        integer(1, 1024),
        32,
        section=_POPS,
        unit="MB",
        doc="Most payload data of pops answered together. With large messages a pop gets fewer than it asks for.",
    )
    default_timeout: int = row(
        "DEFAULT_TIMEOUT",
        integer(0, _DAY),
        30_000,
        section=_POPS,
        unit="ms",
        doc="How long a pop waits that says `wait=true` and no `timeout`.",
    )
    max_timeout: int = row(
        "QUEEN_MAX_POP_TIMEOUT_MS",
        integer(0, _DAY),
        600_000,
        section=_POPS,
        unit="ms",
        doc="Longest a pop may wait, whatever it asks for.",
    )
    default_subscription_mode: str = row(
        "DEFAULT_SUBSCRIPTION_MODE",
        choice("all", "new"),
        "all",
        section=_POPS,
        doc="Where a new consumer group starts that does not say: at the first message, or with the next.",
    )
    pop_wait_initial: int = row(
        "POP_WAIT_INITIAL_INTERVAL_MS",
        integer(1, 60_000),
        100,
        section=_POPS,
        unit="ms",
        aliases=("POP_WAIT_BASE_INTERVAL_MS",),
        doc="How often waiting pops look again when nothing wakes them.",
    )
    pop_wait_threshold: int = row(
        "POP_WAIT_BACKOFF_THRESHOLD",
        integer(1, 1_000),
        3,
        section=_POPS,
        doc="Looks without a message before the interval grows.",
    )
    pop_wait_multiplier: float = row(
        "POP_WAIT_BACKOFF_MULTIPLIER",
        number(1, 100),
        2.0,
        section=_POPS,
        doc="By how much it grows each time.",
    )
    pop_wait_max: int = row(
        "POP_WAIT_MAX_INTERVAL_MS",
        integer(1, 600_000),
        1_000,
        section=_POPS,
        unit="ms",
        doc="How long it can grow.",
    )
