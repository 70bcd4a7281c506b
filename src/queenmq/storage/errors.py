"""What storage calls raise.

StorageError
├── DatabaseUnavailable    no connection, it was lost, or PostgreSQL cannot do it now: repeat with the same ids
├── AccessRefused          wrong user, password, database or privileges
├── SchemaMissing          the schema is not there or older than this code: migrate
├── SchemaNewer            the database was migrated by a newer version: do not start
├── SchemaChanged          a migration that was applied differs from the one shipped
├── MigrationBusy          another session held a lock for too long
├── UnsupportedDatabase    PostgreSQL is too old, or its encoding is not UTF8
├── PartitionGone          the partition was deleted; resolve it again
├── StaleConfig            the caller's view of a queue's options is old; resolve it again
├── QueueFull              maxSize reached; nothing of that queue was stored
├── LeaseNotHeld           a required lease is not held; nothing was done
├── AckRefused             an ack of a transaction cannot be applied; nothing was done
├── MessageNotFound        no message with that partition and transactionId
└── MessageNeeded          other groups have yet to consume the message; nothing was done
"""

from __future__ import annotations

import asyncio
from typing import Final

import asyncpg


class StorageError(Exception):
    """One failure of a storage call: a machine code, a sentence, and the data that explains it."""

    code = "storage_error"

    def __init__(self, message: str, *, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class DatabaseUnavailable(StorageError):
    code = "database_unavailable"


class AccessRefused(StorageError):
    code = "access_refused"


class SchemaMissing(StorageError):
    code = "schema_missing"


class SchemaNewer(StorageError):
    code = "schema_newer"


class SchemaChanged(StorageError):
    code = "schema_changed"


class MigrationBusy(StorageError):
    code = "migration_busy"


class UnsupportedDatabase(StorageError):
    code = "unsupported_database"


class PartitionGone(StorageError):
    code = "partition_gone"


class StaleConfig(StorageError):
    code = "stale_config"


class QueueFull(StorageError):
    code = "queue_full"


class LeaseNotHeld(StorageError):
    code = "lease_not_held"


class AckRefused(StorageError):
    code = "ack_refused"


class MessageNotFound(StorageError):
    code = "message_not_found"


class MessageNeeded(StorageError):
    code = "message_needed"


_BY_SQLSTATE: Final[dict[str, type[StorageError]]] = {
    "QM001": PartitionGone,
    "QM002": QueueFull,
    "QM003": StaleConfig,
    "QM004": LeaseNotHeld,
    "QM005": AckRefused,
    "QM010": MessageNotFound,
    "QM011": MessageNeeded,
    "3F000": SchemaMissing,
    "42P01": SchemaMissing,
    "42883": SchemaMissing,
}
_UNAVAILABLE: Final = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a shutdown that meets a running statement
    asyncpg.PostgresConnectionError,
)
_NOT_NOW: Final = (
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.ReadOnlySQLTransactionError,  # a server that others have taken over from
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.DiskFullError,
)
_ACCESS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


def translate(error: Exception) -> StorageError | None:
    """The StorageError that stands for an error of the driver; None when the error is not one we expect."""
    if isinstance(error, _ACCESS):
        return AccessRefused(str(error))
    if isinstance(error, _NOT_NOW):
        return DatabaseUnavailable(str(error))
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in _BY_SQLSTATE:
        return _BY_SQLSTATE[error.sqlstate](str(error.args[0]), detail=error.detail)  # str() would add the detail
    if isinstance(error, _UNAVAILABLE):
        return DatabaseUnavailable(str(error) or type(error).__name__)
    return None
