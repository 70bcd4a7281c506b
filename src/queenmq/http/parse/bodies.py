"""Decode a JSON body into its struct, and say in our words what is wrong with one that does not fit.

The decoder's complaint names the place as a path and the types in its own words. Here that becomes a field, a sentence,
and where older servers had a fixed phrase for the case, the sentence begins with it, because clients look for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from ..errors import InvalidField, InvalidJson

Body = TypeVar("Body")

_MISMATCH: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_INDEX: Final = re.compile(r"\[\d+\]")
_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}


def decode(decoder: msgspec.json.Decoder[Body], body: bytes, phrases: Mapping[str, str]) -> Body:
    """`phrases` by field, with `[]` for any index and "" for the body itself. An empty body is an empty object."""
    try:
        return decoder.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if body.isspace():
            return decode(decoder, b"", phrases)
        raise explain(error, phrases) from None


def explain(error: Exception, phrases: Mapping[str, str]) -> InvalidField | InvalidJson:
    """What to answer when the decoder raised this."""
    if isinstance(error, RecursionError):
        return InvalidField("the body is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return InvalidJson("Invalid JSON: the body is not valid UTF-8")
    if isinstance(error, msgspec.ValidationError):
        return _invalid(str(error), phrases)
    return InvalidJson(f"Invalid JSON: {error}")


def missing(field: str, phrases: Mapping[str, str]) -> InvalidField:
    phrase = phrases.get(_INDEX.sub("[]", field))
    if phrase is None or phrase == f"{field} is required":
        return InvalidField(f"{field} is required", field=field)
    return InvalidField(f"{phrase}: {field} is missing" if "[" in field else phrase, field=field)


def _invalid(text: str, phrases: Mapping[str, str]) -> InvalidField:
    found = _MISSING.search(text)
    if found:
        return missing(f"{found[2]}.{found[1]}" if found[2] else found[1], phrases)
    found = _MISMATCH.search(text)
    if not found:  # a number out of range, for example
        return InvalidField(text)
    wanted, given, field = _words(found[1]), _word(found[2]), found[3] or ""
    if given == "null" and field:
        return missing(field, phrases)
    phrase = phrases.get(_INDEX.sub("[]", field))
    if phrase is None:
        return InvalidField(f"{field or 'the body'} must be {wanted}, not {given}", field=field or None)
    return InvalidField(f"{phrase}: {field or 'the body'} is {given}", field=field or None)


def _words(types: str) -> str:
    return " or ".join(_word(name) for name in types.split(" | ") if name != "null")


def _word(name: str) -> str:
    return _WORDS.get(name, name)
