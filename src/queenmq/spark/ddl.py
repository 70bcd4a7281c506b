"""Whether a text is a type in DDL, such as `STRUCT<total DOUBLE, tags ARRAY<STRING>>`.

Only Spark's own parser makes a schema of it, in Java, where the text is a part of a longer one; its error then quotes
that, and a place in it that means nothing to the user. So what it would refuse is found before, as far as it matters:
the types that can be parsed, nested in each other. What follows another type is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"(?P<blank>\s+|--[^\n]*|/\*.*?\*/)|(?P<word>[0-9A-Za-z_]+)|(?P<name>`(?:[^`]|``)+`)"
    r"""|(?P<text>'(?:[^'\\]|\\.|'')*')|(?P<quoted>"(?:[^"\\]|\\.|"")*")|(?P<sign>[<>(),:])""",
    re.DOTALL,
)
_SIMPLE: Final = (
    *("string", "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"),
    *("float", "real", "double", "decimal", "dec", "numeric"),
)
_OTHER: Final = (
    *("date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval", "char", "character", "varchar"),
    *("binary", "void", "variant", "geometry", "geography"),
)
"""Types of Spark that payloads are not parsed into; the error that says so comes later."""
_END: Final = ("end", "")
Token = tuple[str, str]


class NotDdl(ValueError):
    """The text is no type."""


def check_type(text: str) -> None:
    """Raises NotDdl."""
    parser = _Parser([*_tokens(text), _END])
    try:
        parser.type()
        parser.expect(_END)
    except RecursionError:
        raise NotDdl from None


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise NotDdl
        place = found.end()
        if found.lastgroup != "blank":
            yield str(found.lastgroup), found[0].lower()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0

    def type(self) -> None:
        kind, word = self._taken()
        if kind == "word" and word in ("array", "map", "struct"):
            self._nested(word)
        elif kind == "word" and word in _SIMPLE:
            self._simple()
        elif kind == "word" and word in _OTHER:
            self._leave()
        else:
            raise NotDdl

    def expect(self, wanted: Token) -> None:
        if self._taken() != wanted:
            raise NotDdl

    def _fields(self) -> None:
        self._field()
        while self._skip(","):
            self._field()

    def _field(self) -> None:
        if self._taken()[0] not in ("word", "name", "quoted"):
            raise NotDdl
        self._skip(":")
        self.type()
        if self._skip("not"):
            self.expect(("word", "null"))
        if self._skip("comment") and self._taken()[0] not in ("text", "quoted"):
            raise NotDdl

    def _nested(self, word: str) -> None:
        self.expect(("sign", "<"))
        if word == "struct":
            if self._tokens[self._place] != ("sign", ">"):
                self._fields()
        else:
            self.type()
            if word == "map":
                self.expect(("sign", ","))
                self.type()
        self.expect(("sign", ">"))

    def _simple(self) -> None:
        """The digits of a DECIMAL, or the collation of a STRING."""
        if self._skip("("):
            while self._tokens[self._place][0] == "word":
                self._taken()
                self._skip(",")
            self.expect(("sign", ")"))
        if self._skip("collate"):
            self._taken()

    def _leave(self) -> None:
        depth = 0
        while self._tokens[self._place] != _END:
            sign = self._tokens[self._place][1]
            if not depth and sign in (",", ">"):
                return
            depth += {"(": 1, ")": -1}.get(sign, 0)
            self._place += 1

    def _skip(self, text: str) -> bool:
        found = self._tokens[self._place] in (("word", text), ("sign", text))
        self._place += found
        return found

    def _taken(self) -> Token:
        token = self._tokens[self._place]
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token
