"""The books of a run: what producers were told is stored, what consumers received and settled, and whether it agrees.

Everything happens in one event loop, so the order in which answers arrive is the order of cause and effect: a partition
is delivered again only after the ack of the delivery before was sent, or after its lease was over.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Key = tuple[str, int]
"""Who wrote a message, and his how-manieth it is."""


Crash = tuple[float, float]
"""When PostgreSQL was killed: from the first of its processes to the last."""
_CLOCKS = 0.05


@dataclass(slots=True)
class Delivery:
    """One partition's messages of one pop. `settled` are those whose ack was confirmed, and when; `unsure` those whose
    ack was refused after it had to be sent again: the first time may have counted.

    Its lease began at some moment between `asked` and `came`, and was surely held until an ack was first sent.
    """

    number: int
    group: str
    partition: str
    keys: list[Key]
    asked: float = 0.0
    came: float = 0.0
    answered: float = math.inf
    settled: dict[Key, float] = field(default_factory=dict)
    unsure: list[Key] = field(default_factory=list)

    def answering(self) -> None:
        self.answered = min(self.answered, time.monotonic())

    def settle(self, key: Key) -> None:
        assert key not in self.settled, f"{key} was settled twice by one delivery"
        self.settled[key] = time.monotonic()


class Books:
    def __init__(self, groups: Iterable[str]) -> None:
        self.groups = list(groups)
        self.written: dict[str, list[Key]] = defaultdict(list)
        self.deliveries: list[Delivery] = []
        self._numbers = itertools.count()

    def deliver(self, group: str, partition: str, keys: Iterable[Key], asked: float = 0.0) -> Delivery:
        came = time.monotonic() if asked else 0.0
        delivery = Delivery(next(self._numbers), group, partition, list(keys), asked, came)
        self.deliveries.append(delivery)
        return delivery

    def check(self, stored: Iterable[tuple[str, int, Key]]) -> None:
        """`stored` is what the database holds: partition, place in it, message."""
        places: dict[str, dict[Key, int]] = defaultdict(dict)
        for partition, place, key in stored:
            assert key not in places[partition], f"{key} is stored twice in {partition}"
            places[partition][key] = place
        self._check_pushes(places)
        for group in self.groups:
            for partition, messages in places.items():
                self._check_deliveries(group, partition, self._of(group, partition), messages)

    def check_leases(self, seconds: float, crashes: Sequence[Crash] = ()) -> int:
        """Nobody was given what another still held, unless PostgreSQL has died in between and forgotten that lease.

        Returns how often that was the reason.
        """
        forgotten = 0
        for group, partition in {(one.group, one.partition) for one in self.deliveries}:
            for one, two in itertools.pairwise(self._of(group, partition)):
                if two.came >= min(one.asked + seconds - _CLOCKS, one.answered):
                    continue
                asked = min(one.asked, two.asked)
                excused = any(began <= two.came and asked <= ended for began, ended in crashes)
                assert excused, f"{group} in {partition}: two live leases: {one} {two}"
                forgotten += 1
        return forgotten

    def _of(self, group: str, partition: str) -> list[Delivery]:
        mine = [one for one in self.deliveries if (one.group, one.partition) == (group, partition)]
        return sorted(mine, key=lambda delivery: delivery.number)

    def _check_pushes(self, places: Mapping[str, Mapping[Key, int]]) -> None:
        for partition, keys in self.written.items():
            assert set(keys) <= places[partition].keys(), f"lost in {partition}: {set(keys) - places[partition].keys()}"
        for partition, messages in places.items():
            unknown = messages.keys() - set(self.written[partition])
            assert not unknown, f"nobody wrote {unknown} to {partition}"
            latest: dict[str, int] = {}
            for writer, number in sorted(messages, key=messages.__getitem__):
                assert number > latest.get(writer, -1), f"{writer}'s messages changed places in {partition}"
                latest[writer] = number

    @staticmethod
    def _check_deliveries(group: str, partition: str, deliveries: list[Delivery], messages: Mapping[Key, int]) -> None:
        of = f"{group} in {partition}"
        settled: list[int] = []
        unsure: set[int] = set()
        done = {key: when for one in deliveries for key, when in one.settled.items()}
        for one in deliveries:
            back = [key for key in one.keys if done.get(key, math.inf) < one.asked]
            assert not back, f"{of}: came back after a confirmed ack: {back}"
            assert all(key in messages for key in one.keys), f"{of}: a message that is not stored was delivered"
            places = [messages[key] for key in one.keys]
            assert places == list(range(places[0], places[0] + len(places))), f"{of}: out of order or skipped: {places}"
            settled += [messages[key] for key in one.settled]
            unsure |= {messages[key] for key in one.unsure}
        assert len(settled) == len(set(settled)), f"{of}: settled twice"
        assert settled == sorted(settled), f"{of}: settled out of order"
        missing = set(messages.values()) - set(settled) - unsure
        assert not missing, f"{of}: never settled: {sorted(missing)}"
