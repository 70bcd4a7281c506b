"""Three servers under load, with a bad network between them: every message reaches every group once and in order.

What servers tell each other is advice. Here it is lost, doubled, late, repeated out of the past, forged and cut off,
while consumers wait at all three for what is pushed through all three. PROOF_SCALE=6 makes the run that many times
longer.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from tests.amounts import SCALE, SEED
from tests.proof.client import Client
from tests.proof.spread import OPTIONS, QUEUES, Flow, HttpDoor
from tests.server.cluster import Cluster, Network

NAMES = ("a", "b", "c")
PHASE_SECONDS = 1.0
APART_SECONDS = 3.0
SECONDS = (3 * PHASE_SECONDS + APART_SECONDS) * SCALE


@pytest.fixture
def cluster(database: str, tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path, database, *NAMES)
    try:
        started.meet()
        yield started
        assert started.errors() == []
    finally:
        started.end()


async def test_a_bad_network_loses_doubles_and_reorders_nothing(
    cluster: Cluster, connection: asyncpg.Connection
) -> None:
    await configure(cluster["a"].port)
    flow = Flow([partial(HttpDoor, cluster[name].port) for name in NAMES], connection, SECONDS)
    kinds = ("wide something", "wide nothing", "single something", "single nothing")
    flow.satisfied = lambda: all(flow.happened[kind] for kind in kinds)
    nemesis = Nemesis(cluster.network)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flow.run())
        tasks.create_task(nemesis.run(flow.enough))
    assert flow.satisfied(), flow.happened
    for name in NAMES:
        dropped = cluster.stats(name)["transport"]["dropped"]
        assert min(dropped.get(reason, 0) for reason in ("repeated", "signature", "size")) > 0, dropped
    assert nemesis.partitions > 0
    for one, other in (("a", "b"), ("b", "a")):
        assert cluster[one].logged(f"server {other} has not been heard"), "the partition was not noticed"
        assert cluster[one].logged(f"server {other} is back")


async def configure(port: int) -> None:
    client = Client(port)
    for queue in QUEUES:
        reply = await client.post("/api/v1/configure", {"queue": queue, "options": OPTIONS})
        assert reply.status == 200, reply
    client.close()


class Nemesis:
    """One kind of trouble after another, again and again."""

    def __init__(self, network: Network) -> None:
        self.partitions = 0
        self._network = network
        self._choice = random.Random(SEED)

    async def run(self, enough: asyncio.Event) -> None:
        for trouble in itertools.cycle((self._apart, self._lossy, self._recorded, self._all_at_once)):
            if enough.is_set():
                return
            await trouble()
            self._network.heal()

    async def _apart(self) -> None:
        """Two servers do not hear each other for long enough to take each other for dead."""
        self._network.block("a", "b")
        self.partitions += 1
        await asyncio.sleep(APART_SECONDS)

    async def _lossy(self) -> None:
        """Three packets in ten are lost; of the others some are doubled, and some overtaken."""
        self._network.disturb(loss=0.3, doubled=0.3, late=0.1)
        await asyncio.sleep(PHASE_SECONDS)

    async def _recorded(self) -> None:
        """All that was ever sent is sent again, with forgeries in between."""
        until = time.monotonic() + PHASE_SECONDS
        while time.monotonic() < until:
            await asyncio.to_thread(self._attack)
            await asyncio.sleep(0.05)

    async def _all_at_once(self) -> None:
        self._network.disturb(loss=0.3, doubled=0.3, late=0.1)
        await self._recorded()

    def _attack(self) -> None:
        for link in self._network.links.values():
            link.forge(self._choice)
            link.replay()
