"""What `queen serve` does: bring up the database, migrate it, and serve until told to stop.

SIGTERM, SIGINT and SIGHUP stop the server in good order at any moment of its life. A second one while it serves ends
the workers at once; PostgreSQL is always given the time to stop properly, which is short.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from queenmq.server import coordination, logs
from queenmq.server.database import Database, open_database
from queenmq.server.filelimit import raise_file_limit
from queenmq.server.listening import Listening, bind
from queenmq.server.settings import Settings
from queenmq.server.supervisor import Supervisor
from queenmq.storage.errors import DatabaseUnavailable, MigrationBusy
from queenmq.storage.migrate import MigrationReport, migrate

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 2.0
_ONLINE_PAUSE = 60

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """What there is to say about a server that is ready."""

    url: str
    workers: int
    database: Database
    postgres_version: str


class StopRequested(KeyboardInterrupt):
    """A signal arrived before there was anything to stop. KeyboardInterrupt is what asyncio lets pass."""


def serve(settings: Settings, *, ready: Callable[[Started], None], warnings: Sequence[str] = ()) -> None:
    """Run until told to stop, then stop what was started. `ready` is called when every worker can take connections.
    `warnings` are sentences for the log."""
    logs.configure(settings.log_level, settings.log_format, "supervisor")
    for sentence in warnings:
        _log.warning("%s", sentence)
    raise_file_limit()
    listening = bind(settings.host, settings.port)
    among = None
    try:
        among = coordination.bind(settings)
        with StopSignals() as signals, open_database(settings, _log.info) as database:
            migrated = _bring_up(settings, database)
            started = Started(listening.url, settings.num_workers, database, migrated.server_version)
            asyncio.run(_serve(settings, database, listening, among, signals, lambda: _say_ready(started, ready)))
    except StopRequested:
        pass
    finally:
        listening.close()
        if among is not None:
            among.close()
    _log.info("stopped")


def _say_ready(started: Started, ready: Callable[[Started], None]) -> None:
    _log.info("ready at %s", started.url, extra=logs.fields(url=started.url, workers=started.workers))
    ready(started)


async def _serve(
    settings: Settings,
    database: Database,
    listening: Listening,
    among: socket.socket | None,
    signals: StopSignals,
    ready: Callable[[], None],
) -> None:
    loop = asyncio.get_running_loop()
    name = coordination.server_name(settings, listening.port)
    gateway = None
    if among is not None:
        session = await coordination.begin(settings, database.dsn, name)
        gateway = coordination.gateway_for(settings, session, name, among)
    supervisor = Supervisor(settings, database.dsn, listening, server_id=name, gateway=gateway)

    def failed(error: Exception) -> None:
        loop.call_soon_threadsafe(supervisor.fail, error)

    def stop() -> None:
        # The handler runs between two steps of the loop, which may be asleep and has to be woken.
        loop.call_soon_threadsafe(supervisor.stop)

    online = asyncio.create_task(_finish_online(settings, database))
    try:
        with signals.told_to(stop), database.looked_after(_log.warning, failed):
            await supervisor.run(ready)
    finally:
        online.cancel()
        await asyncio.gather(online, return_exceptions=True)


async def _finish_online(settings: Settings, database: Database) -> None:
    """Run what is left of the online migrations beside the traffic; another server may be doing it already."""
    while True:
        try:
            if (await _migrate(settings, database, finish_online=True)).applied:
                _log.info("online migrations are complete")
            return
        except MigrationBusy as error:
            _log.info("online migrations go on in %d s: %s", _ONLINE_PAUSE, error.message)
        except Exception as error:
            # Serving does not depend on it. The next attempt goes on where this one ended.
            _log.warning("online migrations go on in %d s after an error: %s", _ONLINE_PAUSE, error)
        await asyncio.sleep(_ONLINE_PAUSE)


async def _migrate(settings: Settings, database: Database, *, finish_online: bool) -> MigrationReport:
    return await migrate(
        database.dsn,
        lock_timeout_ms=settings.migration_lock_timeout,
        connect_timeout=settings.connect_timeout,
        pgbouncer=settings.pgbouncer,
        report=_log.info,
        finish_online=finish_online,
    )


def _bring_up(settings: Settings, database: Database) -> MigrationReport:
    """Migrate what serving depends on. A configured PostgreSQL may come up later than we do."""
    give_up = time.monotonic() + settings.start_timeout / 1000
    pause, attempt = _FIRST_PAUSE, 1
    while True:
        try:
            return asyncio.run(_migrate(settings, database, finish_online=False))
        except DatabaseUnavailable as error:
            # A URL that the driver cannot read does not get better by waiting.
            hopeless = database.embedded is not None or isinstance(error.__cause__, ValueError)
            if hopeless or time.monotonic() + pause > give_up:
                raise
            _log.warning("waiting for PostgreSQL at %s (attempt %d): %s", database.shown_dsn, attempt, error.message)
        time.sleep(pause)
        pause, attempt = min(pause * 2, _LONGEST_PAUSE), attempt + 1


class StopSignals:
    """How the signals that stop the server are heard: as an exception while it starts, as a call while it serves."""

    def __init__(self) -> None:
        self._tell: Callable[[], None] | None = None
        self._heard = False

    def __enter__(self) -> StopSignals:
        heard = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            heard.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._arrived) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def told_to(self, tell: Callable[[], None]) -> Iterator[None]:
        """From now on, call this for each signal; afterwards, when all is being stopped, they mean nothing more."""
        self._tell = tell
        try:
            yield
        finally:
            self._tell, self._heard = None, True

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._tell is not None:
            _log.info("stopping" if not self._heard else "stopping at once")
            self._heard = True
            self._tell()
        elif not self._heard:
            self._heard = True
            raise StopRequested
