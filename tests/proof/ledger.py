"""The ledger of one queue in mixed traffic: what was pushed, handed out and settled, and what is wrong.

All times are of one event loop. A push, a pop or an ack took effect between the moment it was sent and the moment its
answer came. A verdict is `excused` when, by the rules of acks, it may have no effect.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[str, int]
"""Which producer wrote a message, and its number among the messages of that producer."""
Place = tuple[str, Key]
"""A message and its partition."""
_CLOCKS = 0.05


class Pushed(NamedTuple):
    """`sure` is false when the push may be stored more than once or not at all: it had no id, and no answer came."""

    partition: str
    sent: float
    came: float
    sure: bool


class Verdict(NamedTuple):
    """What a consumer said of a message, and what the server answered."""

    key: Key
    status: str
    success: bool
    dead: bool
    sent: float
    came: float
    sure: bool
    excused: bool

    @property
    def settles(self) -> bool:
        """It may have moved the cursor behind its message."""
        return (self.success or not self.sure) and (self.status in ("completed", "dlq") or self.dead)

    @property
    def returns(self) -> bool:
        """The message must come again."""
        return self.success and self.status in ("failed", "retry") and not self.dead and not self.excused


@dataclass(slots=True)
class Delivery:
    """One partition's messages of one pop. With `auto`, they are settled when they are handed out."""

    number: int
    group: str
    partition: str
    keys: list[Key]
    asked: float
    came: float
    auto: bool = False
    verdicts: list[Verdict] = field(default_factory=list)


class Event(NamedTuple):
    """A seek (of a group in a partition, or in all) or a deletion of the queue."""

    began: float
    ended: float
    group: str = ""
    partition: str | None = None

    def concerns(self, delivery: Delivery) -> bool:
        return self.group == delivery.group and self.partition in (None, delivery.partition)


@dataclass(slots=True)
class Ledger:
    """`trims`: retention removes what all groups have consumed. `delay`: seconds before a message may be handed out.

    `cut_answers`: messages in answers to autoAck pops that were cut off, so that none knows whether they were sent;
    `restarts`: servers were killed, so that an answer may have been sent without the server knowing it.
    """

    groups: tuple[str, ...]
    trims: bool = False
    delay: float = 0.0
    cut_answers: int = 0
    restarts: bool = False
    pushed: dict[Key, Pushed] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    seeks: list[Event] = field(default_factory=list)
    deletions: list[Event] = field(default_factory=list)
    not_duplicates: list[Key] = field(default_factory=list)
    """Pushes with an id that the server had given which the server did not recognise."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _seen: set[Key] = field(default_factory=set)

    @property
    def waiting(self) -> int:
        """Messages that were pushed and have reached no group yet."""
        return len(self.pushed) - len(self._seen)

    def push(self, key: Key, partition: str, sent: float, *, sure: bool = True) -> None:
        self.pushed[key] = Pushed(partition, sent, time.monotonic(), sure)

    def deliver(self, group: str, partition: str, keys: Iterable[Key], asked: float, *, auto: bool = False) -> Delivery:
        made = Delivery(next(self._numbers), group, partition, list(keys), asked, time.monotonic(), auto)
        self.deliveries.append(made)
        self._seen.update(made.keys)
        return made

    def seek(self, began: float, group: str, partition: str | None) -> None:
        self.seeks.append(Event(began, time.monotonic(), group, partition))

    def delete(self, began: float) -> None:
        self.deletions.append(Event(began, time.monotonic()))

    def problems(self, stored: Iterable[tuple[str, int, Key, str]], dead: Iterable[tuple[str, str, Key]]) -> list[str]:
        """`stored` is (partition, place, message, transaction id), `dead` (group, partition, message)."""
        rows, letters = list(stored), Counter(dead)
        places = {(partition, key): place for partition, place, key, _ in rows if self._sure(key)}
        doubtful = {(partition, place) for partition, place, key, _ in rows if not self._sure(key)}
        found = [*self._storage(rows, places)]
        for group in self.groups:
            handed = [one for one in self.deliveries if one.group == group]
            found += self._delivered(group, handed)
            found += self._autos(group, handed)
            found += self._obligations(handed, letters)
            found += self._returns(handed)
            found += self._sought(group, handed)
            for partition in {one.partition for one in handed}:
                of_partition = [one for one in handed if one.partition == partition]
                skipped = {places.get((partition, key)) for *place, key in letters if place == [group, partition]}
                skipped |= {place for where, place in doubtful if where == partition}
                found += self._order(f"{group} in {partition}", of_partition, places, skipped)
        found += self._letters(letters)
        return found

    def _told(self, of: Delivery, key: Key) -> str:
        """The history of a message in a group, for those who read a problem."""
        lines = []
        for one in self.deliveries:
            if (one.group, one.partition) == (of.group, of.partition) and key in one.keys:
                place = f"{one.keys.index(key) + 1} of {len(one.keys)}"
                said = [str(verdict[1:]) for verdict in one.verdicts if verdict.key == key]
                lines.append(f"#{one.number} {one.asked:.3f}-{one.came:.3f} {place} {' '.join(said)}")
        lines += [f"seek {seek.began:.3f}-{seek.ended:.3f}" for seek in self.seeks if seek.concerns(of)]
        return "".join(f"\n    {line}" for line in lines)

    def _sure(self, key: Key) -> bool:
        """False for a message that may rightly be stored more than once."""
        return key not in self.pushed or self.pushed[key].sure

    def _survives(self, key: Key) -> bool:
        """Whether the queue was not deleted since the message was pushed."""
        sent = self.pushed[key].sent if key in self.pushed else math.inf
        return all(sent > deletion.ended for deletion in self.deletions)

    def _kept(self) -> list[Key]:
        """What every group must get."""
        return [key for key, push in self.pushed.items() if push.sure and self._survives(key)]

    def _storage(self, rows: list[tuple[str, int, Key, str]], places: Mapping[Place, int]) -> Iterator[str]:
        twice = [key for key, count in Counter((row[0], row[2]) for row in rows).items() if count > 1]
        yield from (f"stored twice: {key}" for key in twice if self._sure(key[1]))
        ids = Counter((row[0], row[3]) for row in rows)
        yield from (f"a transaction id exists twice: {name}" for name, count in ids.items() if count > 1)
        yield from (f"not recognised by the id that the server gave: {key}" for key in self.not_duplicates)
        for partition, _, key, _ in rows:
            if key not in self.pushed or self.pushed[key].partition != partition:
                yield f"none has pushed {key} to {partition}"
        for key, push in self.pushed.items():
            if push.sure and not self.trims and self._survives(key) and (push.partition, key) not in places:
                yield f"lost after its push was answered: {key} in {push.partition}"
        latest: dict[tuple[str, str], int] = {}
        for partition, _, (writer, number), _ in sorted(rows, key=lambda row: (row[0], row[1])):
            if self._sure((writer, number)):
                if number < latest.get((partition, writer), -1):
                    yield f"stored out of order: {(writer, number)} in {partition}"
                latest[partition, writer] = number

    def _delivered(self, group: str, handed: list[Delivery]) -> Iterator[str]:
        """Everything was, nothing that none has pushed, nothing too early, and nothing of a queue that is gone."""
        seen = {key for one in handed for key in one.keys}
        if not any(one.auto for one in handed):
            missing = [
                key for key, push in self.pushed.items() if push.sure and key not in seen and self._survives(key)
            ]
            yield from (f"{group}: never delivered: {key} in {self.pushed[key].partition}" for key in missing)
        for one in handed:
            for key in one.keys:
                push = self.pushed.get(key)
                if push is None or push.partition != one.partition:
                    yield f"{group}: delivered from {one.partition}, where none has pushed it: {key}"
                elif one.came < push.sent + self.delay - _CLOCKS:
                    yield f"{group}: delivered before its delay was over: {key}"
                elif any(push.came < deletion.began and deletion.ended < one.asked for deletion in self.deletions):
                    yield f"{group}: delivered after its queue was deleted: {key}"

    def _autos(self, group: str, handed: list[Delivery]) -> Iterator[str]:
        answers = Counter(key for one in handed if one.auto for key in one.keys)
        if not answers:
            return
        missing = [key for key in self._kept() if key not in answers]
        if len(missing) > self.cut_answers:
            yield f"{group}: in no answer to an autoAck pop: {missing}; {self.cut_answers} may have been cut off"
        twice = [key for key, count in answers.items() if count > 1 and self._sure(key)]
        if twice and not self.restarts:
            yield f"{group}: in two answers to autoAck pops: {twice}"

    def _obligations(self, handed: list[Delivery], letters: Counter[tuple[str, str, Key]]) -> Iterator[str]:
        """What is to come again does, or is a dead letter; what is a dead letter according to an answer is one."""
        last = {(one.partition, key): one.number for one in handed for key in one.keys}
        for one in handed:
            for verdict in one.verdicts:
                of = f"{one.group}: {verdict.key} in {one.partition}, {verdict.status}"
                is_dead = letters[one.group, one.partition, verdict.key] > 0
                gone = not self._survives(verdict.key)
                if verdict.returns and last[one.partition, verdict.key] == one.number and not is_dead and not gone:
                    told = self._told(one, verdict.key)
                    yield f"{of}: swallowed: it neither came again nor is it a dead letter{told}"
                said_dead = verdict.dead or (verdict.status == "dlq" and not verdict.excused)
                if verdict.success and said_dead and not is_dead and not gone:
                    yield f"{of}: there is no dead letter"

    def _returns(self, handed: list[Delivery]) -> Iterator[str]:
        """Nothing comes back after it was settled, except by a seek that was not over when the ack was sent."""
        settled: dict[Place, list[Verdict]] = {}
        for one in handed:
            for verdict in one.verdicts:
                if verdict.success and not verdict.excused and (verdict.status in ("completed", "dlq") or verdict.dead):
                    settled.setdefault((one.partition, verdict.key), []).append(verdict)
        for one in handed:
            seeks = [seek for seek in self.seeks if seek.concerns(one) and seek.began < one.came]
            for key in one.keys:
                before = [done.sent for done in settled.get((one.partition, key), ()) if done.came < one.asked]
                stays = any(all(seek.ended < sent for seek in seeks) for sent in before)
                if stays and self._sure(key):
                    told = self._told(one, key)
                    yield f"{one.group}: came back after a confirmed ack: {key} in {one.partition}{told}"

    def _sought(self, group: str, handed: list[Delivery]) -> Iterator[str]:
        """What was there when a group was moved to the beginning is delivered once more."""
        for seek in self.seeks:
            again = {key for one in handed if seek.concerns(one) and one.came > seek.began for key in one.keys}
            for key in self._kept() if seek.group == group else ():
                push = self.pushed[key]
                if seek.partition in (None, push.partition) and push.came < seek.began and key not in again:
                    yield f"{group}: not delivered after a seek to the beginning: {key} in {push.partition}"

    def _undone(self, one: Delivery, verdict: Verdict) -> bool:
        """It may have been applied before a seek took it back, and then refused, because its first reply was lost."""
        meanwhile = [each for each in self.seeks if each.began < verdict.came and verdict.sent < each.ended]
        return verdict.status in ("completed", "dlq") and any(seek.concerns(one) for seek in meanwhile)

    def _order(
        self, of: str, handed: list[Delivery], places: Mapping[Place, int], skipped: set[int | None]
    ) -> Iterator[str]:
        """Each delivery has neighbours in their order, and begins at the first message that is not settled."""
        settled: dict[int, float] = {}
        for one in handed:
            for verdict in one.verdicts:
                place = places.get((one.partition, verdict.key))
                if place is not None and (verdict.settles or self._undone(one, verdict)):
                    settled[place] = min(settled.get(place, math.inf), verdict.sent)
        settled_by = _settled_by(settled)
        for one in handed:
            numbers = [places[one.partition, key] for key in one.keys if (one.partition, key) in places]
            whole = len(numbers) == len(one.keys)
            if numbers != sorted(numbers) or (whole and numbers and numbers[-1] - numbers[0] != len(numbers) - 1):
                yield f"{of}: out of order or skipped: {one.keys}"
            writers: dict[str, int] = {}
            for writer, number in one.keys:
                if number < writers.get(writer, -1) and self._sure((writer, number)):
                    yield f"{of}: out of order: {one.keys}"
                writers[writer] = number
            before = min(numbers, default=0) - 1
            checked = whole and before > 0 and before not in skipped and not one.auto and not self.trims
            if checked and settled_by(before) > one.came:
                stand = [key for (where, key), place in places.items() if (where, place) == (one.partition, before)]
                told = "".join(self._told(one, key) for key in stand)
                yield f"{of}: {one.keys[0]} was delivered before what stands before it was settled{told}"

    def _letters(self, letters: Counter[tuple[str, str, Key]]) -> Iterator[str]:
        handed = {(one.group, one.partition, key) for one in self.deliveries for key in one.keys}
        for letter, count in letters.items():
            if letter[0] in self.groups and letter not in handed and self._survives(letter[2]):
                yield f"a dead letter that was never delivered: {letter}"
            if count > 1 and not self.seeks and self._sure(letter[2]):
                yield f"dead-lettered {count} times: {letter}"


def _settled_by(settled: Mapping[int, float]) -> Callable[[int], float]:
    """When the message in a place was settled: by its own ack, or by that of a later one."""
    times = [math.inf] * (max(settled, default=0) + 2)
    for place in range(len(times) - 2, -1, -1):
        times[place] = min(settled.get(place, math.inf), times[place + 1])
    return lambda place: times[place] if place < len(times) else math.inf
