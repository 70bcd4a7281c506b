"""The PostgreSQL that the settings describe: a configured one, or the embedded one for as long as it is needed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from queenmq.embedded import EmbeddedPostgres
from queenmq.server.kinds import redact_url
from queenmq.server.settings import Settings
from queenmq.storage.errors import AccessRefused, DatabaseUnavailable

_RESTART_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Database:
    """A PostgreSQL to work with. `embedded` is set when this process looks after it."""

    dsn: str
    tcp_dsn: str | None = None
    embedded: EmbeddedPostgres | None = None

    @property
    def shown_dsn(self) -> str:
        """The URL without its password."""
        return redact_url(self.dsn)

    @property
    def data_dir(self) -> Path | None:
        return None if self.embedded is None else self.embedded.data_dir

    def look_after(self, report: Callable[[str], None]) -> NoReturn:
        """Start the embedded PostgreSQL again whenever it dies. Ends only by an error or a signal."""
        while True:
            if self.embedded is None:
                signal.pause()
            else:
                self.embedded.wait_dead()
                report("PostgreSQL has stopped by itself; starting it again")
                time.sleep(_RESTART_PAUSE_SECONDS)
                self.embedded.start()


@contextmanager
def open_database(settings: Settings, report: Callable[[str], None]) -> Iterator[Database]:
    """Yield the configured database, or start (or attach to) the embedded one and stop it afterwards."""
    if settings.dsn is not None:
        database = Database(settings.dsn)
        with _named(database):
            yield database
        return
    postgres = EmbeddedPostgres(
        settings.data_dir,
        bin_dir=settings.embedded_bin,
        port=settings.embedded_port,
        report=report,
    )
    try:
        info = postgres.start()
        yield Database(info.dsn, tcp_dsn=info.tcp_dsn, embedded=postgres)
    finally:
        postgres.stop()


@contextmanager
def _named(database: Database) -> Iterator[None]:
    """Say in the error which PostgreSQL it was: the address is the first thing to check."""
    try:
        yield
    except DatabaseUnavailable as error:
        message = f"PostgreSQL at {database.shown_dsn} cannot be reached: {error.message}"
        raise DatabaseUnavailable(message, detail=error.detail) from error
    except AccessRefused as error:
        message = f"PostgreSQL at {database.shown_dsn} refuses access: {error.message}"
        raise AccessRefused(message, detail=error.detail) from error
