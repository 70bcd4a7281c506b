"""What a failure inside Spark means: ours or Spark's, worth another try or not, and one sentence for people.

An error of the source or of a sink reaches the driver as text, a Python traceback inside a Java message inside another.
Ours are found in it by their names; of the rest, the last line of the innermost traceback says the most.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from . import errors
from .errors import PipelineError, PipelineFailed, SparkError, Unreachable

_OURS: Final = re.compile(r"queenmq\.spark\.errors\.(\w+): (.+)")
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:\w+\.)*(\S.*)")
_FRAMING: Final = re.compile(r"^\[\w+(?:\.\w+)*\] (?:Query \[.*?\] terminated with exception: )?")
_CALLED: Final = re.compile(r"^An error occurred while calling .*\n: (?:\w+\.)*")
_STATE: Final = re.compile(r" *SQLSTATE: \w{5}.*")
_LOGIN: Final = re.compile(r"(://[^\s/:@]*):[^\s/@]*@")
_LONGEST: Final = 500
# Spark's words for a query that is wrong in itself, by the names of the classes: they are imported only where Spark is.
_WRONG: Final = ("AnalysisException", "ParseException", "IllegalArgumentException")
# And for a checkpoint that another query has made.
_OTHERS: Final = re.compile(
    r"\[(?:STREAMING_STATEFUL_OPERATOR_\w+|STREAMING_CHECKPOINT_MISSING_METADATA_FILE|STATE_STORE_\w+_NOT_COMPATIBLE)\b"
)
# And for a place that cannot be written. A full disk is not one of them: there may be room again.
_NO_PLACE: Final = re.compile(
    r"\bPermission denied\b|\bRead-only file system\b|\bNot a directory\b|\bIs a directory\b|\bFile name too long\b"
    r"|\bParent path is not a directory\b|\bMkdirs failed to create\b|\bmkdir of \S+ failed\b"
    r"|\bAccessDenied\w*|\bACCESS_DENIED\b|\bNO_SUCH_BUCKET\b|\bNoSuchBucket\b"
)
_NO_PLACE_NUMBERS: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
)


def final(error: BaseException) -> SparkError | None:
    """The error that ends a run, in our words. None when another try may help."""
    known = _ours(error)
    if known is None and _has_no_place(error):
        return PipelineFailed(f"a place cannot be used: {sentence(error)}; see to it, then start this again")
    if known is None and _OTHERS.search(str(error)):
        return PipelineError(f"the checkpoint is that of another query; give another one ({sentence(error)})")
    if known is None and type(error).__name__ in _WRONG:
        return PipelineError(sentence(error))
    return None if isinstance(known, Unreachable) else known


def _ours(error: BaseException) -> SparkError | None:
    """The error of ours that this one is or quotes."""
    if isinstance(error, SparkError):
        return error
    for name, said in _OURS.findall(str(error)):
        kind = getattr(errors, name, SparkError)
        made: SparkError = kind.__new__(kind)
        SparkError.__init__(made, said.strip())
        return made
    return None


def _has_no_place(error: BaseException) -> bool:
    """Whether files cannot be written, and will not be by trying again."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NO_PLACE_NUMBERS
    return _NO_PLACE.search(str(error)) is not None


def sentence(error: BaseException) -> str:
    """What went wrong, on one line, without logins."""
    if isinstance(error, SparkError):
        return _safe(error.message)
    text = str(error).strip()
    if raised := _RAISED.findall(text):
        return _safe(raised[-1])
    said = _CALLED.sub("", text)
    first = next((line for line in said.splitlines() if line.strip()), "")
    while (shorter := _FRAMING.sub("", first)) != first:
        first = shorter
    first = _STATE.sub("", first)
    if said != text:  # Java's own error, with its name
        return _safe(first)
    return _safe(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _safe(text: str) -> str:
    line = _LOGIN.sub(r"\1@", " ".join(text.split()))
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
