"""What can go wrong between Spark and a queue, each with a code and one sentence that says what to do.

SparkError
├── JavaMissing        no Java 17 or newer, and no bundled one
├── OptionError        an option of the data source is missing, unknown or has a value that is not allowed
├── Unreachable        PostgreSQL cannot be reached, or refuses the credentials
├── NotReady           the database has no queenmq schema, or an older one, or not what a checkpoint refers to
├── DataLoss           messages were removed before they were read, by retention or with their queue
├── Unreadable         a payload cannot be decrypted with the key that was given
├── WriteRefused       the queue refused rows for good (bad names, a full queue, a payload that is not JSON)
├── PipelineError      a pipeline cannot run as it was asked to
│   └── PipelineBusy   another run has its place, for now
└── PipelineFailed     a pipeline failed, and was given up
"""

from __future__ import annotations

from difflib import get_close_matches


class SparkError(Exception):
    """One failure: a machine code and a sentence for people. It quotes no payload and no secret."""

    code = "spark_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        """Errors travel from Spark's Python workers to the driver by pickle."""
        return _remade, (type(self), self.message)


def _remade(kind: type[SparkError], message: str) -> SparkError:
    error = kind.__new__(kind)
    SparkError.__init__(error, message)
    return error


class JavaMissing(SparkError):
    code = "java_missing"


class OptionError(SparkError):
    """`given` is shown unless it may be a secret; then it is left out by the caller."""

    code = "bad_option"

    def __init__(self, option: str, given: str | None, allowed: str) -> None:
        what = "is missing" if given is None else f"is {given!r}"
        super().__init__(f"option {option} {what}; it must be {allowed}")
        self.option = option


class UnknownOption(OptionError):
    def __init__(self, option: str, known: list[str]) -> None:
        near = get_close_matches(option.lower(), [name.lower() for name in known], n=1)
        meant = next((name for name in known if near and name.lower() == near[0]), None)
        hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}"
        SparkError.__init__(self, f"option {option} is not one of the queen source; {hint}")
        self.option = option


class Unreachable(SparkError):
    code = "database_unreachable"


class NotReady(SparkError):
    code = "schema_not_ready"


class DataLoss(SparkError):
    code = "data_loss"
    WAY_OUT = ". To go on without them"
    """How the part of the message begins that says what helps."""


class Unreadable(SparkError):
    code = "payload_unreadable"


class WriteRefused(SparkError):
    code = "write_refused"


class PipelineError(SparkError):
    code = "pipeline_error"


class PipelineBusy(PipelineError):
    """Another run holds the id or the checkpoint. The same command may succeed later."""

    code = "pipeline_busy"


class PipelineFailed(SparkError):
    """A run that ended for a reason which is not in how it was asked for."""

    code = "pipeline_failed"
