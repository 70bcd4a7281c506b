"""The kinds of mixed traffic. Each has a queue and a ledger of its own, and can be switched on by its name.

PROOF_KINDS=acks,auto runs only these. The shape of a kind (partitions, batches, clients) is chosen by the run's seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.amounts import SEED
from tests.proof.ledger import Ledger

LEASE_SECONDS = 2
NAMESPACE = "proof"
FOREVER = 1_000_000
"""A retry limit that none reaches."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run chooses by its seed."""

    partitions: int
    producers: int
    consumers: int
    most_pushed: int
    most_popped: int


@dataclass(slots=True)
class Kind:
    """`verdicts`: consumers fail, retry and dead-letter at random, in batches of acks over several partitions.

    `auto`: pops with autoAck. `leaves`: clients leave while they wait. `ids`: pushes without ids, and again with those
    of the answers. `seeks`, `deletes`, `sweeps`: that happens beside the traffic. `bound`: the queue's maxSize.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = ("alpha", "beta")
    verdicts: bool = False
    auto: bool = False
    leaves: bool = True
    ids: bool = False
    seeks: bool = False
    deletes: bool = False
    sweeps: bool = False
    bound: int = 0
    delay: float = 0.0

    @property
    def queue(self) -> str:
        return f"mixed-{self.name}"

    @property
    def namespace(self) -> str:
        return f"{NAMESPACE}-{self.name}"

    def ledger(self) -> Ledger:
        return Ledger(self.groups, trims=self.sweeps, delay=self.delay)

    def configuration(self) -> dict[str, Any]:
        options = {"leaseTime": LEASE_SECONDS, "retryLimit": FOREVER, "retryDelay": 0} | dict(self.options)
        return {"queue": self.queue, "namespace": self.namespace, "options": options}

    def shape(self) -> Shape:
        choice = random.Random(f"{SEED} {self.name}")
        return Shape(
            partitions=choice.choice([2, 5, 20]),
            producers=choice.randint(2, 3),
            consumers=choice.randint(2, 3),
            most_pushed=choice.choice([3, 6, 12]),
            most_popped=choice.choice([10, 40]),
        )


KINDS = {
    kind.name: kind
    for kind in (
        Kind("acks", verdicts=True, seeks=True),
        Kind("exhausted", options={"retryLimit": 1}, groups=("alpha",), verdicts=True, leaves=False),
        Kind("auto", groups=("alpha",), auto=True, leaves=False),
        Kind("leaving", groups=("alpha",), auto=True),
        Kind("ids", ids=True, verdicts=True),
        Kind("retention", options={"retentionEnabled": True, "completedRetentionSeconds": 1}, sweeps=True),
        Kind("deletion", deletes=True),
        Kind("bounded", options={"maxSize": 15}, groups=("alpha",), bound=15),
        Kind("delayed", options={"delayedProcessing": 1}, groups=("alpha",), delay=1.0),
        Kind("new", groups=()),
    )
}
"""`new` has no queue of its own: see newcomers.py."""


def chosen() -> list[str]:
    names = os.environ.get("PROOF_KINDS", "").split(",")
    wanted = [name for name in names if name] or list(KINDS)
    unknown = [name for name in wanted if name not in KINDS]
    assert not unknown, f"PROOF_KINDS names {unknown}; there are {list(KINDS)}"
    return wanted
