"""The statistics of one server: those of its workers together.

Any worker can be asked. It asks its siblings, and adds what they answer. That is right for what each of them did, and
for what each of them holds of its own. Queues, however, are known to all of them, and a queue counts once: of these a
worker sends not how many there are but which, each as a short hash, and the union is counted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from . import local
from .local import Local
from .siblings import Siblings

_PATIENCE: Final = 0.5  # seconds for the siblings' answers
_HASH: Final = 8  # bytes: of a million queues, two have the same hash in one server of forty million
_HASHES: Final = 100  # in one datagram: some systems take no more than 2 KB

CONFIGURED: Final = "configured"
WAITED_FOR: Final = "waited_for"
QueueSets = Mapping[str, Iterable[str]]
"""Names of queues, by what they have in common."""


class Statistics:
    """Make it inside the running event loop."""

    def __init__(self, number: int, siblings: Siblings) -> None:
        self._number = number
        self._siblings = siblings
        self._loop = asyncio.get_running_loop()
        self._questions = 0
        self._open: dict[int, _Question] = {}

    async def of_server(self, own: dict[str, Any], queues: QueueSets, gateway: int | None) -> dict[str, Any]:
        """A sibling that does not answer in time is left out, and a worker is named then."""
        answers, sets = await self._ask(queues)
        parts = {self._number: own} | answers
        of_gateway = parts.pop(gateway, {}) if gateway is not None else {}
        merged: dict[str, Any] = {}
        for part in parts.values():
            _add(merged, part)
        configs, hints = merged["queue_config_cache"], merged["lease_hints"]
        configs["entries"], configs["size"] = configs["size"], len(sets[CONFIGURED])
        configs["hit_rate"] = _share(configs["hits"], configs["misses"], 3, 0.0)
        hints["accuracy"] = _share(hints["hints_right"], hints["hints_wrong"], 4, 1.0)
        merged["waiters"]["queues"] = len(sets[WAITED_FOR])
        silent = [number for number in self._siblings.numbers if number not in parts and number != gateway]
        return merged | {"silent_workers": silent} | of_gateway

    async def _ask(self, queues: QueueSets) -> tuple[dict[int, dict[str, Any]], dict[str, set[bytes]]]:
        self._questions += 1
        number, question = self._questions, _Question(self._loop.create_future())
        question.sets = {kind: set(map(_hash, names)) for kind, names in queues.items()}
        if self._siblings.numbers:
            self._open[number] = question
            wanted = local.encode(local.StatsWanted(self._number, number))
            self._siblings.tell(Local.STATS_WANTED, ("asked", str(number)), wanted)
            await asyncio.wait([question.answered], timeout=_PATIENCE)
            del self._open[number]
        return question.answers, question.sets

    def answer(self, wanted: local.StatsWanted, own: dict[str, Any], queues: QueueSets) -> None:
        """The numbers go last: what a sibling is told arrives in order, so with them the answer is whole."""
        question = str(wanted.question)
        for kind, names in queues.items():
            hashes = b"".join(map(_hash, names))
            for start in range(0, len(hashes), _HASH * _HASHES):
                part = local.Queues(wanted.question, kind, hashes[start : start + _HASH * _HASHES])
                name = ("queues", question, kind, str(start))
                self._siblings.tell_one(wanted.by, Local.QUEUES, name, local.encode(part))
        answer = local.encode(local.Stats(self._number, wanted.question, own))
        self._siblings.tell_one(wanted.by, Local.STATS, ("stats", question), answer)

    def answered(self, notice: local.Stats | local.Queues) -> None:
        question = self._open.get(notice.question)
        if question is None:  # too late
            return
        if isinstance(notice, local.Queues):
            hashes = notice.hashes
            found = (hashes[start : start + _HASH] for start in range(0, len(hashes), _HASH))
            question.sets.setdefault(notice.kind, set()).update(found)
            return
        question.answers[notice.of] = notice.stats
        if len(question.answers) == len(self._siblings.numbers) and not question.answered.done():
            question.answered.set_result(None)


class _Question:
    __slots__ = ("answered", "answers", "sets")

    def __init__(self, answered: asyncio.Future[None]) -> None:
        self.answered = answered
        self.answers: dict[int, dict[str, Any]] = {}
        self.sets: dict[str, set[bytes]] = {}


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=_HASH).digest()


def _add(total: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, Mapping):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


def _share(good: int, bad: int, digits: int, of_none: float) -> float:
    return round(good / (good + bad), digits) if good + bad else of_none
