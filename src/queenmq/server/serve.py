"""What `queen serve` does: bring up the database, migrate it, and keep it up until told to stop.

HTTP is not built yet, so the running server is its database with the SQL interface on it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from queenmq.server.database import Database, open_database
from queenmq.server.settings import Settings
from queenmq.storage.migrate import MigrationReport, migrate


class StopRequested(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived. Derived from KeyboardInterrupt because asyncio lets only that pass."""


def serve(
    settings: Settings,
    *,
    report: Callable[[str], None],
    ready: Callable[[Database, MigrationReport], None],
) -> None:
    """Run until SIGINT or SIGTERM, then stop what was started."""
    try:
        with _stop_on_signals(), open_database(settings, report) as database:
            done = asyncio.run(
                migrate(
                    database.dsn,
                    lock_timeout_ms=settings.migration_lock_timeout,
                    connect_timeout=settings.connect_timeout,
                    report=report,
                ),
            )
            ready(database, done)
            database.look_after(report)
    except StopRequested:
        report("Stopped.")


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into StopRequested; later ones do not interrupt the orderly stop."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise StopRequested

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
