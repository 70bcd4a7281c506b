"""An embedded PostgreSQL: `EmbeddedPostgres` runs one under a data directory when no database is configured."""

from __future__ import annotations

from .connection import ConnectionInfo
from .errors import (
    BinariesNotFoundError,
    BinariesUnusableError,
    DirectoryLockedError,
    DirectoryUnusableError,
    DiskFullError,
    EmbeddedPostgresError,
    InitFailedError,
    InvalidSettingError,
    PortTakenError,
    PrivilegeError,
    StartFailedError,
    StopFailedError,
    VersionMismatchError,
)
from .manager import EmbeddedPostgres

__all__ = [
    "BinariesNotFoundError",
    "BinariesUnusableError",
    "ConnectionInfo",
    "DirectoryLockedError",
    "DirectoryUnusableError",
    "DiskFullError",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "InitFailedError",
    "InvalidSettingError",
    "PortTakenError",
    "PrivilegeError",
    "StartFailedError",
    "StopFailedError",
    "VersionMismatchError",
]
