"""Every setting of the server, one row each.

A row gives the environment variable, the kind of value, the default, the unit and one line of documentation; the field
it defines gives the type. `queen config`, docs/configuration.md and every error message come from these rows, so there
is no second list to keep in step. A setting appears here when its feature does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from queenmq.server.environment import read
from queenmq.server.kinds import DIRECTORY, PATH, PORT, POSTGRES_URL, TEXT, NotAllowedError, integer
from queenmq.server.rows import Row, row
from queenmq.server.settings_cluster import ClusterSettings
from queenmq.server.settings_cluster import problems as cluster_problems
from queenmq.server.settings_engine import EngineSettings
from queenmq.server.settings_http import HttpSettings
from queenmq.server.settings_security import SecuritySettings
from queenmq.server.settings_security import problems as security_problems
from queenmq.server.settings_workers import WorkerSettings

_DAY = 24 * 60 * 60 * 1000


class SettingsError(Exception):
    """The environment does not describe a server that can start. `problems` holds one sentence for each fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def default_data_dir(environ: Mapping[str, str], *, platform: str = sys.platform, uid: int | None = None) -> Path:
    """Where this user's server keeps its state when nobody says otherwise."""
    if (os.getuid() if uid is None else uid) == 0:
        return Path("/var/lib/queenmq")
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "Application Support" / "queenmq"
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG specification tells programs to ignore a relative path here.
    return (Path(state) if state.startswith("/") else home / ".local" / "state") / "queenmq"


@dataclass(frozen=True, kw_only=True)
class Settings(ClusterSettings, SecuritySettings, EngineSettings, HttpSettings, WorkerSettings):
    """The settings in effect. Build them with `Settings.from_env`."""

    database_url: str | None = row(
        "DATABASE_URL",
        POSTGRES_URL,
        None,
        section="Database",
        secret=True,
        doc="PostgreSQL to use. Without it and without `PG_HOST`, an embedded PostgreSQL is started.",
        default_doc="none",
    )
    pg_host: str | None = row(
        "PG_HOST",
        TEXT,
        None,
        section="Database",
        default_doc="none",
        doc="Host, or directory of the Unix socket, of the PostgreSQL to use. An alternative to `DATABASE_URL`.",
    )
    pg_port: int = row("PG_PORT", PORT, 5432, section="Database", doc="Port of that PostgreSQL. Needs `PG_HOST`.")
    pg_user: str = row("PG_USER", TEXT, "postgres", section="Database", doc="Role to log in as. Needs `PG_HOST`.")
    pg_password: str | None = row(
        "PG_PASSWORD",
        TEXT,
        None,
        section="Database",
        secret=True,
        default_doc="none",
        doc="Password of that role. Needs `PG_HOST`.",
    )
    pg_db: str = row("PG_DB", TEXT, "postgres", section="Database", doc="Database to use. Needs `PG_HOST`.")
    db_pool_size: int = row(
        "DB_POOL_SIZE",
        integer(1, 10_000),
        20,
        section="Database",
        unit="connections",
        doc="Most connections one server opens for administration and background work, split among its workers. "
        "`/health` has one more in each worker.",
    )
    db_statement_timeout: int = row(
        "DB_STATEMENT_TIMEOUT",
        integer(0, _DAY),
        30_000,
        section="Database",
        unit="ms",
        doc="Longest a statement may run before PostgreSQL cancels it. 0 sets no limit.",
    )
    db_connection_timeout: int = row(
        "DB_CONNECTION_TIMEOUT",
        integer(1, _DAY),
        10_000,
        section="Database",
        unit="ms",
        doc="Longest to wait for a connection to PostgreSQL to be established.",
    )
    migration_lock_timeout: int = row(
        "QUEEN_MIGRATION_LOCK_TIMEOUT_MS",
        integer(1, _DAY),
        2_000,
        section="Database",
        unit="ms",
        doc="Longest a migration may wait for a table lock, and so hold up traffic, before it gives way.",
    )

    data_dir: Path = row(
        "QUEEN_DATA_DIR",
        PATH,
        Path("/var/lib/queenmq"),
        section="Embedded PostgreSQL",
        compute=default_data_dir,
        doc="Directory for everything the server keeps on disk, the embedded PostgreSQL included.",
        default_doc="as root `/var/lib/queenmq`; on macOS `~/Library/Application Support/queenmq`; "
        "otherwise `$XDG_STATE_HOME/queenmq` or `~/.local/state/queenmq`",
    )
    embedded_bin: Path | None = row(
        "QUEEN_PG_BIN",
        DIRECTORY,
        None,
        section="Embedded PostgreSQL",
        default_doc="the binaries that come with the package",
        doc="Directory of PostgreSQL binaries (`postgres`, `initdb`) to use for the embedded PostgreSQL.",
    )
    embedded_port: int | None = row(
        "QUEEN_PG_PORT",
        PORT,
        None,
        section="Embedded PostgreSQL",
        default_doc="none",
        doc="TCP port on which the embedded PostgreSQL also listens, on localhost. Without it: a Unix socket only.",
    )

    retention_batch_size: int = row(
        "RETENTION_BATCH_SIZE",
        integer(1, 1_000_000),
        10_000,
        section="Retention",
        unit="messages",
        doc="Most messages one retention step deletes in a transaction. Whole segments go: this is some hundred rows.",
    )
    partition_cleanup_days: int = row(
        "PARTITION_CLEANUP_DAYS",
        integer(1, 36_500),
        7,
        section="Retention",
        unit="days",
        doc="Days without a message after which an empty partition is removed.",
    )
    metrics_retention_days: int = row(
        "METRICS_RETENTION_DAYS",
        integer(1, 36_500),
        30,
        section="Retention",
        unit="days",
        doc="Days for which metrics history is kept.",
    )
    eviction_batch_size: int = row(
        "EVICTION_BATCH_SIZE",
        integer(1, 1_000_000),
        100,
        section="Retention",
        unit="messages",
        doc="Most overdue messages one eviction step moves to the dead letter queue in a transaction.",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, strict: bool = False) -> Settings:
        """Read the settings, or raise one SettingsError that names everything wrong with them. With `strict`, a name
        that is not known is wrong; `warnings` speaks of it otherwise."""
        given = read(environ, rows())
        problems: list[str] = list(given.problems)
        values: dict[str, Any] = {}
        for field_name, meta in table():
            if meta.name in given.values:
                try:
                    values[field_name] = _parse(meta, given.values[meta.name], given.written[meta.name])
                except NotAllowedError as error:
                    problems.append(str(error))
            elif meta.compute is not None:
                values[field_name] = meta.compute(given.values)
        problems += given.unknown if strict else ()
        problems += _conflicts(given.values)
        problems += security_problems(given.values)
        problems += cluster_problems(given.values)
        if problems:
            raise SettingsError(problems)
        return cls(**values)

    @property
    def connect_timeout(self) -> float:
        """Seconds."""
        return self.db_connection_timeout / 1000

    @property
    def dsn(self) -> str | None:
        """The URL of the configured PostgreSQL; None means the embedded one."""
        if self.database_url is not None or self.pg_host is None:
            return self.database_url
        user = quote(self.pg_user, safe="")
        login = user if self.pg_password is None else f"{user}:{quote(self.pg_password, safe='')}"
        database = quote(self.pg_db, safe="")
        if self.pg_host.startswith("/"):
            return f"postgresql://{login}@/{database}?host={quote(self.pg_host)}&port={self.pg_port}"
        host = f"[{self.pg_host}]" if ":" in self.pg_host else self.pg_host
        return f"postgresql://{login}@{host}:{self.pg_port}/{database}"


def table() -> Iterator[tuple[str, Row]]:
    """Every setting: the name of its field, and its row."""
    for declared in fields(Settings):
        yield declared.name, declared.metadata["row"]


def rows() -> list[Row]:
    return [meta for _, meta in table()]


def warnings(environ: Mapping[str, str]) -> list[str]:
    """What a start need not stop for: one sentence for each name that is not known, or has no effect here."""
    return read(environ, rows()).warnings


def _parse(meta: Row, text: str, name: str) -> object:
    if text == "":
        raise NotAllowedError(f"{name} is set but empty; give it a value or unset it.")
    try:
        return meta.kind.parse(text)
    except NotAllowedError as error:
        raise NotAllowedError(f"{name} is {meta.show(text)!r}; it must be {error}.") from None


def _conflicts(environ: Mapping[str, str]) -> Iterator[str]:
    parts = [name for name in ("PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DB") if name in environ]
    if "DATABASE_URL" in environ and parts:
        yield f"DATABASE_URL and {_listed(parts)} are both set; drop {_listed(parts)}, or drop DATABASE_URL."
    elif parts and "PG_HOST" not in environ:
        yield (
            f"{_listed(parts)} {'is' if len(parts) == 1 else 'are'} set without PG_HOST; set PG_HOST to use that "
            f"PostgreSQL, or drop {_listed(parts)} to use the embedded one."
        )
    outside = "DATABASE_URL" if "DATABASE_URL" in environ else "PG_HOST"
    for name in ("QUEEN_PG_BIN", "QUEEN_PG_PORT"):
        if name in environ and outside in environ:
            yield f"{name} is for the embedded PostgreSQL, which {outside} turns off; drop {name}, or drop {outside}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
