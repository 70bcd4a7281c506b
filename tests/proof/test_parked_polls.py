"""Thousands of parked polls on one worker: it keeps answering others, a push wakes one of them, and none is forgotten.

PROOF_SCALE=5 parks 10,000.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter

import pytest

from benchmarks.load import render
from benchmarks.load.connection import Asking
from benchmarks.load.waiting import allow_connections, dial
from tests.amounts import SCALE
from tests.proof.conftest import PATIENCE, Serve

POLLS = 10_000 if SCALE >= 5 else int(1_000 * SCALE)
QUEUES = 20
WAKES = 40
TIMEOUT_MS = 4_000 + 2 * POLLS


@pytest.fixture
def many_files() -> None:
    allow_connections(POLLS + 200)


async def test_parked_polls_wait_wake_and_end(serve: Serve, many_files: None) -> None:
    serving = serve(1)
    host = f"127.0.0.1:{serving.port}"
    (helper,) = await dial(serving.port, 1)
    connections, polls = await park(serving.port, host)
    await wait_until_parked(helper, host)
    for _ in range(100):
        await helper.expect(render.get(host, "/health"), 200)
    assert not any(poll.done() for poll in polls), "parked polls were answered although nothing was pushed"

    for number in range(WAKES):
        await push(helper, host, number)
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*polls)
    assert Counter(status for status, _ in answers) == {200: WAKES, 204: POLLS - WAKES}
    taken = [
        message["data"]["n"] for status, body in answers if status == 200 for message in json.loads(body)["messages"]
    ]
    assert sorted(taken) == list(range(WAKES))
    for connection in [*connections, helper]:
        connection.close()


async def park(port: int, host: str) -> tuple[list[Asking], list[asyncio.Task[tuple[int, bytes]]]]:
    connections: list[Asking] = []
    polls = []
    for number in range(POLLS):
        (connection,) = await dial(port, 1)
        connections.append(connection)
        request = render.pop(host, f"parked{number % QUEUES}", batch=1, wait_ms=TIMEOUT_MS)
        polls.append(asyncio.create_task(connection.ask(request)))
    return connections, polls


async def wait_until_parked(helper: Asking, host: str) -> None:
    """All wait but those of which one per queue may just be looking for the others."""
    async with asyncio.timeout(PATIENCE):
        while True:
            stats = json.loads(await helper.expect(render.get(host, "/internal/api/engine/stats"), 200))
            if stats["engine"]["waiting"]["parked"] >= POLLS - QUEUES:
                return
            await asyncio.sleep(0.05)


async def push(helper: Asking, host: str, number: int) -> None:
    item = {"queue": f"parked{number % QUEUES}", "partition": f"p{number}", "payload": {"n": number}}
    await helper.expect(render.post(host, "/api/v1/push", json.dumps({"items": [item]}).encode()), 201)


def test_the_limit_of_open_files_is_raised_or_named() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_connections(512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
        if hard != resource.RLIM_INFINITY:
            with pytest.raises(SystemExit, match=f"the limit is {hard}"):
                allow_connections(hard + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
