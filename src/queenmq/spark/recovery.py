"""The Spark session of a run, and what to do when its Java process has died: forget it, so that another can be started.

PySpark keeps the connection to Java in class attributes and offers no way to drop it, since it takes Java's death for
its own. A pipeline at a checkpoint can go on in a new Java process, so they are reset here.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SparkSessions:
    """Sessions of this process: there is one at a time."""

    app: str
    master: str | None = None
    ui: bool = False
    conf: dict[str, str] = field(default_factory=dict)

    def open(self) -> SparkSession:
        with _own_interrupts():
            opened = session(self.app, self.master, ui=self.ui, conf=self.conf)
        from .sessions import leave_failures

        leave_failures(opened)
        return opened

    def lost(self, session: SparkSession) -> bool:
        """Whether it is dead; then the next one to be opened is another."""
        if _answers(session):
            return False
        _forget(session)
        return True

    def close(self) -> None:
        from pyspark.sql import SparkSession

        known = SparkSession._instantiatedSession
        if known is not None:
            with suppress(Exception):  # it may be dead already
                known.stop()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """PySpark takes Ctrl-C for itself when it starts, and would cancel the batch under way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _answers(session: SparkSession) -> bool:
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # whatever Py4J makes of a connection to nobody
        return False


def _forget(session: SparkSession) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):
        session.stop()
    with SparkContext._lock:
        gateway = SparkContext._gateway
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.kill()
            process.wait()
