"""Whatever workers remember, and however wrong it is: nothing is lost, doubled, reordered or in a wrong partition.

Three workers on one database serve a load whose books are kept, while somebody writes nonsense straight into what they
remember and what they believe of each other. They would not look by themselves for a minute. The names of the tests are
the lines of the checklist for what servers share. PROOF_SCALE=6 makes the runs that many times longer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

import asyncpg
import pytest

from queenmq.cluster.caches.lease_hints import MOST as MOST_HINTS
from queenmq.cluster.caches.lease_hints import LeaseHints
from queenmq.cluster.caches.presence import Presence
from queenmq.cluster.siblings import Siblings
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.waiters import Key, Waiters
from queenmq.storage.directory import Directory
from tests.amounts import SCALE
from tests.cluster.hosts import Net
from tests.engine.saying import ask, push, read, until
from tests.proof.poison import CIPHER, WORKERS, BrokerDoor, Poisoner, Workers
from tests.proof.spread import SINGLY, Flow

SECONDS = 0.6 * SCALE
IN_CLEAR = "select count(*) from queen.messages where queue = 'bills' and not encrypted"


@pytest.fixture
async def workers(database: str) -> AsyncIterator[Workers]:
    opened = Workers(database)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def poisoner(workers: Workers) -> Poisoner:
    prepared = Poisoner(workers)
    await prepared.prepare()
    return prepared


@pytest.fixture
def flow(workers: Workers, connection: asyncpg.Connection) -> Flow:
    doors = [partial(BrokerDoor, workers, number) for number in range(WORKERS)]
    return Flow(doors, connection, SECONDS, CIPHER.decrypt)


async def woken(workers: Workers, source: int, target: int) -> None:
    """A push at one worker wakes who waits at the other: only what it is told can explain that."""
    shared = workers.brokers[source].shared
    for partition in (None, "p"):
        queue = f"{source}-{target}-{partition}"
        waiting = workers.brokers[target].pop(ask(queue=queue, partition=partition, wait=20.0, auto_ack=True))
        await until(lambda queue=queue: shared.siblings.waited_for(queue))  # type: ignore[misc]
        await push(workers.brokers[source], "hello", queue=queue)
        assert read(await waiting) == ["hello"]


POISONS: dict[str, list[Callable[[Poisoner, Broker], None]]] = {
    "configurations": [Poisoner.wrong_config],
    "places": [Poisoner.wrong_place],
    "hints and presence": [Poisoner.wrong_hint, Poisoner.wrong_presence],
    "everything": [
        Poisoner.wrong_config,
        Poisoner.wrong_place,
        Poisoner.wrong_hint,
        Poisoner.wrong_presence,
        Poisoner.forgetting,
    ],
}


@pytest.mark.parametrize("kind", POISONS)
async def test_stale_cache_correct_behaviour(poisoner: Poisoner, flow: Flow, kind: str) -> None:
    await poisoned(poisoner, flow, *POISONS[kind])


async def poisoned(poisoner: Poisoner, flow: Flow, *poisons: Callable[[Poisoner, Broker], None]) -> None:
    wanted = ("pushed", "wide something", "single something")
    flow.satisfied = lambda: poisoner.count > 100 and min(flow.happened[each] for each in wanted) > 10
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flow.run())
        tasks.create_task(poisoner.run(flow, *poisons))
    assert flow.satisfied(), (poisoner.count, flow.happened)
    pool = poisoner.workers.brokers[0].store.pool
    assert await pool.fetchval(IN_CLEAR) == 0, "a message of an encrypted queue was stored in clear"
    assert await pool.fetch("select * from queen.partition_lookup_check()") == []


async def test_stale_cache_of_leases_that_nobody_holds_is_believed_for_its_time_only(
    workers: Workers, poisoner: Poisoner
) -> None:
    broker = workers.brokers[0]
    place = poisoner.places[SINGLY, "p0"]
    await push(broker, "held back", queue=SINGLY, partition="p0")
    await broker.pop(ask(queue=SINGLY, partition="p1"))  # who asks first does not believe what was told before
    broker.shared.hints._random = lambda: 1.0  # no look asks the database all the same
    broker.shared.hints.acquired(place.uid, "g", "here", SINGLY, 0.2)
    wanted = partial(ask, queue=SINGLY, partition="p0", group="g", auto_ack=True)
    found: list[object] = []
    async with asyncio.timeout(20):
        while not found:
            found = read(await broker.pop(wanted(wait=0.05)))
    assert found == ["held back"]
    assert broker.shared.hints.stats()["hints_used"] > 0


async def test_cache_miss_database_fallback(workers: Workers, poisoner: Poisoner, flow: Flow) -> None:
    await poisoned(poisoner, flow, Poisoner.forgetting)
    assert sum(broker.store.directory.stats()["misses"] for broker in workers.brokers) > 50


async def test_high_message_rate_no_message_loss(poisoner: Poisoner, flow: Flow) -> None:
    flow.rush = True
    await poisoned(poisoner, flow, *POISONS["everything"])


async def test_network_partition_graceful_degradation(workers: Workers, poisoner: Poisoner, flow: Flow) -> None:
    """Nobody hears anybody, and then they do again: of what was said meanwhile a part has been forgotten."""
    loop, inboxes = asyncio.get_running_loop(), []
    for broker in workers.brokers:
        siblings = broker.shared.siblings
        assert siblings._inbox is not None
        loop.remove_reader(siblings._inbox)
        inboxes.append((siblings, siblings._inbox))
    heard = [siblings.received for siblings, _ in inboxes]
    await flow.run()
    assert [siblings.received for siblings, _ in inboxes] == heard
    for siblings, inbox in inboxes:
        loop.add_reader(inbox, siblings._read, inbox)
    for source, target in ((0, 1), (1, 2), (2, 0)):
        await woken(workers, source, target)


async def test_server_restart_sync_recovery(workers: Workers, poisoner: Poisoner, flow: Flow) -> None:
    """Also who waited elsewhere before a worker began is woken by what is pushed there."""
    patient = workers.brokers[0].pop(ask(queue="patient", wait=60.0, auto_ack=True))

    replaced: list[int] = []
    flow.satisfied = lambda: len(replaced) == 2

    async def restart() -> None:
        for number in (1, 2):
            before = flow.happened["pushed"]
            await until(lambda before=before: flow.happened["pushed"] > before)  # type: ignore[misc]
            await workers.replace(number)
            replaced.append(number)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flow.run())
        tasks.create_task(restart())
    await push(workers.brokers[1], "at last", queue="patient")
    async with asyncio.timeout(20):
        assert read(await patient) == ["at last"]
    for source, target in ((0, 1), (1, 0), (2, 1)):
        await woken(workers, source, target)


@dataclass(slots=True)
class Standing:
    """A waiter."""

    key: Key
    ticket: int
    gone: bool = False


class TestMemoryStaysBoundedWith100kPartitions:
    MANY = 100_000

    def test_of_what_is_remembered(self) -> None:
        directory = Directory(max_entries=self.MANY // 10)
        for number in range(self.MANY):
            name = f"q{number % 100}", f"p{number}"
            directory._remember([name], [(1, number, f"uid-{number}", number % 100, False, False)])
        shelf = directory._partitions
        assert len(shelf) == len(shelf._entries) == self.MANY // 10
        assert sum(map(len, shelf._queues.values())) == self.MANY // 10
        assert directory.stats()["evictions"] == self.MANY * 9 // 10

    def test_of_lease_hints(self) -> None:
        hints = LeaseHints(lambda server: True)
        for number in range(self.MANY):
            hints.acquired(f"uid-{number}", "g", "there", f"q{number % 100}", 60)
        assert len(hints) == sum(map(len, hints._hints.values())) == MOST_HINTS
        hints = LeaseHints(lambda server: True)
        for number in range(self.MANY):
            hints.acquired(f"uid-{number % 100}", "g", "there", "renewed", 60)
        assert len(hints) == 100
        assert len(hints._schedule) < 500

    async def test_of_those_who_waited(self) -> None:
        """Of one who has left nothing is kept but an entry in the calendar, until its time."""
        woken: list[Standing] = []
        waiters: Waiters[Standing] = Waiters(EngineConfig(dsn="", poll_first=0.05, poll_max=0.05), woken.append)
        for number in range(self.MANY):
            one = Standing(Key("g", f"q{number % 100}", f"p{number}"), waiters.ticket())
            assert waiters.enter(one)
            waiters.park(one, None)
            one.gone = True
            waiters.remove(one)
        assert (waiters.lines, waiters.parked, waiters._topics) == (0, 0, {})
        await until(lambda: not waiters._due)
        assert woken == []

    async def test_of_other_servers(self) -> None:
        """What they have told, and what is to be said to them again."""
        net = Net()
        try:
            host = net.start("a", ["b"])
            other = net.start("b", ["a"])
            await net.met()
            other.bus.arrived(None)
            gateway = host.gateway
            await until(lambda: bool(gateway._audience.consumers_of("q0")))
            for number in range(self.MANY):
                gateway._first_time(("b", f"q{number}", "p"), number)
                if number < 5_000:
                    gateway.pushed(f"q{number}", "p")
            assert len(gateway._times) == 10_000
            assert len(gateway._echoes._latest) == 2_000
        finally:
            net.close()

    def test_of_what_other_servers_wait_for(self) -> None:
        """Of whom not everything is remembered, it is known that it is not."""
        presence = Presence()
        for number in range(2 * self.MANY):
            presence.register(f"q{number % 1000}", f"server-{number // 1000}")
        assert sum(map(len, presence._queues.values())) == sum(map(len, presence._servers.values())) == self.MANY
        for server in ("server-0", "server-150"):
            presence.told(server, 1000)
        assert presence.complete("server-0")
        assert not presence.complete("server-150")
        assert presence.stats()["not_remembered"] == self.MANY

    async def test_of_what_siblings_have_not_read(self) -> None:
        inbox, outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        siblings = Siblings(0, inbox, {1: outbox})
        (other,) = siblings._siblings.values()
        other.waits_for.add("q")
        for number in range(self.MANY):
            siblings.pushed([("q", f"p{number}")])
            if number % 1_000 == 0:
                await asyncio.sleep(0)
                assert len(other.unsent) <= 21_000
        assert siblings.lost > 0
        siblings.close()
