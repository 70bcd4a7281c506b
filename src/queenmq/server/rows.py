"""How a setting is declared: a dataclass field whose metadata holds its row of the settings table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from queenmq.server.kinds import MASK, POSTGRES_URL, Kind, redact_url

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Row:
    """What is known about one setting besides its value."""

    name: str
    section: str
    kind: Kind[Any]
    default: str
    unit: str
    doc: str
    secret: bool
    compute: Callable[[Mapping[str, str]], Any] | None
    aliases: tuple[str, ...] = ()

    def show(self, value: object) -> str | None:
        """The value as text that may be printed or logged."""
        if value is None:
            return None
        if self.kind is POSTGRES_URL:
            return redact_url(str(value))
        return MASK if self.secret else str(value)


def row(
    name: str,
    kind: Kind[T],
    default: D,
    *,
    section: str,
    doc: str,
    unit: str = "",
    secret: bool = False,
    compute: Callable[[Mapping[str, str]], D] | None = None,
    default_doc: str = "",
    aliases: tuple[str, ...] = (),
) -> T | D:
    """Declare a setting. The return type is what the field will hold; the value is the dataclass field itself.

    A `compute` function gives a default which depends on the machine; `default_doc` then says it in words.
    `aliases` are names that other servers of this family have for the same setting, in the same unit.
    """
    shown = default_doc or ("" if default is None else str(default))
    meta = Row(name, section, kind, shown, unit, doc, secret, compute, aliases)
    declared: Any = field(default=default, metadata={"row": meta}, repr=not secret)
    return declared  # type: ignore[no-any-return]
