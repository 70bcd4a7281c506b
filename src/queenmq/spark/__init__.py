"""Spark: read queues into DataFrames and streams, and write them back.

`session()` is the entrance: it finds a Java, starts Spark with settings that fit the machine and registers the data
source `queen`. Nothing here imports PySpark before it is called, so the server and the command line need neither it nor
the time it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkError", "session"]


def session(
    app: str = "queenmq", master: str | None = None, *, ui: bool = False, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running Spark session with the source `queen`, started when there is none.

    `master` is Spark's: `local[*]` unless spark-submit, spark-defaults.conf or `conf` name another. A name in `conf`
    wins over what would be chosen here. What cannot change in a running Spark (memory, master) counts only for the
    call that starts it.
    """
    if find_spec("pyspark") is None:
        raise SparkError(
            "Spark is not installed; install it with: pip install 'queenmq[spark]' (in a clone: pip install '.[spark]')"
        )
    from .sessions import start

    return start(app, master, ui=ui, conf=conf or {})
