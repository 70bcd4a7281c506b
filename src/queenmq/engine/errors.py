"""Why the engine does not take or finish a request. Errors of storage pass through as they are.

EngineError
├── Overloaded     the worker holds as much as it may: come again later
└── Stopping       the worker is about to end: the request was not begun
"""

from __future__ import annotations


class EngineError(Exception):
    """One refusal: a machine code and a sentence."""

    code = "engine_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Overloaded(EngineError):
    code = "overloaded"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Stopping(EngineError):
    code = "stopping"
