"""Every message reaches every group once and in order, whatever handlers do and whichever worker is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import asyncpg

from tests.amounts import KILLING_SECONDS, SEED, TRAFFIC_SECONDS
from tests.proof.conftest import PATIENCE, Serve, Serving
from tests.proof.traffic import Traffic

WORKERS = 2
KILL_EVERY = 2.0
LOST_ANSWERS = 0.02


async def test_every_message_is_settled_once_and_in_order(serve: Serve, connection: asyncpg.Connection) -> None:
    serving = serve(WORKERS)
    traffic = Traffic(serving.port, connection, seconds=TRAFFIC_SECONDS)
    ways = ("whole", "in_two", "failing", "retrying", "silent", "late", "refused")
    traffic.satisfied = lambda: all(traffic.happened[way] for way in ways)
    await traffic.run()
    assert traffic.repeats == 0
    assert traffic.satisfied(), traffic.happened


async def test_killed_workers_lose_double_and_reorder_nothing(serve: Serve, connection: asyncpg.Connection) -> None:
    serving = serve(WORKERS)
    traffic = Traffic(serving.port, connection, seconds=KILLING_SECONDS, forgets=LOST_ANSWERS)
    killer = Killer(serving)
    traffic.satisfied = lambda: killer.kills >= 3 and traffic.happened["duplicate"] > 0
    killing = asyncio.create_task(killer.run())
    try:
        await traffic.run()
        assert not killing.done(), "a worker was not replaced"
    finally:
        killing.cancel()
    print(f"{killer.kills} workers were killed")
    assert killer.kills >= 3
    assert traffic.repeats > 0, "no client has noticed: the kills hit nobody"
    assert traffic.happened["duplicate"] > 0, "no push was repeated that had been stored"


class Killer:
    """Kills a random worker again and again."""

    def __init__(self, serving: Serving) -> None:
        self.kills = 0
        self._serving = serving
        self._choice = random.Random(SEED)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(KILL_EVERY)
            os.kill(self._choice.choice(await self._workers()), signal.SIGKILL)
            self.kills += 1

    async def _workers(self) -> list[int]:
        """The workers, as soon as none is missing."""
        async with asyncio.timeout(PATIENCE):
            while True:
                workers = self._serving.workers()
                if len(workers) >= WORKERS:
                    return workers
                await asyncio.sleep(0.05)
