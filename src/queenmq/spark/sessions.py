"""How Spark is started: which Java, how much memory, which settings, and what executors are told.

Settings come from three places and the more deliberate one wins: what the caller gives, what spark-submit or the
administrator's spark-defaults.conf say, and what is chosen here for the machine. Spark passes settings to a starting
JVM on its command line, which everyone on the machine can read; what may be secret is added after the start.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from .connecting import PGBOUNCER
from .errors import OptionError
from .java import java_home

# What an executor on another machine needs of the driver's environment, to reach the database, the server or the lake.
HANDED_ON = (
    *("DATABASE_URL", "PGPASSWORD", PGBOUNCER, "QUEEN_URL", "QUEEN_TOKEN", "QUEEN_ENCRYPTION_KEY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"),
)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
# Spark would divide the rows of a stream by the cores that it has. One that is restarted elsewhere must divide them as
# before, because the ids of written rows depend on it.
ADAPTIVE_STREAMS = "spark.sql.adaptive.streaming.stateless.enabled"
_UI = "spark.ui.enabled"
_REDACTION = "spark.redaction.regex"
_SPARKS_REDACTION = "(?i)secret|password|token|access[.]?key"
_SECRET_OF = "spark.kubernetes.executor.secretKeyRef."
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG = "QUEEN_SPARK_LOG"
_QUERIES = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_LEVELS = ("error", "warn", "info", "debug", "trace")
_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_PROPERTY = re.compile(r"^[ \t]*([^#!\s=:][^\s=:]*)[ \t]*[ \t=:][ \t]*(\S.*)$", re.MULTILINE)
_PRIVATE = re.compile(r"secret|password|token|key|credential|executorEnv", re.IGNORECASE)
_GIB = 1 << 30
_lock = threading.Lock()


def start(app: str, master: str | None, *, ui: bool, conf: Mapping[str, str]) -> SparkSession:
    """The running session, or one that is started; with the source registered."""
    with _lock:
        session = _running(conf) or _started(app, master, ui, conf)
    from .source import QueenDataSource

    session.dataSource.register(QueenDataSource)
    return session


def is_local(master: str) -> bool:
    """Whether the tasks run in the driver's process, or at least on its machine and in its environment."""
    return master.startswith("local")


def settings(master: str, environment: Mapping[str, str], memory: int) -> dict[str, str]:
    """What is chosen for this machine, before anybody else is asked. Nothing secret."""
    chosen = {
        _UI: "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        PUSHDOWN: "true",
        ADAPTIVE_STREAMS: "false",
    }
    if not is_local(master):
        return chosen
    cores = str(max(2, os.cpu_count() or 2))
    chosen |= {
        # A host whose name leads nowhere can still run Spark, and no port is open to others.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The default of 200 is for clusters: a stream keeps so many state stores, however small it is.
        "spark.sql.shuffle.partitions": cores,
    }
    if "SPARK_DRIVER_MEMORY" not in environment:
        chosen["spark.driver.memory"] = f"{heap(memory) >> 20}m"
    return chosen


def log_settings(environment: Mapping[str, str], java_options: str) -> dict[str, str]:
    """A line for what matters; or Spark's own log, as it is without us, for those who ask for a level of it."""
    level = environment.get(_LOG, "").lower()
    if not level:
        return {_JAVA_OPTIONS: f"{_LOGGING} {java_options}".strip()}
    if level not in _LEVELS:
        raise OptionError(f"{_LOG} (environment)", environment[_LOG], f"one of {', '.join(_LEVELS)}")
    return {"spark.log.level": level.upper(), **({_JAVA_OPTIONS: java_options} if java_options else {})}


def leave_failures(session: SparkSession) -> None:
    """For those who tell of failed queries themselves: Spark adds no line to that, unless its log is asked for."""
    if not os.environ.get(_LOG):
        log4j: Any = session._jvm and session._jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(_QUERIES, log4j.Level.OFF)


def heap(memory: int) -> int:
    """A quarter of the machine, 1 to 4 GiB: Python's workers and PostgreSQL want their share."""
    return min(max(memory // 4, _GIB), 4 * _GIB)


def machine_memory() -> int:
    """What this process may use: the machine's memory, or less in a container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min(found)


def handed_on(environment: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Settings that give executors elsewhere the credentials of this process, but for those they get as a secret."""
    names = [name for name in HANDED_ON if environment.get(name)]
    return {f"spark.executorEnv.{name}": environment[name] for name in names if _SECRET_OF + name not in given}


def hidden(pattern: str | None) -> str:
    """The pattern of settings whose values Spark never shows: somebody's own, or Spark's, and ours."""
    return f"{pattern or _SPARKS_REDACTION}|(?i:{'|'.join(HANDED_ON)})"


def public(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that may be on a command line."""
    return {name: value for name, value in settings.items() if not _PRIVATE.search(name)}


def defaults(environment: Mapping[str, str], spark_home: Path) -> dict[str, str]:
    """What spark-defaults.conf says; Spark would let settings of a caller, and so of ours, win over it."""
    folder = Path(environment.get("SPARK_CONF_DIR") or spark_home / "conf")
    try:
        text = (folder / "spark-defaults.conf").read_text()
    except OSError:
        return {}
    return {name: value.strip() for name, value in _PROPERTY.findall(text)}


def _running(conf: Mapping[str, str]) -> SparkSession | None:
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if session is None or session._sc._jsc is None:
        return None
    for name, value in {PUSHDOWN: "true", ADAPTIVE_STREAMS: "false", **conf}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _started(app: str, master: str | None, ui: bool, conf: Mapping[str, str]) -> SparkSession:
    by_submit = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    if by_submit:
        SparkContext._ensure_initialized()
    known = dict(SparkConf(_jvm=SparkContext._jvm).getAll()) if by_submit else defaults(os.environ, _spark_home())
    master = master or conf.get("spark.master") or known.get("spark.master") or "local[*]"
    asked = {"spark.app.name": app, **({_UI: "true"} if ui else {}), **conf, "spark.master": master}
    wanted = {**_without(settings(master, os.environ, machine_memory()), known), **asked}
    wanted[_REDACTION] = hidden(asked.get(_REDACTION) or known.get(_REDACTION))
    if not by_submit:
        wanted |= log_settings(os.environ, asked.get(_JAVA_OPTIONS) or known.get(_JAVA_OPTIONS, ""))
    with _environment(master):
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(public(wanted).items())))
        if not is_local(master):
            wanted = {**_without(handed_on(os.environ, {**known, **asked}), known), **wanted}
        return SparkSession.builder.config(map=dict(wanted)).getOrCreate()


def _without(settings: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in known}


def _spark_home() -> Path:
    return Path(str(_find_spark_home()))


@contextmanager
def _environment(master: str) -> Iterator[None]:
    """What a starting JVM, and Spark's own Python, find in the environment."""
    wanted = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local(master):
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    else:
        # Executors have a python3 of their own. The driver plans with the one of that name which it finds first.
        wanted["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if SparkContext._gateway is None:
        wanted["JAVA_HOME"] = str(java_home())
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
