"""A payload as the flat list of tokens that Spark's JSON parser (Jackson) walks over.

Spark goes on at the next token when a value does not fit, so what it makes of the rest of a message depends on the
tokens and on the field name that is current at each of them, not on the tree.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["{", "}", "[", "]", "name", "string", "int", "float", "true", "false", "null", "endless", ""]
"""`endless` is a number with more digits than Jackson reads; without a kind is the token after such a one."""
MOST_DIGITS: Final = 1000
MOST_DEEP: Final = 1000
"""Jackson refuses longer numbers, and texts that are nested deeper."""
_TOKEN: Final = re.compile(
    r"""[ \t\n\r]*+(?: (?P<mark>[{}\[\],:]) | "(?P<string>(?:[^"\\]++|\\.)*+)" | (?P<word>true|false|null)
    | (?P<number>-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?) )""",
    re.VERBOSE | re.DOTALL,
)


class CorruptPayload(ValueError):
    """Spark's parser cannot read this text at all."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    field: str | None
    """The name of the field that is current here; None in an array and at the root."""
    text: str = ""


def tokens(payload: str) -> list[Token]:
    """The tokens of a JSON text, which the queue has checked when it was pushed. Raises CorruptPayload."""
    found: list[Token] = []
    fields: list[str | None] = [None]
    """The current name of each open object or array."""
    names = [False]
    """For each of them, whether the next string is a name."""
    place, end = 0, len(payload.rstrip(" \t\n\r"))
    while place < end:
        match = _TOKEN.match(payload, place)
        if match is None:
            raise CorruptPayload
        place = match.end()
        group = match.lastgroup
        text = match[group] if group else ""
        if group == "mark":
            _mark(text, found, fields, names)
        elif group == "string" and names[-1]:
            fields[-1], names[-1] = _unescaped(text), False
            found.append(Token("name", fields[-1], fields[-1] or ""))
        elif group == "string":
            found.append(Token("string", fields[-1], _unescaped(text)))
        elif group == "word":
            found.append(Token(text, fields[-1], text))  # type: ignore[arg-type]
        else:
            found.append(_number(text, fields[-1]))
    return found


def _mark(mark: str, found: list[Token], fields: list[str | None], names: list[bool]) -> None:
    if mark in "{[":
        found.append(Token(mark, fields[-1]))  # type: ignore[arg-type]
        fields.append(None)
        names.append(mark == "{")
        if len(fields) > MOST_DEEP + 1:
            raise CorruptPayload
    elif mark in "}]":
        fields.pop()
        names.pop()
        if not fields:
            raise CorruptPayload
        found.append(Token(mark, fields[-1]))  # type: ignore[arg-type]
    elif mark == ",":
        names[-1] = fields[-1] is not None  # an object that has a value has a current name, an array never has one


def _number(text: str, field: str | None) -> Token:
    if len(text) > MOST_DIGITS and sum(map(str.isdigit, text)) > MOST_DIGITS:
        return Token("endless", field)
    return Token("float" if set(".eE") & set(text) else "int", field, text)


def _unescaped(text: str) -> str:
    return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text
