"""What can go wrong with the embedded PostgreSQL, as one tree.

    EmbeddedPostgresError
     ├─ BinariesNotFoundError     no PostgreSQL programs where they were looked for
     ├─ BinariesUnusableError     programs are there but cannot be run
     ├─ DirectoryLockedError      another process holds the data directory and its server cannot be reached
     ├─ DirectoryUnusableError    the data directory cannot hold, or does not hold, a cluster of ours
     ├─ VersionMismatchError      the cluster was made by another major version
     ├─ DiskFullError             no room to write
     ├─ PortTakenError            the TCP port asked for is in use
     ├─ PrivilegeError            root could not become an unprivileged user
     ├─ InvalidSettingError       a setting that this manager cannot pass on
     ├─ InitFailedError           initdb failed for another reason
     ├─ StartFailedError          the server ended while starting, for another reason
     └─ StopFailedError           the server outlived every signal

Each error carries a machine `code`, a sentence for people (`str(error)`) and the `data` that explains it. None of them
ever leads to a new initdb: a directory that is not understood is left as it is.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar

Datum = str | int | None


class EmbeddedPostgresError(Exception):
    code: ClassVar[str] = "embedded_postgres"

    def __init__(self, message: str, **data: Datum) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class BinariesNotFoundError(EmbeddedPostgresError):
    code = "embedded_postgres_binaries_not_found"


class BinariesUnusableError(EmbeddedPostgresError):
    code = "embedded_postgres_binaries_unusable"


class DirectoryLockedError(EmbeddedPostgresError):
    code = "embedded_postgres_directory_locked"


class DirectoryUnusableError(EmbeddedPostgresError):
    code = "embedded_postgres_directory_unusable"


class VersionMismatchError(EmbeddedPostgresError):
    code = "embedded_postgres_version_mismatch"


class DiskFullError(EmbeddedPostgresError):
    code = "embedded_postgres_disk_full"


class PortTakenError(EmbeddedPostgresError):
    code = "embedded_postgres_port_taken"


class PrivilegeError(EmbeddedPostgresError):
    code = "embedded_postgres_privilege"


class InvalidSettingError(EmbeddedPostgresError):
    code = "embedded_postgres_invalid_setting"


class InitFailedError(EmbeddedPostgresError):
    code = "embedded_postgres_init_failed"


class StartFailedError(EmbeddedPostgresError):
    code = "embedded_postgres_start_failed"


class StopFailedError(EmbeddedPostgresError):
    code = "embedded_postgres_stop_failed"


def from_os_error(error: OSError, directory: Path) -> EmbeddedPostgresError:
    """The error of this tree for a system call that failed on the data directory."""
    where = str(error.filename or directory)
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFullError(
            f"There is no room to write {where}: {reason}. Free some space or set QUEEN_DATA_DIR to another disk.",
            directory=str(directory),
            path=where,
            reason=reason,
        )
    return DirectoryUnusableError(
        f"The data directory {directory} cannot be used: {reason} ({where}). "
        "Give this user access to it, or set QUEEN_DATA_DIR to another directory.",
        directory=str(directory),
        path=where,
        reason=reason,
    )
