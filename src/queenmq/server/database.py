"""The PostgreSQL that the settings describe: a configured one, or the embedded one for as long as it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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

    @contextmanager
    def looked_after(self, report: Callable[[str], None], failed: Callable[[Exception], None]) -> Iterator[None]:
        """Meanwhile, start the embedded PostgreSQL again whenever it dies; `failed` hears why that is impossible.

        Both are called from another thread: a restart takes as long as there is log to replay.
        """
        if self.embedded is None:
            yield
            return
        done = threading.Event()
        threading.Thread(target=_look_after, args=(self.embedded, done, report, failed), daemon=True).start()
        try:
            yield
        finally:
            done.set()


def _look_after(
    embedded: EmbeddedPostgres,
    done: threading.Event,
    report: Callable[[str], None],
    failed: Callable[[Exception], None],
) -> None:
    while embedded.wait_dead() and not done.is_set():
        report("PostgreSQL has stopped by itself; starting it again")
        if done.wait(_RESTART_PAUSE_SECONDS):
            return
        try:
            embedded.start()
        except Exception as error:
            if not done.is_set():
                failed(error)
            return
        report("PostgreSQL is back")


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
