"""What is found in the texts in which failures arrive from Spark's processes."""

from __future__ import annotations

import pytest

from queenmq.spark.errors import DataLoss, PipelineError, PipelineFailed, SparkError, Unreachable, WriteRefused
from queenmq.spark.failures import final, sentence

STREAM = """[STREAM_FAILED] Query [id = d3ca6ffc, runId = f2ed02a8] terminated with exception: [{condition}] Failed \
when the Python streaming data source performed planPartitions: Traceback (most recent call last):
  File "source.py", line 644, in partitions
    raise error
{raised}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = d3ca6ffc, runId = f2ed02a8]
Current State: ACTIVE
Thread State: RUNNABLE
"""


class StreamingQueryException(Exception):
    """Named as Spark's."""


class ParseException(Exception):
    """Named as Spark's."""


def failed(raised: str) -> StreamingQueryException:
    return StreamingQueryException(STREAM.format(condition="PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", raised=raised))


@pytest.mark.parametrize("kind", [DataLoss, WriteRefused])
def test_an_error_of_ours_is_found_in_what_spark_says(kind: type[SparkError]) -> None:
    found = final(failed(f"queenmq.spark.errors.{kind.__name__}: messages 3 to 9 of orders are gone"))
    assert type(found) is kind
    assert found.message == "messages 3 to 9 of orders are gone"


def test_an_error_of_ours_that_this_version_does_not_know_is_ours_all_the_same() -> None:
    found = final(failed("queenmq.spark.errors.Unheard: of"))
    assert found is not None
    assert found.message == "of"


def test_a_query_that_is_wrong_in_itself_is_not_worth_another_try() -> None:
    found = final(ParseException("[PARSE_SYNTAX_ERROR] Syntax error at or near 'slect'. SQLSTATE: 42601\n== SQL =="))
    assert isinstance(found, PipelineError)
    assert found.message == "ParseException: Syntax error at or near 'slect'."


@pytest.mark.parametrize(
    "condition",
    [
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
        "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    ],
)
def test_a_checkpoint_of_another_query_is_not_worth_another_try(condition: str) -> None:
    said = (
        f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [{condition}] It is other. SQLSTATE: X"
    )
    found = final(StreamingQueryException(said))
    assert isinstance(found, PipelineError)
    assert found.message.startswith("the checkpoint is that of another query; give another one (StreamingQuery")


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("PostgreSQL cannot be reached: connection refused"),
        failed("queenmq.spark.errors.Unreachable: PostgreSQL cannot be reached: connection refused"),
        failed("queenmq.storage.errors.DatabaseUnavailable: connection refused"),
        StreamingQueryException("Python worker failed to connect back."),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_what_may_pass_is_worth_another_try(error: Exception) -> None:
    assert final(error) is None


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied", "/data/lake"),
        OSError(30, "Read-only file system", "/data/lake"),
        NotADirectoryError(20, "Cannot create directory '/data/lake/_queen': Not a directory"),
        failed("PermissionError: [Errno 13] Failed to open local file '/data/lake/x'. Detail: Permission denied"),
        failed("OSError: [Errno 30] Read-only file system: '/data/lake'"),
        failed("OSError: When creating key 'x': AWS Error ACCESS_DENIED during PutObject operation: Access Denied"),
        RuntimeError("An error occurred while calling o5.start.\n: java.io.IOException: mkdir of file:/lake/x failed"),
        RuntimeError("An error occurred while calling o5.create.\n: ...: Parent path is not a directory: file:/x"),
    ],
)
def test_a_place_that_cannot_be_written_is_not_worth_another_try(error: Exception) -> None:
    found = final(error)
    assert isinstance(found, PipelineFailed)
    assert found.message.startswith("a place cannot be used: ")


def test_a_full_disk_may_pass() -> None:
    assert final(OSError(28, "No space left on device")) is None
    assert final(failed("OSError: [Errno 28] No space left on device")) is None


def test_of_a_traceback_the_last_line_is_the_sentence() -> None:
    assert sentence(failed("queenmq.storage.errors.DatabaseUnavailable: connection refused")) == (
        "DatabaseUnavailable: connection refused"
    )


def test_the_frames_around_a_java_message_are_left_out() -> None:
    error = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted. SQLSTATE: XXKST\n== More =="
    )
    assert sentence(error) == "StreamingQueryException: Job aborted."


def test_of_an_error_in_java_its_first_line_is_the_sentence() -> None:
    said = "An error occurred while calling o5.count.\n: org.apache.spark.SparkException: No file x\n\tat y"
    error = RuntimeError(said)
    assert sentence(error) == "SparkException: No file x"


def test_a_failure_without_words_is_called_by_its_name() -> None:
    assert sentence(TimeoutError()) == "TimeoutError"


def test_logins_are_not_repeated() -> None:
    said = sentence(RuntimeError("cannot reach postgresql://ann:hunter2@db.example:5432/shop"))
    assert said == "RuntimeError: cannot reach postgresql://ann@db.example:5432/shop"


def test_a_long_failure_is_cut() -> None:
    assert len(sentence(RuntimeError("x" * 10_000))) == 500
