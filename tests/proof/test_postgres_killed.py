"""PostgreSQL is killed with everything it had not written. What a client was told stays true.

A pop does not wait for the disk: its lease may be forgotten, and then its messages come again to somebody else. Nothing
more may be: no push, no ack, no message taken with autoAck, no group that a pop has made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.amounts import SCALE
from tests.proof.books import Delivery
from tests.proof.client import Client
from tests.proof.conftest import PATIENCE, Serving, launch
from tests.proof.killing import Cluster, Reader
from tests.proof.traffic import Traffic

KILLS = max(1, int(3 * SCALE))
LOST_ANSWERS = 0.02
BUSY = 300
"""So many deliveries between two kills: everybody is at work again."""
QUIET = 30
"""So many before a kill while nobody pushes: no push takes the acks and leases to disk with it."""


@dataclass(slots=True)
class Durable:
    """A server whose PostgreSQL is its own, and as safe as its users have it."""

    serving: Serving
    cluster: Cluster


@contextmanager
def durable(home: Path, workers: int, **environment: str) -> Iterator[Durable]:
    serving = launch(home / "serve.log", "--workers", str(workers), "--data-dir", str(home / "data"), **environment)
    try:
        serving.wait_ready()
        yield Durable(serving, Cluster(home / "data"))
    finally:
        serving.stop()


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
    """It remembers what it has done before the crash."""
    with durable(tmp_path_factory.mktemp("durable"), 1) as server:
        yield server


@pytest.fixture
def cluster(one_worker: Durable) -> Cluster:
    return one_worker.cluster


@pytest.fixture
async def consumer(one_worker: Durable) -> AsyncIterator[Consumer]:
    consumer = Consumer(one_worker.serving.port)
    yield consumer
    assert consumer.client.repeats == 0, "the crash was not hidden from the client"
    consumer.client.close()


class Consumer:
    def __init__(self, port: int) -> None:
        self.client = Client(port)

    async def push(self, queue: str, *names: str, partition: str = "Default") -> None:
        items = [{"queue": queue, "partition": partition, "payload": name, "transactionId": name} for name in names]
        reply = await self.client.post("/api/v1/push", {"items": items})
        assert [result["status"] for result in reply.body] == ["queued"] * len(names)

    async def pop(self, queue: str, group: str, **options: object) -> list[dict[str, Any]]:
        query = "&".join(f"{name}={value}" for name, value in {"batch": 1, "consumerGroup": group, **options}.items())
        reply = await self.client.get(f"/api/v1/pop/queue/{queue}?{query}")
        assert reply.status in (200, 204), reply
        return reply.body["messages"] if reply.body else []

    async def ack(self, message: dict[str, Any], group: str) -> bool:
        names = ("transactionId", "partitionId", "leaseId")
        body = {**{name: message[name] for name in names}, "consumerGroup": group, "status": "completed"}
        reply = await self.client.post("/api/v1/ack", body)
        assert reply.status == 200, reply
        return bool(reply.body[0]["success"] if isinstance(reply.body, list) else reply.body["success"])


def names(messages: list[dict[str, Any]]) -> list[str]:
    return [message["data"] for message in messages]


async def test_a_forgotten_lease_is_given_to_the_next_and_its_ack_is_refused(
    cluster: Cluster, consumer: Consumer
) -> None:
    await consumer.push("lease", "one", "two")
    (one,) = await consumer.pop("lease", "g")
    assert await consumer.ack(one, "g")
    cluster.freeze_log_writer()
    (forgotten,) = await consumer.pop("lease", "g")
    cluster.kill()
    (again,) = await consumer.pop("lease", "g")
    assert names([forgotten, again]) == ["two", "two"]
    assert not await consumer.ack(forgotten, "g")
    assert await consumer.ack(again, "g")
    assert await consumer.pop("lease", "g") == []


async def test_a_confirmed_ack_is_never_forgotten(cluster: Cluster, consumer: Consumer) -> None:
    await consumer.push("ack", "one", "two")
    cluster.freeze_log_writer()
    (one,) = await consumer.pop("ack", "g")
    assert await consumer.ack(one, "g")
    cluster.kill()
    assert names(await consumer.pop("ack", "g")) == ["two"]


async def test_what_was_taken_with_auto_ack_does_not_come_again(cluster: Cluster, consumer: Consumer) -> None:
    await consumer.push("auto", "one", "two", "three")
    assert names(await consumer.pop("auto", "g", autoAck="true")) == ["one"]
    cluster.freeze_log_writer()
    assert names(await consumer.pop("auto", "g", autoAck="true")) == ["two"]
    cluster.kill()
    assert names(await consumer.pop("auto", "g", autoAck="true")) == ["three"]


async def test_a_group_that_a_pop_has_made_does_not_become_another(
    one_worker: Durable, cluster: Cluster, consumer: Consumer
) -> None:
    """The worker remembers it by its number, which must not be given to another one after the crash."""
    await consumer.push("mine", "for mine")
    await consumer.push("yours", "for yours", partition="a")
    await consumer.push("yours", "for yours", partition="b")
    reader = Reader(one_worker.serving.database)
    await reader.fetch("checkpoint")  # the first number given out after it is written to the log
    reader.close()
    cluster.freeze_log_writer()
    assert names(await consumer.pop("mine", "mine")) == ["for mine"]
    cluster.kill()
    assert names(await consumer.pop("yours", "yours")) == ["for yours"]
    assert names(await consumer.pop("mine", "mine")) == ["for mine"]


async def test_who_subscribed_to_new_messages_gets_those_of_after_that(cluster: Cluster, consumer: Consumer) -> None:
    await consumer.push("news", "of before")
    cluster.freeze_log_writer()
    assert await consumer.pop("news", "late", subscriptionMode="new") == []
    cluster.kill()
    await consumer.push("news", "of after")
    assert names(await consumer.pop("news", "late", subscriptionMode="new")) == ["of after"]


async def test_kills_under_load_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    """The workers repeat what they can within half a second, and leave the rest to the clients."""
    with durable(tmp_path, 2, SIDECAR_RETRY_TIMEOUT_MS="500") as server:
        reader = Reader(server.serving.database)
        traffic = Traffic(server.serving.port, reader, seconds=None, forgets=LOST_ANSWERS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic.run())
            tasks.create_task(kill_again_and_again(traffic, server.cluster))
        reader.close()
    print(f"{len(traffic.crashes)} kills, {traffic.forgotten} leases were forgotten")
    assert traffic.repeats > 0, "no client has noticed: the kills hit nobody"
    assert traffic.happened["duplicate"] > 0, "no push was repeated that had been stored"


async def kill_again_and_again(traffic: Traffic, cluster: Cluster) -> None:
    """In turn while only consumers work, and while all do."""
    deliveries = traffic.books.deliveries
    for number in range(KILLS):
        await grown(deliveries, BUSY)
        traffic.resting = number % 2 == 0
        cluster.freeze_log_writer()
        await grown(deliveries, QUIET)
        traffic.crashes.append(cluster.kill())
        traffic.resting = False
    await grown(deliveries, BUSY)
    traffic.enough.set()


async def grown(deliveries: list[Delivery], by: int) -> None:
    wanted = len(deliveries) + by
    async with asyncio.timeout(PATIENCE):
        while len(deliveries) < wanted:  # noqa: ASYNC110  nobody signals a delivery
            await asyncio.sleep(0.001)
