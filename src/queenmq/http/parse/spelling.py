"""Names that a client sent and that are not known: ignored, unless one is a known name misspelt.

Ignoring is how clients of other versions are served. But `partiton` or `consumergroup` is a mistake that would go
unnoticed: the message would go elsewhere. So a name that differs from a known one only in case, in underscores or by
one letter (one too many, one missing, another one, or two that changed places) is refused, with the name that was
meant. Of names shorter than four letters, which one letter makes another word, only case is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from ..errors import InvalidField

_SHORT: Final = 4
_REMEMBERED: Final = 4096
_MOST: Final = 1000
"""Names compared for one request: one that has more of them that are not known was not misspelt."""

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_objects: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class Names:
    """The names that one kind of object, or a query, may have."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known: Final = frozenset(known)
        self._folded = {_folded(name): name for name in self.known}
        self._longest = max(map(len, self._folded)) + 1
        # By every text that comes of a known name by leaving out one letter: two names that are one letter apart have
        # such a text in common.
        self._shortened: dict[str, list[str]] = {}
        for folded in self._folded:
            for text in {folded, *_without_one(folded)}:
                self._shortened.setdefault(text, []).append(folded)
        self._harmless: set[str] = set()

    @classmethod
    def of(cls, struct: type[msgspec.Struct]) -> Names:
        return cls(field.encode_name for field in msgspec.structs.fields(struct))

    def check(self, names: Iterable[str], where: str = "", most: int = _MOST) -> int:
        """Raises InvalidField for a name that is misspelt; the answer is how many were compared."""
        compared = 0
        for name in names:
            if name in self.known or name in self._harmless:
                continue
            if compared >= most:
                break
            compared += 1
            if (meant := self.meant(name)) is not None:
                field = where + name
                raise InvalidField(f"{field} is not known; did you mean {meant}?", field=field)
            if len(self._harmless) >= _REMEMBERED:
                self._harmless.clear()
            self._harmless.add(name)
        return compared

    def meant(self, name: str) -> str | None:
        """The known name that this one, which is not known, looks like."""
        if len(name) > 2 * self._longest:
            return None
        folded = _folded(name)
        if folded in self._folded:
            return self._folded[folded]
        if not _SHORT <= len(folded) <= self._longest:
            return None
        alike = {each for text in (folded, *_without_one(folded)) for each in self._shortened.get(text, ())}
        found = sorted(each for each in alike if len(each) >= _SHORT and _one_letter_apart(folded, each))
        return self._folded[found[0]] if found else None


class Shape:
    """The names of an object, and of the objects in its arrays."""

    def __init__(self, names: Names, arrays: Mapping[str, Shape] | None = None) -> None:
        self._names = names
        self._arrays = arrays or {}

    def check(self, body: bytes) -> None:
        """Raises InvalidField for the first name that is misspelt. What cannot be decoded is not looked at."""
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._check(_object(body), "", _MOST)

    def _check(self, fields: Mapping[str, msgspec.Raw], where: str, most: int) -> int:
        compared = 0
        if not self._names.known.issuperset(fields):
            compared = self._names.check(fields, where, most)
        for name, inner in self._arrays.items():
            if bytes(fields.get(name, b""))[:1] == b"[":
                for index, each in enumerate(_objects(fields[name])):
                    compared += inner._check(each, f"{where}{name}[{index}].", most - compared)
        return compared


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _without_one(text: str) -> list[str]:
    return [text[:index] + text[index + 1 :] for index in range(len(text))]


def _one_letter_apart(one: str, other: str) -> bool:
    """Neither is the other."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    left, right = one[same:], other[same:]
    swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return swapped or left[1:] == right[1:] or left[1:] == right or left == right[1:]
