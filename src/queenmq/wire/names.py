"""The rules for names that users choose: queues, partitions, groups, transactionIds, trace ids."""

from __future__ import annotations

import re
from typing import Final

MAX_NAME: Final = 255

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters and lone surrogates
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class InvalidValue(ValueError):
    """A value that a user sent and that is not allowed: which field, what was given, what is allowed."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        super().__init__(f"{field} must be {allowed}, not {_shown(given)}")
        self.field = field
        self.given = given
        self.allowed = allowed


def _shown(given: object) -> str:
    """As JSON has it, in ASCII and not at any length; a text between quotes."""
    if given is None or isinstance(given, bool):
        return {None: "null", True: "true", False: "false"}[given]
    text = given if isinstance(given, str) else repr(given)
    text = text if len(text) <= 60 else text[:57] + "..."
    return ascii(text) if isinstance(given, str) else text


def check_name(field: str, value: object, *, empty: bool = False, longest: int = MAX_NAME) -> None:
    """A name of a queue, partition, group, namespace or task."""
    if not _is_text(value, longest) or not (value or empty):
        least = 0 if empty else 1
        raise InvalidValue(field, value, f"a text of {least} to {longest} characters without control characters")


def check_transaction_id(field: str, value: object, *, longest: int = MAX_NAME) -> None:
    if not _is_text(value, longest):
        raise InvalidValue(field, value, f"a text of up to {longest} characters without control characters")


def check_uuid(field: str, value: object) -> None:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise InvalidValue(field, value, "a UUID")


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and not _FORBIDDEN.search(value)
