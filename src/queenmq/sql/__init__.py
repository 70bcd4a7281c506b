"""The SQL of queenmq as files: numbered migrations, procedures that are replaced as a whole, and named queries.

Python reads them and never builds SQL itself. A query file holds statements separated by a line `-- name: <name>`;
comments under that line say what the statement is for. A migration file is one transaction, or an online migration:
steps separated by lines `-- step: <kind> <what>`, which run beside traffic (queenmq.storage.online). A line
`-- requires: <n>` in a migration says that servers of a version below n cannot work with it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final, Literal, cast

VERSION: Final = 3
"""The version of the procedures and of what this code needs from the schema. It rises with every release that changes
procedures, and a database never goes back to lower ones. The servers before it had none, which counts as 1."""

Kind = Literal["transaction", "alone", "index", "batches"]
_NAME: Final = re.compile(r"^-- name: *([a-z0-9_]+) *$", re.MULTILINE)
_STEP: Final = re.compile(r"^-- step: (transaction|alone|index|batches) (.+?) *$", re.MULTILINE)
_REQUIRES: Final = re.compile(r"^-- requires: (\d+) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an online migration. `subject` is the index or table that it works on, or what it does."""

    kind: Kind
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Script:
    """One SQL file: a migration (with its number) or a procedure file (number 0)."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of an online migration; none for one that is a single transaction."""
        parts = _STEP.split(self.text)
        found = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        return tuple(Step(cast(Kind, kind), subject, text.strip()) for kind, subject, text in found)

    @property
    def requires(self) -> int | None:
        """The lowest version of a server that can work with it; None when every earlier one can."""
        found = _REQUIRES.search(self.text)
        return int(found[1]) if found else None


def _scripts(folder: str) -> list[tuple[str, str]]:
    entries = sorted(resources.files(__package__).joinpath(folder).iterdir(), key=lambda entry: entry.name)
    return [
        (entry.name.removesuffix(".sql"), entry.read_text("utf-8")) for entry in entries if entry.name.endswith(".sql")
    ]


@cache
def migrations() -> tuple[Script, ...]:
    """The migrations in order. A number is used once and may be left out: branches choose theirs independently."""
    found = tuple(Script(int(name.split("_", 1)[0]), name, text) for name, text in _scripts("migrations"))
    numbers = [script.number for script in found]
    if numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise ValueError(f"migration numbers do not rise from 1: {[script.name for script in found]}")
    return found


@cache
def procedures() -> tuple[Script, ...]:
    """The procedure files in the order in which they must be applied."""
    return tuple(Script(0, name, text) for name, text in _scripts("procedures"))


def is_checkout() -> bool:
    """Does this code run from a checkout? Its procedures then change under one version, those of a package do not."""
    return Path(__file__).parents[3].joinpath("pyproject.toml").is_file()


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
