"""The SQL of queenmq as files: numbered migrations, procedures that are replaced as a whole, and named queries.

Python reads them and never builds SQL itself. A query file holds statements separated by a line `-- name: <name>`;
comments under that line say what the statement is for.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

_NAME: Final = re.compile(r"^-- name: *([a-z0-9_]+) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One SQL file: a migration (with its number) or a procedure file (number 0)."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def _scripts(folder: str) -> list[tuple[str, str]]:
    entries = sorted(resources.files(__package__).joinpath(folder).iterdir(), key=lambda entry: entry.name)
    return [
        (entry.name.removesuffix(".sql"), entry.read_text("utf-8")) for entry in entries if entry.name.endswith(".sql")
    ]


@cache
def migrations() -> tuple[Script, ...]:
    """The migrations in order; numbers are consecutive from 1."""
    found = tuple(Script(int(name.split("_", 1)[0]), name, text) for name, text in _scripts("migrations"))
    if [script.number for script in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migration numbers are not consecutive: {[script.name for script in found]}")
    return found


@cache
def procedures() -> tuple[Script, ...]:
    """The procedure files in the order in which they must be applied."""
    return tuple(Script(0, name, text) for name, text in _scripts("procedures"))


@cache
def _queries() -> dict[str, str]:
    found: dict[str, str] = {}
    for _, text in _scripts("queries"):
        parts = _NAME.split(text)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"two queries are named {name}")
            found[name] = body.strip().removesuffix(";")
    return found


def query(name: str) -> str:
    """The text of one named query."""
    return _queries()[name]
