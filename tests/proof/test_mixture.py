"""The promises hold for all kinds of traffic at once, also when replies of PostgreSQL get lost and workers die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.amounts import KILLING_SECONDS, LOST_REPLIES_SECONDS, SEED, TRAFFIC_SECONDS
from tests.engine.relay import Relay
from tests.proof.conftest import Serve, Serving, launch
from tests.proof.kinds import chosen
from tests.proof.mixture import Mixture
from tests.proof.newcomers import Newcomers
from tests.proof.test_end_to_end import Killer

WORKERS = 2
HAPPENED = {
    "acks": ("failed", "retry", "dlq dead", "seek"),
    "exhausted": ("failed dead",),
    "auto": ("auto pushed",),
    "leaving": ("leaving left",),
    "ids": ("given id pushed again",),
    "retention": ("trimmed",),
    "deletion": ("deletion",),
    "bounded": ("queue full",),
    "new": ("newcomers",),
}
"""What a run must have seen of each kind to be worth its name."""


@pytest.fixture
async def relay(database: str) -> AsyncIterator[Relay]:
    async with Relay(database) as opened:
        yield opened


async def run(mixture: Mixture, serve: Serve) -> None:
    """With newcomers at a server of their own when they are chosen. All problems are shown, not only the first."""
    wanted = [what for name in chosen() for what in HAPPENED.get(name, ())]
    satisfied = mixture.satisfied
    mixture.satisfied = lambda: satisfied() and all(mixture.happened[what] for what in wanted)
    newcomers = Newcomers(serve(1).port) if "new" in chosen() else None
    problems = await mixture.run(*(() if newcomers is None else (newcomers.run,)))
    problems += newcomers.problems if newcomers is not None else []
    print("\n".join(problems[:100]))
    assert not problems, f"{len(problems)} problems, the first of them: {problems[0]}"
    assert mixture.satisfied(), mixture.happened


async def test_nothing_is_lost_doubled_or_reordered(
    serve: Serve, connection: asyncpg.Connection, database: str
) -> None:
    mixture = Mixture(serve(WORKERS).port, connection, database, chosen(), TRAFFIC_SECONDS)
    await run(mixture, serve)


async def test_lost_replies_of_postgresql_change_nothing(
    relay: Relay, serve: Serve, connection: asyncpg.Connection, database: str, relayed: Serving
) -> None:
    mixture = Mixture(relayed.port, connection, database, chosen(), LOST_REPLIES_SECONDS)
    mixture.satisfied = lambda: relay.lost >= 20
    losing = asyncio.create_task(lose(relay))
    try:
        await run(mixture, serve)
    finally:
        losing.cancel()


async def test_killed_workers_change_nothing(serve: Serve, connection: asyncpg.Connection, database: str) -> None:
    serving = serve(WORKERS)
    mixture = Mixture(serving.port, connection, database, chosen(), KILLING_SECONDS)
    mixture.killed = True
    killer = Killer(serving)
    mixture.satisfied = lambda: killer.kills >= 3
    killing = asyncio.create_task(killer.run())
    try:
        await run(mixture, serve)
        assert not killing.done(), "a worker was not replaced"
    finally:
        killing.cancel()


@pytest.fixture
async def relayed(relay: Relay, tmp_path: Path) -> AsyncIterator[Serving]:
    """A server behind the relay. The relay needs this event loop while the server starts and stops."""
    serving = launch(tmp_path / "relayed.log", "--workers", str(WORKERS), DATABASE_URL=relay.dsn)
    await asyncio.to_thread(serving.wait_ready)
    yield serving
    await asyncio.to_thread(serving.stop)


async def lose(relay: Relay) -> None:
    choice = random.Random(f"{SEED} replies")
    while True:
        relay.lose_replies(1, after=choice.randrange(20))
        await asyncio.sleep(choice.uniform(0.05, 0.2))
