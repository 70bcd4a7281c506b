"""Transaction ids for rows that bring none of their own: the same row of the same task always gets the same one.

Spark may run a task twice: after a failure, side by side when one attempt is slow, or after a restart of the whole
program. The rows of a second attempt are those of the first, but after a shuffle they may come in another order. So an
id is made of the task, of what the row says, and of the row's number among those of the task that say the same: which
of equal rows is first makes no difference. Equal rows of two tasks, or of two batches, are different messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

_DIGEST: Final = 16
_PLACES: Final = 10_000  # (queue, partition) pairs whose started hash is kept
_BATCHES: Final = 1 << 16
_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint8).reshape(256, 2)
_VARIANTS: Final = np.frombuffer(b"89ab", dtype=np.uint8)
_UUID: Final = 36


@dataclass(frozen=True, slots=True)
class Scope:
    """One task of one write, the same for all its attempts. `batch` numbers the batches of a stream, else it is 0."""

    query: str
    batch: int
    write: str
    task: int

    def digest(self) -> bytes:
        fields = [self.query, str(self.batch), self.write, str(self.task)]
        return blake2b(_framed(fields), digest_size=_DIGEST).digest()

    def prefix(self) -> str:
        """How all ids of the batch begin, so that they are near each other in the index that remembers them, and those
        of the next batch beside them."""
        writer = blake2b(_framed([self.query, self.write]), digest_size=4).hexdigest()
        return f"{writer}-{self.batch % _BATCHES:04x}"


class RowIds:
    """The ids of the rows of one attempt of a task, which are handed over in any portions."""

    def __init__(self, scope: Scope) -> None:
        self.task = scope.task
        self._scope = scope.digest()
        self._template = np.frombuffer(f"{scope.prefix()}-8000-8000-000000000000".encode(), dtype=np.uint8)
        self._places: dict[tuple[str, str], blake2b] = {}
        self._seen = Occurrences()

    def of(
        self,
        queues: Sequence[str],
        partitions: Sequence[str],
        payloads: Sequence[bytes],
        extras: Sequence[bytes] | None = None,
    ) -> list[str]:
        """`extras`: what else is stored with each row, as a text that says itself where it ends."""
        digests = self._digests(queues, partitions, payloads, extras)
        numbers = self._seen.count(np.frombuffer(b"".join(digests), dtype=np.uint64)[::2])
        for row in np.flatnonzero(numbers).tolist():
            again = digests[row] + int(numbers[row]).to_bytes(8, "big")
            digests[row] = blake2b(again, digest_size=_DIGEST).digest()
        return self._written(np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, _DIGEST))

    def _digests(
        self,
        queues: Sequence[str],
        partitions: Sequence[str],
        payloads: Sequence[bytes],
        extras: Sequence[bytes] | None,
    ) -> list[bytes]:
        places, digests = self._places, []
        for row, place in enumerate(zip(queues, partitions, strict=True)):
            started = places.get(place)
            state = (self._started(place) if started is None else started).copy()
            if extras is not None:
                state.update(extras[row])
            state.update(payloads[row])
            digests.append(state.digest())
        return digests

    def _started(self, place: tuple[str, str]) -> blake2b:
        """A hash that has taken in what the rows of a partition have in common."""
        if len(self._places) >= _PLACES:
            self._places.clear()
        started = self._places[place] = blake2b(self._scope + _framed(place), digest_size=_DIGEST)
        return started

    def _written(self, digests: npt.NDArray[np.uint8]) -> list[str]:
        """As UUIDs of version 8: 48 bits of the scope, 74 of the digest."""
        rows = len(digests)
        out = np.tile(self._template, (rows, 1))
        digits = _HEX[digests].reshape(rows, 2 * _DIGEST)
        out[:, 15:18] = digits[:, 0:3]
        out[:, 19] = _VARIANTS[digests[:, -1] & 3]
        out[:, 20:23] = digits[:, 3:6]
        out[:, 24:36] = digits[:, 6:18]
        text = out.tobytes().decode()
        return [text[start : start + _UUID] for start in range(0, len(text), _UUID)]


_Run = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]
"""Sorted keys, and how often each was seen."""


class Occurrences:
    """How often each key was seen before.

    A task may have many millions of rows, so keys are kept in sorted arrays, 12 bytes each, and not as objects. As in
    a log-structured tree, a portion becomes a small array, and arrays of similar size are merged into one: there are
    few to look into, and each key is moved a few times. Keys are 64 bits of a hash. Two different rows that share one
    are numbered as if they were equal; their ids still differ.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def count(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """For each key, how many equal ones came before it, in this portion and in earlier ones."""
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        first = np.ones(len(keys), dtype=bool)
        first[1:] = ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(first)
        group = np.cumsum(first) - 1
        counts = np.diff(starts, append=len(keys)).astype(np.uint32)
        numbers = np.empty(len(keys), dtype=np.int64)
        numbers[order] = np.arange(len(keys)) - starts[group] + self._before(ordered[starts])[group]
        self._add(ordered[starts], counts)
        return numbers

    def _before(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        total = np.zeros(len(keys), dtype=np.int64)
        for known, counts in self._runs:
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            total += np.where(known[at] == keys, counts[at], 0)
        return total

    def _add(self, keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint32]) -> None:
        if not len(keys):
            return
        while self._runs and len(self._runs[-1][0]) <= len(keys):
            keys, counts = _merged((keys, counts), self._runs.pop())
        self._runs.append((keys, counts))


def _merged(one: _Run, two: _Run) -> _Run:
    keys = np.concatenate((one[0], two[0]))
    counts = np.concatenate((one[1], two[1]))
    order = np.argsort(keys, kind="stable")  # of two sorted halves: a merge, not a sort
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[starts], np.add.reduceat(counts, starts).astype(np.uint32)


def _framed(fields: Sequence[str]) -> bytes:
    """Texts one after the other, so that no two lists of them are written alike."""
    encoded = [field.encode() for field in fields]
    return b"".join(len(each).to_bytes(4, "big") + each for each in encoded)
