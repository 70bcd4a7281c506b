"""The books of a run: what producers were told is stored, what consumers received and settled, and whether it agrees.

Everything happens in one event loop, so the order in which answers arrive is the order of cause and effect: a partition
is delivered again only after the ack of the delivery before was sent, or after its lease was over.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Key = tuple[str, int]
"""Who wrote a message, and his how-manieth it is."""


@dataclass(slots=True)
class Delivery:
    """One partition's messages of one pop. `settled` are those whose ack was confirmed; `unsure` those whose ack was
    refused after it had to be sent again: the first time may have counted."""

    number: int
    group: str
    partition: str
    keys: list[Key]
    settled: list[Key] = field(default_factory=list)
    unsure: list[Key] = field(default_factory=list)


class Books:
    def __init__(self, groups: Iterable[str]) -> None:
        self.groups = list(groups)
        self.written: dict[str, list[Key]] = defaultdict(list)
        self.deliveries: list[Delivery] = []
        self._numbers = itertools.count()

    def deliver(self, group: str, partition: str, keys: Iterable[Key]) -> Delivery:
        delivery = Delivery(next(self._numbers), group, partition, list(keys))
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
                mine = [one for one in self.deliveries if (one.group, one.partition) == (group, partition)]
                self._check_deliveries(group, partition, mine, messages)

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
        for one in sorted(deliveries, key=lambda delivery: delivery.number):
            assert all(key in messages for key in one.keys), f"{of}: a message that is not stored was delivered"
            places = [messages[key] for key in one.keys]
            assert places == list(range(places[0], places[0] + len(places))), f"{of}: out of order or skipped: {places}"
            settled += [messages[key] for key in one.settled]
            unsure |= {messages[key] for key in one.unsure}
        assert len(settled) == len(set(settled)), f"{of}: settled twice"
        assert settled == sorted(settled), f"{of}: settled out of order"
        missing = set(messages.values()) - set(settled) - unsure
        assert not missing, f"{of}: never settled: {sorted(missing)}"
