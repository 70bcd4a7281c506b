"""Workers in one process that can be poisoned: wrong things are written straight into what they remember."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from queenmq.cluster.shared_state import SharedState
from queenmq.cluster.siblings import Siblings
from queenmq.domain.cipher import Cipher
from queenmq.domain.queue_config import QueueConfig
from queenmq.domain.segments import Place
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.errors import Stopping
from queenmq.engine.requests import PopAsk
from queenmq.storage.directory import Directory
from queenmq.storage.queue_configs import load_configs
from queenmq.wire.requests import AckEntry, PushEntry
from tests.amounts import SEED
from tests.engine.saying import successes
from tests.proof.spread import GROUPS, OPTIONS, PARTITIONS, QUEUES, SINGLY, Flow, Got, Item

WORKERS = 3
CIPHER = Cipher(bytes(range(32)))
REAL: dict[str, dict[str, Any]] = {
    "orders": {**OPTIONS},
    "bills": {**OPTIONS, "encryptionEnabled": True},
    SINGLY: {**OPTIONS, "maxSize": 1_000_000},
}
NAMES = [(queue, f"p{number}") for queue in QUEUES for number in range(PARTITIONS)]
WRONG: list[dict[str, Any]] = [
    {"encryption_enabled": True},
    {"encryption_enabled": False},
    {"max_size": 0},
    {"max_size": 1},
    {"lease_time": 1},
    {"lease_time": 10**6},
    {"queue_id": 99_999_999},
    {"version": 2**60, "encryption_enabled": False, "max_size": 0},
    {"version": 0, "encryption_enabled": True, "max_size": 1},
]


class Workers:
    """Brokers that are each other's siblings. Any of them can be replaced by another one with the same number."""

    def __init__(self, dsn: str) -> None:
        self.brokers: list[Broker] = []
        self._config = EngineConfig(
            dsn=dsn, connections=4, admin_connections=2, poll_first=60.0, poll_max=60.0, retry_timeout=5.0
        )
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(WORKERS)]

    async def open(self) -> None:
        for number in range(WORKERS):
            self.brokers.append(await self._opened(number))

    async def replace(self, number: int) -> None:
        before = self.brokers[number]
        await before.drain()
        await before.close()
        self.brokers[number] = await self._opened(number)

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.drain()
            await broker.close()
        for pair in self._pairs:
            for end in pair:
                end.close()

    async def _opened(self, number: int) -> Broker:
        return await Broker.open(self._config, CIPHER, partial(self._shared, number))

    def _shared(self, number: int, directory: Directory) -> SharedState:
        outboxes = {other: pair[1].dup() for other, pair in enumerate(self._pairs) if other != number}
        siblings = Siblings(number, self._pairs[number][0].dup(), outboxes)
        return SharedState(siblings, directory, server_id="here", number=number)


class BrokerDoor:
    """A client of that worker, who comes again when the worker is being replaced."""

    def __init__(self, workers: Workers, number: int) -> None:
        self._workers = workers
        self._number = number

    async def push(self, items: Sequence[Item]) -> list[str]:
        entries = [PushEntry(one.queue, _raw(one.payload), one.partition, one.transaction_id) for one in items]
        receipt = await self._asked(lambda broker: broker.push(entries))
        return [verdict.status for verdict in receipt.verdicts()]

    async def pop(self, queue: str, group: str, partition: str | None, batch: int, seconds: float) -> list[Got]:
        wanted = PopAsk(queue=queue, partition=partition, group=group, batch=batch, wait=seconds)
        result = await self._asked(lambda broker: broker.pop(wanted))
        return [
            Got(claim.partition, msgspec.json.decode(one.payload), one.transaction_id, claim.partition_uid, lease)
            for claim in result.claims
            if (lease := claim.lease_id) is not None
            for one in claim.messages()
        ]

    async def ack(self, group: str, messages: Sequence[Got]) -> list[bool]:
        entries = [AckEntry(one.transaction_id, one.partition_id, "completed", one.lease_id) for one in messages]
        return successes(await self._asked(lambda broker: broker.ack(entries, group)))

    def close(self) -> None: ...

    async def _asked(self, call: Callable[[Broker], asyncio.Future[Any]]) -> Any:
        async with asyncio.timeout(20):
            while True:
                try:
                    return await call(self._workers.brokers[self._number])
                except Stopping:
                    await asyncio.sleep(0.01)


def _raw(payload: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(payload))


class Poisoner:
    """Knows what is true, and writes something else into what a worker remembers. It counts how often."""

    def __init__(self, workers: Workers) -> None:
        self.count = 0
        self.configs: dict[str, QueueConfig] = {}
        self.places: dict[tuple[str, str], Place] = {}
        self.workers = workers
        self._choice = random.Random(SEED)

    async def prepare(self) -> None:
        """Make the queues, with every partition and group."""
        store = self.workers.brokers[0].store
        for queue, real in REAL.items():
            await store.configure(queue, **real)
        self.configs = dict(await load_configs(store.pool))
        self.places = dict(zip(NAMES, await store.directory.partitions(store.pool, NAMES), strict=True))

    async def run(self, flow: Flow, *poisons: Callable[[Poisoner, Broker], None]) -> None:
        """Until the flow is drained: what it drains is poisoned as well."""
        while not flow.drained.is_set():
            for broker in self.workers.brokers:
                self._choice.choice(poisons)(self, broker)
                self.count += 1
            await asyncio.sleep(self._choice.uniform(0, 0.004))

    def wrong_config(self, broker: Broker) -> None:
        queue = self._choice.choice(QUEUES)
        other = self.configs[self._choice.choice(QUEUES)]
        wrong = self._choice.choice([*WRONG, {"queue_id": other.queue_id}])
        broker.store.directory.configs.force(queue, msgspec.structs.replace(self.configs[queue], **wrong))

    def wrong_place(self, broker: Broker) -> None:
        name, other = self._choice.sample(NAMES, 2)
        place, wrong = self.places[name], self.places[other]
        place = self._choice.choice(
            [
                wrong,
                place._replace(partition_id=wrong.partition_id, uid=wrong.uid),
                place._replace(partition_id=2**40),
                place._replace(bounded=not place.bounded),
                place._replace(encryption_enabled=not place.encryption_enabled),
            ]
        )
        broker.store.directory._remember([name], [(1, *place)])

    def wrong_hint(self, broker: Broker) -> None:
        """Of a partition that nobody holds, most of the time; or that one is free which somebody holds."""
        queue, partition = self._choice.choice(NAMES)
        uid, group = self.places[queue, partition].uid, self._choice.choice(GROUPS)
        if self._choice.random() < 0.5:
            broker.shared.hints.acquired(uid, group, "here", queue, self._choice.uniform(0, 0.2))
        else:
            broker.shared.hints.released(uid, group)

    def wrong_presence(self, broker: Broker) -> None:
        for sibling in broker.shared.siblings._siblings.values():
            sibling.waits_for.clear()
            if self._choice.random() < 0.3:
                sibling.waits_for.update(("nonsense", "", self._choice.choice(QUEUES)))

    def forgetting(self, broker: Broker) -> None:
        directory = broker.store.directory
        queue = self._choice.choice(QUEUES)
        forget: list[Callable[[], object]] = [
            partial(directory.forget_queue, queue),
            partial(directory.configs.remove, queue),
            partial(directory.forget_partitions, self._choice.sample(NAMES, 5)),
            partial(directory.forget_group, queue, self._choice.choice(GROUPS)),
            partial(broker.shared.hints.forget_queue, queue),
        ]
        self._choice.choice(forget)()
