"""Decode a JSON body into its struct, and say in our words what is wrong with one that does not fit.

The decoder's complaint names the place as a path and the types in its own words. Here that becomes a field, a sentence,
and where older servers had a fixed phrase for the case, the sentence begins with it, because clients look for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

import msgspec

from ...wire.payload import MAX_DEPTH
from ..errors import InvalidField, InvalidJson
from .places import field_at, field_deeper_than, first_not_unicode
from .spelling import Shape

Body = TypeVar("Body", bound=msgspec.Struct)

_MISMATCH: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_OUT_OF_RANGE: Final = re.compile(r"out of range(?: - at `\$\.?(.*)`)?", re.DOTALL)
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_INDEX: Final = re.compile(r"\[\d+\]")
_UNKNOWN: Final = "Object contains unknown field"
_SPELT: Final = 1024 * 1024
"""Bytes of a body up to which names are looked at before it is clear how many items it has."""
_VERY_DEEP: Final = 300
"""Deeper than any allowed payload stands in any body, and not as deep as the decoder can follow."""

_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}


UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Decoder(Generic[Body]):
    """Decodes one kind of body. `known` takes no fields but its own, `any_names` ignores others. `phrases` by field,
    with `[]` for any index and "" for the body itself."""

    def __init__(self, known: type[Body], any_names: type[Body], shape: Shape, phrases: Mapping[str, str]) -> None:
        self.known: Final = msgspec.json.Decoder(known).decode
        self._any_names = msgspec.json.Decoder(any_names).decode
        self._shape = shape
        self._phrases = phrases

    def __call__(self, body: bytes, max_depth: int = MAX_DEPTH) -> tuple[Body, bool]:
        """The decoded body, and whether it has fields that are not known: then `check_names` is to be asked, once it is
        clear that the body is not too large. An empty body is an empty object."""
        try:
            return self.known(body or b"{}"), False
        except UNDECODABLE as error:
            return self.otherwise(error, body, max_depth)

    def otherwise(self, error: Exception, body: bytes, max_depth: int) -> tuple[Body, bool]:
        """The same, after `known` has raised this."""
        if body.isspace():
            return self.known(b"{}"), False
        if _UNKNOWN not in str(error):
            raise explain(error, body, self._phrases, max_depth) from None
        try:
            return self._any_names(body), True
        except UNDECODABLE as second:
            if len(body) <= _SPELT:  # what is missing may be there under a name that was misspelt
                self.check_names(body)
            raise explain(second, body, self._phrases, max_depth) from None

    def check_names(self, body: bytes) -> None:
        """Raises InvalidField for a name that was misspelt, or what is to be answered to one that is not Unicode."""
        try:
            self._shape.check(body)
        except UnicodeDecodeError as error:
            raise explain(error, body, self._phrases, MAX_DEPTH) from None


def explain(error: Exception, body: bytes, phrases: Mapping[str, str], max_depth: int) -> InvalidField | InvalidJson:
    """What to answer when the decoder raised this."""
    if isinstance(error, RecursionError):
        field = field_deeper_than(body, _VERY_DEEP)
        return InvalidField(f"{field or 'the body'} must be JSON nested at most {max_depth} deep", field=field)
    if isinstance(error, msgspec.ValidationError):
        return invalid(str(error), phrases)
    return _unreadable(error, body)


def _unreadable(error: Exception, body: bytes) -> InvalidField | InvalidJson:
    """Something is not Unicode, or not JSON: what comes first is named."""
    found = _BYTE.search(str(error))
    stopped = int(found[1]) if found else None
    odd = first_not_unicode(body)
    if odd is not None and (stopped is None or odd[0] <= stopped):
        field, what = field_at(body, odd[0]), f"{odd[1]} (byte {odd[0]})"
        if field is None:
            return InvalidJson(f"Invalid JSON: {what}")
        return InvalidField(f"{field} must be Unicode in UTF-8: {what}", field=field)
    if isinstance(error, UnicodeDecodeError):
        return InvalidJson("Invalid JSON: the body is not valid UTF-8")
    field = None if stopped is None else field_at(body, stopped)
    return InvalidJson(f"Invalid JSON: {error}" + (f", in {field}" if field else ""), field=field)


def missing(field: str, phrases: Mapping[str, str]) -> InvalidField:
    phrase = phrases.get(_INDEX.sub("[]", field))
    if phrase is None or phrase == f"{field} is required":
        return InvalidField(f"{field} is required", field=field)
    return InvalidField(f"{phrase}: {field} is missing" if "[" in field else phrase, field=field)


def invalid(text: str, phrases: Mapping[str, str]) -> InvalidField:
    """What to answer when this is the decoder's complaint of something that does not fit."""
    found = _MISSING.search(text)
    if found:
        return missing(f"{found[2]}.{found[1]}" if found[2] else found[1], phrases)
    found = _MISMATCH.search(text)
    if found is None:
        return _out_of_range(text, phrases)
    wanted, given, field = _words(found[1]), _word(found[2]), found[3] or ""
    if given == "null" and field:
        return missing(field, phrases)
    phrase = phrases.get(_INDEX.sub("[]", field))
    if phrase is None:
        return InvalidField(f"{field or 'the body'} must be {wanted}, not {given}", field=field or None)
    return InvalidField(f"{phrase}: {field or 'the body'} is {given}", field=field or None)


def _out_of_range(text: str, phrases: Mapping[str, str]) -> InvalidField:
    """A number too large for any type. What the field should be is known by its phrase only."""
    found = _OUT_OF_RANGE.search(text)
    if found is None:
        return InvalidField(text)
    field = found[1] or ""
    phrase = phrases.get(_INDEX.sub("[]", field))
    what = f"{field or 'the body'} is a number out of range"
    return InvalidField(f"{phrase}: {what}" if phrase else what, field=field or None)


def _words(types: str) -> str:
    return " or ".join(_word(name) for name in types.split(" | ") if name != "null")


def _word(name: str) -> str:
    return _WORDS.get(name, name)
