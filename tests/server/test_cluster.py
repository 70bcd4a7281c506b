"""Three servers behave as one, and a network that loses, repeats, delays, forges or separates costs time at most.

Who waits would not look by himself for a minute, so only what another server has told explains that he is woken; where
nothing can be told, the intervals are the usual ones.

| line of the checklists | where |
|---|---|
| multi-node mode: notifications propagate via UDP | TestWaking |
| server restart (sidecars re-register) | TestRestart |
| multi-server cache sync | TestConfigurations |
| network partition, graceful degradation | TestPartition, test_with_no_packet_at_all_… |
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from queenmq.cluster.messages import (
    ConsumerDeregistered,
    ConsumerRegistered,
    Heartbeat,
    LeaseHintAcquired,
    MessageAvailable,
    QueueConfigDelete,
    QueueConfigSet,
)
from queenmq.cluster.packets import Kind
from queenmq.cluster.siblings import singly
from tests.conftest import EMBEDDED
from tests.conftest import Server as DatabaseServer
from tests.proof.spread import OPTIONS, QUEUES, Flow, HttpDoor
from tests.server.cluster import QUICK, Cluster, Link
from tests.server.running import Client, eventually
from tests.server.test_siblings import SELDOM, Poll, on, parked, push

NAMES = ("a", "b", "c")
KEY = {"QUEEN_ENCRYPTION_KEY": "ab" * 32}
BY_SQL = "insert into queen.messages (queue, partition, payload) values ($1, $2, $3)"
STORED = "select payload, encrypted from queen.messages where queue = $1 order by seq"


@pytest.fixture(scope="module")
def started(servers: dict[str, DatabaseServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name, schema = asyncio.run(servers[EMBEDDED].lend())
    directory, dsn = tmp_path_factory.mktemp("cluster"), servers[EMBEDDED].database(name)
    cluster = Cluster(directory, dsn, *NAMES, environment={**QUICK, **SELDOM, **KEY})
    yield cluster
    cluster.end()
    asyncio.run(servers[EMBEDDED].take_back(name, schema))


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """Three servers with two workers each, which know each other."""
    started.meet()
    yield started
    started.network.heal()
    for server in started.servers.values():
        server.disconnect()
    assert started.errors() == []


def waits(cluster: Cluster, client: Client, path: str, name: str, *pushers: Client, at: str = "b") -> Poll:
    """A poll `at` a server, of which the workers of a behind the pushers know. `name`: what it waits for."""
    poll = Poll(client, f"/api/v1/pop{path}wait=true&timeout=30000")
    eventually(lambda: attended(cluster.network.link(at, "a"), name))
    cluster.heard("a", *pushers)
    return poll


def attended(link: Link, name: str) -> bool:
    """Whether the last that was said of it is that somebody waits for it."""
    said: list[ConsumerRegistered | ConsumerDeregistered] = link.told(ConsumerRegistered, ConsumerDeregistered)
    of_it = [message for message in said if message.queue == name]
    return bool(of_it) and isinstance(of_it[-1], ConsumerRegistered)


def configure(client: Client, queue: str, **options: object) -> None:
    namespace = options.pop("namespace", None)
    status, _ = client.post("/api/v1/configure", {"queue": queue, "namespace": namespace, "options": options})
    assert status == 200


def misses(cluster: Cluster, name: str) -> int:
    """How often what a worker of this server wanted to know of a queue was not remembered."""
    return int(cluster.stats(name)["queue_config_cache"]["misses"])


class TestWaking:
    @pytest.mark.parametrize(
        "path",
        ["/queue/{}?", "/queue/{}/partition/Default?", "/queue/{}?consumerGroup=g&", "?namespace={}&"],
        ids=["queue", "partition", "group", "namespace"],
    )
    def test_a_push_at_any_worker_wakes_who_waits_at_any_worker_of_another_server(
        self, cluster: Cluster, path: str
    ) -> None:
        for source, target in itertools.product((0, 1), (0, 1)):
            queue = f"{sum(map(ord, path))}-{source}-{target}"
            pusher = on(cluster["a"], source)
            configure(pusher, queue, namespace=queue)
            waiting_for = "" if "namespace" in path else queue
            poll = waits(cluster, on(cluster["b"], target), path.format(queue), waiting_for, pusher)
            parked(cluster["b"], target)
            push(pusher, {"n": 1}, queue=queue)
            assert poll.payloads() == [{"n": 1}]

    @pytest.mark.parametrize("path", ["/queue/{}?", "/queue/{}/partition/Default?"], ids=["queue", "partition"])
    @pytest.mark.parametrize(
        "without", [frozenset(), frozenset({Kind.LEASE_HINT_RELEASED})], ids=["told", "hint stays"]
    )
    def test_an_ack_wakes_who_waits_at_another_server_for_that_partition(
        self, cluster: Cluster, path: str, without: frozenset[Kind]
    ) -> None:
        """Also when the waiter's server has heard of the lease, and never hears that it is over."""
        queue = f"freed-{len(path)}-{len(without)}"
        cluster.network.link("a", "b").without = without
        first, second = on(cluster["a"], 0), on(cluster["b"], 1)
        message = leased(cluster, first, second, queue)
        poll = waits(cluster, second, path.format(queue), queue, first)
        parked(cluster["b"], 1)
        names = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
        status, _ = first.post("/api/v1/ack", names | {"status": "completed"})
        assert status == 200
        assert poll.payloads() == [2]

    @pytest.mark.parametrize("partition", ["by-sql", None])
    def test_who_pushes_with_sql_can_have_them_woken_through_any_server(
        self, cluster: Cluster, partition: str | None
    ) -> None:
        queue, here = f"by-sql-{partition}", on(cluster["a"], 0)
        poll = waits(cluster, on(cluster["b"], 1), f"/queue/{queue}?", queue, here)
        cluster.fetch(BY_SQL, queue, "by-sql", '"inserted"')
        status, _ = here.post("/internal/api/notify", {"queue": queue, "partition": partition})
        assert status == 200
        assert poll.payloads() == ["inserted"]

    def test_only_servers_with_consumers_are_told(self, cluster: Cluster) -> None:
        network, pusher = cluster.network, on(cluster["a"], 0)
        eventually(lambda: network.link("c", "a").told(Heartbeat)[-1].queues == 0)
        poll = waits(cluster, on(cluster["b"], 0), "/queue/wanted?", "wanted", pusher)
        before = cluster.stats("a")["consumer_presence"]["notifications_targeted"]
        push(pusher, 1, queue="wanted")
        assert poll.payloads() == [1]
        eventually(lambda: told(cluster, "a", "b", "wanted") == 5)  # once, and four times more in case it was lost
        assert told(cluster, "a", "c", "wanted") == 0
        assert cluster.stats("a")["consumer_presence"]["notifications_targeted"] == before + 1


def told(cluster: Cluster, one: str, other: str, queue: str) -> int:
    """How many packets said that this queue has messages."""
    return [message.queue for message in cluster.network.link(one, other).told(MessageAvailable)].count(queue)


def leased(cluster: Cluster, here: Client, there: Client, queue: str) -> dict[str, Any]:
    """The first of two messages, leased at a by who is `here`; b has heard of the lease, since somebody `there` has
    asked for that partition."""
    configure(here, queue, leaseTime=300)
    cluster.heard("b", there)
    status, _ = there.get(f"/api/v1/pop/queue/{queue}/partition/Default")
    assert status == 204
    eventually(lambda: attended(cluster.network.link("b", "a"), singly(queue)))
    cluster.heard("a", here)
    push(here, 1, 2, queue=queue)
    _, body = here.get(f"/api/v1/pop/queue/{queue}?batch=1")
    [message] = body["messages"]
    assert message["data"] == 1
    hints = cluster.network.link("a", "b")
    eventually(lambda: queue in [hint.queue for hint in hints.told(LeaseHintAcquired)])
    cluster.heard("b", there)
    assert cluster.stats("b", there)["lease_hints"]["size"] > 0
    return dict(message)


class TestConfigurations:
    def test_options_that_change_at_one_server_hold_at_the_others_without_a_refusal(self, cluster: Cluster) -> None:
        here, there = on(cluster["a"], 0), on(cluster["b"], 1)
        push(there, 1, queue="options")
        before = misses(cluster, "b")
        configure(here, "options", encryptionEnabled=True, maxSize=2)
        link = cluster.network.link("a", "b")
        eventually(lambda: "options" in [message.queue for message in link.told(QueueConfigSet)])
        cluster.heard("b", there)
        push(there, 2, queue="options")
        assert [row["encrypted"] for row in cluster.fetch(STORED, "options")] == [False, True]
        assert there.post("/api/v1/push", {"items": [{"queue": "options", "payload": 3}]})[0] == 429
        assert misses(cluster, "b") == before

    def test_what_was_not_told_is_noticed_when_it_matters(self, cluster: Cluster) -> None:
        here, there = on(cluster["a"], 0), on(cluster["b"], 1)
        push(there, 1, queue="untold")
        before = misses(cluster, "b")
        cluster.network.link("a", "b").without = frozenset({Kind.QUEUE_CONFIG_SET})
        configure(here, "untold", encryptionEnabled=True)
        push(there, 2, queue="untold")
        assert [row["encrypted"] for row in cluster.fetch(STORED, "untold")] == [False, True]
        assert misses(cluster, "b") > before

    @pytest.mark.parametrize("without", [frozenset(), frozenset({Kind.QUEUE_CONFIG_DELETE})], ids=["told", "untold"])
    def test_a_queue_that_is_deleted_at_one_server_is_made_anew_by_a_push_at_another(
        self, cluster: Cluster, without: frozenset[Kind]
    ) -> None:
        queue = f"deleted-{len(without)}"
        here, there = on(cluster["a"], 0), on(cluster["b"], 1)
        push(there, "before", queue=queue)
        remembered = cluster.stats("b")["partition_id_cache"]["size"]
        link = cluster.network.link("a", "b")
        link.without = without
        here.request("DELETE", f"/api/v1/resources/queues/{queue}")
        assert here.answer()[1]["existed"] is True
        if not without:
            eventually(lambda: queue in [message.queue for message in link.told(QueueConfigDelete)])
            cluster.heard("b", there)
            assert cluster.stats("b")["partition_id_cache"]["size"] == remembered - 1
        push(there, "after", queue=queue)
        _, body = here.get(f"/api/v1/pop/queue/{queue}?batch=10")
        assert [message["data"] for message in body["messages"]] == ["after"]


class TestPartition:
    def test_two_servers_that_do_not_hear_each_other_agree_when_they_do_again(self, cluster: Cluster) -> None:
        """What changes at either of them while they are apart, and is not used there, is known to the other later."""
        here, there = on(cluster["a"], 0), on(cluster["b"], 0)
        for worker in (0, 1):
            push(on(cluster["a"], worker), 0, queue="apart-b")
            push(on(cluster["b"], worker), 0, queue="apart-a")
        cluster.network.block("a", "b")
        eventually(lambda: cluster.alive("a") == cluster.alive("b") == 1)
        configure(here, "apart-a", encryptionEnabled=True)
        configure(there, "apart-b", encryptionEnabled=True)
        for number in range(20):
            configure(here if number % 2 else there, f"apart-{number}")
        assert taken(here, there) == list(range(20))

        cluster.network.heal()
        cluster.meet()
        total = len(cluster.fetch("select from queen.queues"))
        for name in ("a", "b"):
            eventually(lambda name=name: cluster.stats(name)["queue_config_cache"]["entries"] == 2 * total)  # type: ignore[misc]
            assert cluster.stats(name)["queue_config_cache"]["size"] == total
        before = misses(cluster, "a"), misses(cluster, "b")
        push(here, 1, queue="apart-b")
        push(there, 1, queue="apart-a")
        assert (misses(cluster, "a"), misses(cluster, "b")) == before
        for queue in ("apart-a", "apart-b"):
            assert [row["encrypted"] for row in cluster.fetch(STORED, queue)] == [False, False, True]

        poll = waits(cluster, there, "/queue/together?", "together", here)
        push(here, "again", queue="together")
        assert poll.payloads() == ["again"]

    def test_with_no_packet_at_all_everything_works_a_little_later(self, database: str, tmp_path: Path) -> None:
        cluster = Cluster(tmp_path, database, "a", "b", workers=1)
        try:
            cluster.network.block("a", "b")
            eventually(lambda: cluster.alive("a") == cluster.alive("b") == 0)
            here, there = cluster["a"].connect(), cluster["b"].connect()
            poll = Poll(there, "/api/v1/pop/queue/slow?wait=true&timeout=30000&autoAck=true")
            parked(cluster["b"], 0)
            push(here, 1, queue="slow")
            assert poll.payloads() == [1]
            configure(here, "slow", maxSize=1)
            push(there, 2, queue="slow")
            assert there.post("/api/v1/push", {"items": [{"queue": "slow", "payload": 3}]})[0] == 429
            assert cluster.errors() == []
        finally:
            cluster.end()


def taken(here: Client, there: Client) -> list[int]:
    """What one group takes from both servers in turn, of messages that were pushed through both."""
    for number in range(20):
        push(here if number % 2 else there, number, queue="apart-flow")
    found: list[int] = []
    for client in itertools.cycle((here, there)):
        _, body = client.get("/api/v1/pop/queue/apart-flow?batch=3&autoAck=true")
        if body is None:
            return found
        found += [message["data"] for message in body["messages"]]
    raise AssertionError


class TestRestart:
    def test_a_server_that_dies_is_missed_and_when_it_is_back_it_is_heard_at_once(self, cluster: Cluster) -> None:
        here = on(cluster["a"], 0)
        before = {name: restarts(cluster, name) for name in ("a", "b")}
        cluster.kill("c")
        for name in before:
            eventually(lambda name=name: cluster.stats(name)["server_health"]["servers_dead"] == 1)  # type: ignore[misc]
            assert silence(cluster, name) > 0.9
        cluster.start("c").wait_ready()
        cluster.meet()
        assert {name: restarts(cluster, name) - 1 for name in before} == before

        poll = waits(cluster, on(cluster["c"], 1), "/queue/back?", "back", here, at="c")
        push(here, "welcome", queue="back")
        assert poll.payloads() == ["welcome"]
        woken = Poll(here, "/api/v1/pop/queue/thanks?wait=true&timeout=30000")
        back = on(cluster["c"], 0)
        eventually(lambda: attended(cluster.network.link("a", "c"), "thanks"))
        cluster.heard("c", back)
        push(back, "thanks", queue="thanks")
        assert woken.payloads() == ["thanks"]

    def test_what_it_said_in_its_earlier_life_counts_for_nothing(self, cluster: Cluster) -> None:
        """Its whole past is sent again: nobody takes it for alive, for another, or for restarted."""
        cluster.kill("c")
        cluster.start("c").wait_ready()
        cluster.meet()
        before, dropped = restarts(cluster, "a"), cluster.stats("a")["transport"]["dropped"]
        assert cluster.network.link("c", "a").replay() > 10
        eventually(lambda: cluster.stats("a")["transport"]["dropped"].get("outdated", 0) > dropped.get("outdated", 0))
        cluster.heard("a", on(cluster["a"], 0))
        assert restarts(cluster, "a") == before
        assert cluster.alive("a") == 2


def silence(cluster: Cluster, name: str) -> float:
    """For how many seconds this server had not heard c when it took it for dead."""
    [*_, said] = [line for line in cluster[name].log if "server c has not been heard for 1 s" in line["message"]]
    heard = cluster.stats(name)["server_health"]["last_heartbeat"]["c"]
    return (datetime.fromisoformat(said["time"]) - datetime.fromisoformat(heard)).total_seconds()


def restarts(cluster: Cluster, name: str) -> int:
    return int(cluster.stats(name)["server_health"]["restarts_detected"])


async def test_a_hostile_network_changes_nothing(cluster: Cluster) -> None:
    """Three packets in ten are lost, others come twice, late, out of order, again and again, or from a stranger."""
    network, choice = cluster.network, random.Random(1)
    connection = await asyncpg.connect(cluster.dsn)
    ports = [cluster[name].port for name in NAMES]
    for queue in QUEUES:
        configure(cluster["a"].connect(), queue, **OPTIONS)
    network.disturb(loss=0.3, doubled=0.3, late=0.05)
    flow = Flow([partial(HttpDoor, port) for port in ports], connection, seconds=2)

    def attack() -> None:
        while not flow.enough.is_set():
            for link in network.links.values():
                link.forge(choice)
                link.replay()
            time.sleep(0.02)  # the servers are to be busy, not the test

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flow.run())
        tasks.create_task(asyncio.to_thread(attack))
    await connection.close()
    for name in NAMES:
        dropped = cluster.stats(name)["transport"]["dropped"]
        assert min(dropped[reason] for reason in ("signature", "repeated", "size")) > 0, dropped
    network.heal()
    cluster.meet()
    poll = waits(cluster, on(cluster["b"], 0), "/queue/after?", "after", here := on(cluster["a"], 0))
    push(here, "all that", queue="after")
    assert poll.payloads() == ["all that"]
