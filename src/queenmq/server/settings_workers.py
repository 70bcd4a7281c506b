"""The settings of the server's processes: where it listens, how many workers, how it stops."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.server.kinds import TEXT, choice, integer
from queenmq.server.rows import row

_SECTION = "Server"


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Read by the supervisor."""

    host: str = row(
        "QUEEN_HOST",
        TEXT,
        "127.0.0.1",
        section=_SECTION,
        doc="Address to listen on: `0.0.0.0` for every network this machine is in. `--host` wins over it.",
    )
    port: int = row(
        "PORT",
        integer(0, 65_535),
        6632,
        section=_SECTION,
        doc="Port to listen on; 0 takes a free one. `--port` wins over it.",
    )
    num_workers: int = row(
        "NUM_WORKERS",
        integer(1, 256),
        2,
        section=_SECTION,
        unit="processes",
        doc="Worker processes, each with its own connections to PostgreSQL. `--workers` wins over it.",
    )
    start_timeout: int = row(
        "QUEEN_START_TIMEOUT_MS",
        integer(0, 86_400_000),
        60_000,
        section=_SECTION,
        unit="ms",
        doc="How long a starting server waits for a configured PostgreSQL to answer, and then for its workers.",
    )
    drain_timeout: int = row(
        "QUEEN_DRAIN_TIMEOUT_MS",
        integer(0, 3_600_000),
        8_000,
        section=_SECTION,
        unit="ms",
        doc="Longest a stopping worker may take to finish what it has begun.",
    )
    log_level: str = row(
        "QUEEN_LOG_LEVEL",
        choice("debug", "info", "warning", "error"),
        "info",
        section=_SECTION,
        doc="The least a line of the log must matter.",
    )
    log_format: str = row(
        "QUEEN_LOG_FORMAT",
        choice("auto", "text", "json"),
        "auto",
        section=_SECTION,
        doc="How the log is written to stderr. `auto`: text on a terminal, one JSON object per line elsewhere.",
    )
