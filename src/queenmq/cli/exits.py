"""Exit codes: scripts can tell failures apart without reading the sentence."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What each exit code of `queen` means."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "Done, or stopped in good order."
    UNEXPECTED = 1, "A defect in queenmq, which shows a traceback (please report it), or workers that do not get ready."
    USAGE = 2, "The command line or the settings are wrong. Nothing was started."
    UNREACHABLE = 3, "PostgreSQL cannot be reached, or it refuses the credentials."
    SCHEMA = 4, "The database's schema was made by a newer or different queenmq than this one."
    EMBEDDED = 5, "The embedded PostgreSQL cannot start, or cannot be started again."
    DATABASE = 6, "PostgreSQL refused or failed to do what was asked."
    PROBLEMS = 7, "`queen db check` found problems."
    LISTEN = 8, "The address or port to listen on cannot be used. Nothing was started."
    PIPELINE = 9, "A pipeline failed, or has not stopped in time."
    DIFFERENCES = 10, "`queen pipeline run backfill-check` found differences."
    SPARK = 11, "Spark is not installed, or there is no Java for it."
    BUSY = 75, "Another run of the pipeline, or at its checkpoint, is alive: try again later."
    INTERRUPTED = 130, "Ctrl-C ended the command. `queen serve` stops in good order instead, with 0."
