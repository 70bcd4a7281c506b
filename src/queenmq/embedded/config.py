"""The server's settings, given on its command line at every start.

A newer version of the product can so change them for existing clusters. They are chosen for a small message queue: safe
against a power cut, short transactions, tables that are updated and deleted from a lot. What decides where the server
listens belongs to the manager and cannot be overridden, because clients could not find it otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .errors import InvalidSettingError

SOCKET_PORT = 5432
"""The number in the socket file's name when no TCP port was asked for."""

DEFAULTS: Mapping[str, str] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "jit": "off",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # The manager reads the log to report recovery and to explain failures.
    "lc_messages": "C",
    "log_destination": "stderr",
    "logging_collector": "off",
    "log_checkpoints": "off",
    "cluster_name": "queen",
}

RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "port",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)

PROGRESS_SINCE = 15


def check(settings: Mapping[str, str], port: int | None) -> None:
    for name in settings:
        if name.lower() in RESERVED:
            raise InvalidSettingError(
                f"The PostgreSQL setting {name} is decided by the embedded server and cannot be overridden.",
                setting=name,
            )
    if port is not None and not 1 <= port <= 65535:
        raise InvalidSettingError(f"The TCP port {port} is not between 1 and 65535.", setting="port", given=port)


def arguments(settings: Mapping[str, str], *, socket_dir: Path, port: int | None, major: int) -> list[str]:
    quoted_dir = '"' + str(socket_dir).replace('"', '""') + '"'
    chosen = dict(DEFAULTS)
    if major >= PROGRESS_SINCE:
        chosen["log_startup_progress_interval"] = "1s"
    chosen |= {name.lower(): value for name, value in settings.items()}
    chosen |= {
        "listen_addresses": "" if port is None else "127.0.0.1",
        "port": str(port or SOCKET_PORT),
        "unix_socket_directories": quoted_dir,
        "unix_socket_permissions": "0700",
    }
    return [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
