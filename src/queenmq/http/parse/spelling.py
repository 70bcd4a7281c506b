"""Names that a client sent and that are not known: ignored, unless one is a known name misspelt.

Ignoring is how clients of other versions are served. But `partiton` or `consumergroup` is a mistake that would go
unnoticed: the message would go elsewhere. So a name that differs from a known one only in case, in underscores or by
one letter (one too many, one missing, another one, or two that changed places) is refused, with the name that was
meant. Where both names are shorter than four letters, which one letter makes another word, only case is compared.

The names of a body are looked at while it is decoded, and decoding ends at a limit: a body of some megabytes has room
for millions of names, and objects made of them would hold up the requests of all other clients for seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from ..errors import InvalidField

MOST_UNKNOWN: Final = 1_000
"""Different names that are not known in one request. Each is compared with the known ones."""
MOST_FIELDS: Final = 1_000_000
"""Fields in all objects of a request that has some that are not known: a dozen in each of as many items as can be."""

_SHORT: Final = 4
_REMEMBERED: Final = 4096


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

    def check(self, names: Iterable[str]) -> None:
        """Raises InvalidField for a parameter of a query that is misspelt, or when very many are not known."""
        unknown = 0
        for name in names:
            if name not in self.known:
                unknown += 1
                if unknown > MOST_UNKNOWN:
                    raise InvalidField(f"the query has more than {MOST_UNKNOWN} parameters that are not known")
                self.check_unknown(name)

    def check_unknown(self, name: str, where: str = "") -> None:
        """Raises InvalidField if this name, which is not known, is misspelt."""
        if len(name) > 2 * self._longest or name in self._harmless:
            return
        if (meant := self.meant(name)) is not None:
            field = where + name
            raise InvalidField(f"{field} is not known; did you mean {meant}?", field=field)
        if len(self._harmless) >= _REMEMBERED:
            self._harmless.clear()
        self._harmless.add(name)

    def meant(self, name: str) -> str | None:
        """The known name that this one, which is not known and not long, looks like."""
        folded = _folded(name)
        if folded in self._folded:
            return self._folded[folded]
        if not _SHORT - 1 <= len(folded) <= self._longest:
            return None
        alike = {each for text in (folded, *_without_one(folded)) for each in self._shortened.get(text, ())}
        found = sorted(
            each for each in alike if max(len(each), len(folded)) >= _SHORT and _one_letter_apart(folded, each)
        )
        return self._folded[found[0]] if found else None


class _Key(str):
    """A name in an object: of this type, so that the decoder hands every name to a function."""

    __slots__ = ()


_OTHER: Final = _Key()
_NOTHING: Final = msgspec.Raw(b"")
_Fields = dict[_Key, msgspec.Raw]
_values: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Shape:
    """The names of an object, and of the objects that stand in its fields, alone or in an array."""

    def __init__(self, names: Names, inner: Mapping[str, Shape] | None = None) -> None:
        self.names: Final = names
        self.inner: Final = {_Key(name): shape for name, shape in (inner or {}).items()}
        self.keys: Final = {str(name): _OTHER for name in names.known} | {str(key): key for key in self.inner}

    def check(self, body: bytes) -> None:
        """Raises InvalidField for the first name that is misspelt, or when very many are not known, and
        UnicodeDecodeError for one that is not Unicode. What cannot be decoded otherwise is not looked at."""
        with suppress(msgspec.DecodeError, RecursionError):
            _Check().object(self, body, "")


class _Check:
    """What was seen of one request. Of its objects nothing is kept but the fields that are to be looked into."""

    def __init__(self) -> None:
        self._where = ""
        self._fields = 0
        self._unknown = 0
        self._decoders: dict[Shape, Callable[[bytes | msgspec.Raw], _Fields]] = {}

    def object(self, shape: Shape, text: bytes | msgspec.Raw, where: str) -> None:
        self._where = where
        decode = self._decoders.get(shape)
        if decode is None:
            decode = msgspec.json.Decoder(_Fields, dec_hook=self._look(shape)).decode
            self._decoders[shape] = decode
        fields = decode(text)
        for name, inner in shape.inner.items():
            value = fields.get(name, _NOTHING)
            first = bytes(memoryview(value)[:1])
            if first == b"{":
                self.object(inner, value, f"{where}{name}.")
            elif first == b"[":
                for index, each in enumerate(_values(value)):
                    self.object(inner, each, f"{where}{name}[{index}].")

    def _look(self, shape: Shape) -> Callable[[type, str], _Key]:
        """What the decoder calls for every name of such an object."""
        keys = dict(shape.keys)

        def look(_: type, name: str) -> _Key:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise InvalidField(f"the body has fields that are not known, and more than {MOST_FIELDS} fields in all")
            if name not in keys:
                self._count_unknown()
                shape.names.check_unknown(name, self._where)
                keys[name] = _OTHER
            return keys[name]

        return look

    def _count_unknown(self) -> None:
        self._unknown += 1
        if self._unknown > MOST_UNKNOWN:
            raise InvalidField(f"the body has more than {MOST_UNKNOWN} different fields that are not known")


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
