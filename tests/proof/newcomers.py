"""Groups in `new` mode that wait before their queue or partition exists: they get its first message.

They wait at a server of their own, with one worker: it tells when all of them are parked, so that what is pushed from
then on, through another server, is surely newer than their pops.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uuid_utils

from tests.proof.client import Client
from tests.proof.mixture import Mixture

CASES = ("queue", "partition", "partition by name", "namespace")
"""What is not there yet when the pop begins; `partition by name`: the pop names it."""
MESSAGES = 3
PATIENCE = 6.0


class Newcomers:
    """Rounds of all cases, until the mixture has enough; `problems` tells what was missed."""

    def __init__(self, quiet: int) -> None:
        self.problems: list[str] = []
        self.rounds = 0
        self._quiet = quiet

    async def run(self, mixture: Mixture) -> None:
        client = Client(mixture.port)
        while self.rounds == 0 or not mixture.enough.is_set():
            self.rounds += 1
            places = [_Place(self._quiet, case, self.rounds) for case in CASES]
            for place in places:
                await place.prepare(client)
            async with asyncio.TaskGroup() as waiting:
                answers = [waiting.create_task(place.collect()) for place in places]
                await self._wait_until_parked(len(places))
                for place in places:
                    await place.push(client)
            self.problems += [problem for answer in answers for problem in answer.result()]
            mixture.happened["newcomers"] += len(places)
        client.close()

    async def _wait_until_parked(self, count: int) -> None:
        client = Client(self._quiet)
        async with asyncio.timeout(PATIENCE):
            while True:
                reply = await client.get("/internal/api/engine/stats")
                if reply.body["engine"]["waiting"]["parked"] == count:
                    break
                await asyncio.sleep(0.01)
        client.close()


class _Place:
    """A queue, its group, and what the group must get."""

    def __init__(self, quiet: int, case: str, number: int) -> None:
        self._case = case
        self._quiet = quiet
        self._queue = f"newcomers {case} {number}".replace(" ", "-")

    async def prepare(self, client: Client) -> None:
        """A queue that is there has a message already, which is older than the group."""
        if self._case.startswith("partition"):
            await self._push(client, "old", -1)

    async def push(self, client: Client) -> None:
        if self._case == "namespace":
            body = {"queue": self._queue, "namespace": self._queue}
            assert (await client.post("/api/v1/configure", body)).status == 200
        for number in range(MESSAGES):
            await self._push(client, "fresh", number)

    async def collect(self) -> list[str]:
        """Pop until everything has come, or nothing more does."""
        client = Client(self._quiet)
        got: list[int] = []
        until = time.monotonic() + PATIENCE
        while len(got) < MESSAGES and time.monotonic() < until:
            reply = await client.get(self._path())
            for message in reply.body["messages"] if reply.body else []:
                got.append(message["data"]["n"])
                names = ("transactionId", "partitionId", "leaseId")
                ack = {name: message[name] for name in names} | {"consumerGroup": "late"}
                assert (await client.post("/api/v1/ack", ack)).body[0]["success"], message
        client.close()
        wanted = list(range(MESSAGES))
        return [] if got == wanted else [f"new: a group that waited for its {self._case} got {got}, not {wanted}"]

    def _path(self) -> str:
        way = f"/queue/{self._queue}?"
        if self._case == "namespace":
            way = f"?namespace={self._queue}&"
        elif self._case == "partition by name":
            way = f"/queue/{self._queue}/partition/fresh?"
        return f"/api/v1/pop{way}consumerGroup=late&subscriptionMode=new&batch=1&wait=true&timeout=3000"

    async def _push(self, client: Client, partition: str, number: int) -> None:
        item: dict[str, Any] = {"queue": self._queue, "partition": partition, "payload": {"n": number}}
        reply = await client.post("/api/v1/push", {"items": [item | {"transactionId": str(uuid_utils.uuid7())}]})
        assert reply.status == 201, reply
