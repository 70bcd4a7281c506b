"""What of Spark's log reaches the terminal: lines, no stacks, unless somebody asks for them."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenmq.spark import sessions
from queenmq.spark.errors import OptionError

PROPERTIES = Path(sessions.__file__).with_name("log4j2.properties")
STACK = "java.io.IOException: no\n\tat org.apache.spark.A.b(A.scala:1)\nCaused by: java.io.EOFException"


class Log:
    """The running log of Spark's Java process, asked what it would show."""

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark._jvm
        self._java = java
        self._context = java.org.apache.logging.log4j.LogManager.getContext(False)
        self._appender = self._context.getConfiguration().getAppender("stderr")

    def shown(self, level: str, name: str, message: str, thrown: str | None = None) -> str | None:
        """The line, without its time; None when it is not shown."""
        log4j = self._java.org.apache.logging.log4j
        asked = log4j.Level.valueOf(level)
        if not self._context.getLogger(name).isEnabled(asked):
            return None
        made = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName(name).setLevel(asked)
        made = made.setMessage(log4j.message.SimpleMessage(message))
        if thrown is not None:
            made = made.setThrown(self._java.java.lang.RuntimeException(thrown))
        event = made.build()
        if self._appender.getFilter().filter(event).toString() == "DENY":
            return None
        return str(self._appender.getLayout().toSerializable(event))[len("25/01/31 12:00:00 ") :]

    def level(self, name: str, level: str) -> None:
        log4j = self._java.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(name, log4j.Level.valueOf(level))


@pytest.fixture(scope="module")
def log(spark: SparkSession) -> Log:
    return Log(spark)


def test_every_logger_of_the_settings_is_there(spark: SparkSession) -> None:
    java: Any = spark._jvm
    package = "org.apache.spark.sql.execution.streaming.state"
    names = re.findall(r"^logger\.\w+\.name = (\S+)$", PROPERTIES.read_text(), re.MULTILINE)
    assert len(names) > 5
    assert package in names, "its logger has the class and an id for a name"
    names[names.index(package)] = f"{package}.HDFSBackedStateStoreProvider"
    for name in names:
        java.java.lang.Class.forName(name, False, java.java.lang.Thread.currentThread().getContextClassLoader())


def test_an_event_is_one_line(log: Log) -> None:
    network = "org.apache.spark.network.Client"
    assert log.shown("WARN", network, "no connection") == "WARN Client: no connection\n"
    assert log.shown("ERROR", network, "no connection", STACK) == (
        "ERROR Client: no connection java.lang.RuntimeException: java.io.IOException: no\n"
    )
    assert log.shown("WARN", network, f"lost: {STACK}") == "WARN Client: lost: java.io.IOException: no\n"
    assert log.shown("INFO", network, "connected") is None
    for end in (" \t", "\n", " \t\r\n \n", "\n\n more \n"):
        assert log.shown("WARN", network, f" no  connection{end}") == "WARN Client:  no  connection\n", repr(end)


def test_a_long_run_of_blanks_does_not_stop_the_program(log: Log) -> None:
    """A pattern that looks at such a run again from each of its blanks would take an hour for this one."""
    message = f"a{' ' * 400_000}b"
    shown: list[str | None] = []
    asked = Thread(target=lambda: shown.append(log.shown("WARN", "x.Client", message)), daemon=True)
    asked.start()
    asked.join(60)
    assert shown == [f"WARN Client: {message}\n"]


def test_a_stream_that_fails_is_one_line(log: Log) -> None:
    query = "Query [id = d3ca6ffc, runId = f2ed02a8] terminated with error"
    name = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
    said = log.shown("ERROR", name, query, STACK)
    assert said == f"ERROR MicroBatchExecution: {query} java.lang.RuntimeException: java.io.IOException: no\n"


def test_a_runner_that_tells_of_failures_by_itself_needs_no_line(
    log: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
    with monkeypatch.context() as asked:
        asked.setenv("QUEEN_SPARK_LOG", "warn")
        sessions.leave_failures(spark)
    assert log.shown("ERROR", name, "Query failed") is not None
    sessions.leave_failures(spark)
    try:
        assert log.shown("ERROR", name, "Query failed") is None
    finally:
        log.level(name, "ERROR")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("executor.Executor", "Exception in task 0.0 in stage 0.0 (TID 0)"),
        ("util.Utils", "Aborting task"),
        (
            "scheduler.TaskSetManager",
            "[queryId = 27302] [batchId = 0] Lost task 0.0 in stage 1.0 (TID 2) (192.0.2.2 executor driver): org."
            "apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker"
            ': Traceback (most recent call last):\n  File "a.py", line 1, in b\n',
        ),
        ("scheduler.TaskSetManager", "Task 0 in stage 0.0 failed 1 times; aborting job"),
        ("sql.execution.datasources.v2.WriteToDataSourceV2Exec", "Data source write support x@2 is aborting."),
        ("sql.execution.datasources.v2.AppendDataExec", "Data source write support x@2 aborted."),
        ("sql.execution.datasources.v2.DataWritingSparkTask", "Aborted commit for partition 0 (task 2, attempt 0)"),
    ],
)
def test_what_the_error_of_the_job_says_is_not_said_before(log: Log, name: str, message: str) -> None:
    assert log.shown("ERROR", f"org.apache.spark.{name}", message, STACK) is None


def test_a_task_that_was_lost_with_its_executor_is_told(log: Log) -> None:
    said = "Lost task 0.0 in stage 1.0 (TID 2) (192.0.2.2 executor 1): ExecutorLostFailure (executor 1 exited)"
    shown = log.shown("WARN", "org.apache.spark.scheduler.TaskSetManager", said)
    assert shown == f"WARN TaskSetManager: {said}\n"


class TestSettings:
    def test_what_is_said_is_chosen_here_and_the_callers_java_options_come_after(self) -> None:
        [(name, value)] = sessions.log_settings({}, "-Xss4m").items()
        assert name == "spark.driver.extraJavaOptions"
        assert value == f"-Dlog4j2.configurationFile={PROPERTIES.as_uri()} -Xss4m"

    def test_who_asks_for_a_level_gets_sparks_own_log(self) -> None:
        assert sessions.log_settings({"QUEEN_SPARK_LOG": "Warn"}, "") == {"spark.log.level": "WARN"}
        both = sessions.log_settings({"QUEEN_SPARK_LOG": "debug"}, "-Xss4m")
        assert both == {"spark.log.level": "DEBUG", "spark.driver.extraJavaOptions": "-Xss4m"}

    def test_a_level_that_is_none_is_refused(self) -> None:
        with pytest.raises(OptionError, match=r"QUEEN_SPARK_LOG \(environment\) is 'loud'; it must be one of error, "):
            sessions.log_settings({"QUEEN_SPARK_LOG": "loud"}, "")
