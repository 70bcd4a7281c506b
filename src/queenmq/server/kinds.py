"""The kinds of value a setting can have.

A kind turns the text of an environment variable into a typed value, or refuses it with the phrase that says what would
have been allowed. Parsing is strict: nothing is rounded, guessed or silently replaced by a default.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import parse_qs, urlsplit

from queenmq.storage.url import problem

T = TypeVar("T")

MASK = "****"


class NotAllowedError(ValueError):
    """The text is not a value of this kind; the message completes the sentence "it must be ..."."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How to read one kind of value, and how to name it in documentation."""

    name: str
    allowed: str
    parse: Callable[[str], T]


def integer(minimum: int, maximum: int) -> Kind[int]:
    """A whole number in decimal digits, within bounds that are both included."""
    allowed = f"{minimum} to {maximum}"

    def parse(text: str) -> int:
        # int() alone would also take "1_000", " 7 " and digits of other scripts.
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or not minimum <= int(text) <= maximum:
            raise NotAllowedError(f"a whole number from {allowed}")
        return int(text)

    return Kind("integer", allowed, parse)


def number(minimum: float, maximum: float) -> Kind[float]:
    """A decimal number within bounds that are both included."""
    allowed = f"{minimum:g} to {maximum:g}"

    def parse(text: str) -> float:
        if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text) or not minimum <= float(text) <= maximum:
            raise NotAllowedError(f"a number from {allowed}")
        return float(text)

    return Kind("number", allowed, parse)


def choice(*values: str) -> Kind[str]:
    """One of these words."""
    allowed = ", ".join(f"`{value}`" for value in values)

    def parse(text: str) -> str:
        if text not in values:
            raise NotAllowedError(f"one of {', '.join(values)}")
        return text

    return Kind("choice", allowed, parse)


def _parse_boolean(text: str) -> bool:
    if text.lower() not in {"true", "false", "1", "0"}:
        raise NotAllowedError("true or false")
    return text.lower() in {"true", "1"}


def _parse_text(text: str) -> str:
    if any(ord(character) < 32 for character in text):
        raise NotAllowedError("text without control characters")
    return text


def _parse_path(text: str) -> Path:
    path = Path(_parse_text(text)).expanduser()
    if path.exists() and not path.is_dir():
        raise NotAllowedError("a directory, but a file is there")
    return path if path.is_absolute() else Path.cwd() / path


def _parse_directory(text: str) -> Path:
    path = _parse_path(text)
    if not path.is_dir():
        raise NotAllowedError("a directory that exists")
    return path


def _parse_postgres_url(text: str) -> str:
    example = "a URL like postgresql://user:password@host:5432/database"
    if "#" in text:
        raise NotAllowedError(f"{example}, where a # in the user or password is written %23")
    if any(character.isspace() for character in text):
        raise NotAllowedError(f"{example}, without spaces")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise NotAllowedError(example) from None
    if parts.scheme not in {"postgres", "postgresql"}:
        raise NotAllowedError(example)
    addresses = parts.netloc.rpartition("@")[2]
    if not addresses and not parse_qs(parts.query).get("host"):
        raise NotAllowedError(f"{example}; it names no host")
    for address in filter(None, addresses.split(",")):
        _check_address(address, example)
    if (wrong := problem(text)) is not None:
        raise NotAllowedError(f"{example}; {wrong}")
    return text


def _check_address(address: str, example: str) -> None:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", address)
    if match is None:
        # Never quoted here: with an unescaped / or @ in it, a password ends up in what looks like the address.
        raise NotAllowedError(f"{example}; its host and port cannot be read")
    if match[2] is not None and not 1 <= int(match[2]) <= 65535:
        raise NotAllowedError(f"{example}; its port must be 1 to 65535")


def redact_url(text: str) -> str:
    """The text with every password in it replaced, also when it is not a well-formed URL."""
    text = re.sub(r"^((?>(?:[a-zA-Z]+://)?)[^:@?]*):.*@", rf"\1:{MASK}@", text, flags=re.DOTALL)
    # After an & in a password that is not escaped, what looks like a parameter is the rest of it.
    value = r"('[^']*'|[^&\s]*(&[^=&\s]*(?=&|$))*)"
    return re.sub(rf"(password\s*=\s*){value}", rf"\1{MASK}", text, flags=re.IGNORECASE)


BOOLEAN = Kind("boolean", "`true`, `false`, `1`, `0`", _parse_boolean)
TEXT = Kind("text", "any text", _parse_text)
PATH = Kind("path", "a directory, made when missing", _parse_path)
DIRECTORY = Kind("path", "an existing directory", _parse_directory)
POSTGRES_URL = Kind("URL", "postgres:// or postgresql://", _parse_postgres_url)
PORT = integer(1, 65535)
