"""A hundred thousand damaged packets and ten thousand recordings: nothing changes, nothing is logged, nothing grows."""

from __future__ import annotations

import logging
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queenmq.cluster.messages import (
    ConsumerDeregistered,
    ConsumerRegistered,
    Heartbeat,
    LeaseHintAcquired,
    LeaseHintReleased,
    Message,
    MessageAvailable,
    PartitionDeleted,
    PartitionFree,
    QueueConfigDelete,
    QueueConfigSet,
    encode,
)
from queenmq.cluster.packets import MAX_DATAGRAM, Sealer
from queenmq.domain.queue_config import QueueConfig
from tests.cluster.hosts import SECRET, Host, Net
from tests.engine.saying import until

DAMAGED = 100_000
RECORDED = 10_000
SOURCE = ("203.0.113.9", 6633)
MESSAGES: list[Message] = [
    MessageAvailable("orders", "p1", 1),
    PartitionFree("orders", "p1", "g", 1),
    Heartbeat(1, 1),
    QueueConfigSet("orders", QueueConfig(queue_id=1, version=9), 9),
    QueueConfigDelete("orders"),
    ConsumerRegistered("orders", "z"),
    ConsumerDeregistered("orders", "z"),
    PartitionDeleted("orders", "p1"),
    LeaseHintAcquired("uid", "g", "z", 2**50, "orders"),
    LeaseHintReleased("uid", "g", "z", "orders"),
]


@pytest.fixture
async def host() -> Any:
    net = Net()
    yield net.start("a", [])
    net.close()


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, logger="queenmq"):
        caplog.clear()
        yield
        assert [record.getMessage() for record in caplog.records] == []


def state(host: Host) -> Any:
    """All that packets can change."""
    gateway, presence = host.gateway, host.gateway._audience.presence
    return (
        dict(gateway._senders._last),
        {name: (each.session, each.alive) for name, each in gateway._audience.health._servers.items()},
        dict(presence._servers),
        {server: set(queues) for server, queues in presence._queues.items()},
        dict(presence._told),
        dict(gateway._peers._servers),
        set(gateway._peers._own),
        dict(gateway._times),
        dict(gateway._audience.vague),
        dict(gateway._siblings._here),
        host.worker.pushes + host.worker.frees + host.worker.messages,
    )


def damages(chance: random.Random) -> list[Callable[[bytes], bytes]]:
    def flip(data: bytes) -> bytes:
        at = chance.randrange(len(data) * 8)
        return data[: at // 8] + bytes([data[at // 8] ^ (1 << at % 8)]) + data[at // 8 + 1 :]

    def cut(data: bytes) -> bytes:
        return data[: chance.randrange(len(data))]

    def grow(data: bytes) -> bytes:
        return data + chance.randbytes(chance.randrange(1, 2 * MAX_DATAGRAM))

    def noise(data: bytes) -> bytes:
        return chance.randbytes(chance.randrange(2 * MAX_DATAGRAM))

    def other_payload(data: bytes) -> bytes:
        return data[:92] + chance.randbytes(len(data) - 92)

    def other_sender(data: bytes) -> bytes:
        return data[:36] + chance.randbytes(32) + data[68:]

    def later(data: bytes) -> bytes:
        return data[:84] + chance.randbytes(8) + data[92:]

    return [flip, cut, grow, noise, other_payload, other_sender, later]


async def prepared(host: Host) -> list[bytes]:
    """A server it has heard, and everything that server has sent."""
    sealer = Sealer(SECRET, "z", 5, clock=host.gateway._clock.micros)
    packets = [sealer.seal(*encode(message)) for message in MESSAGES]
    for packet in packets:
        host.gateway._heard(packet, SOURCE)
    await until(lambda: host.worker.servers() == {"z"} and len(host.worker.messages) >= 2)
    return packets


async def test_damaged_packets(host: Host, quiet: None) -> None:
    packets = await prepared(host)
    chance = random.Random(20)
    kinds = damages(chance)
    before = state(host)
    received = sum(host.gateway.dropped.values())
    tracemalloc.start()
    try:
        held = []
        for part in (DAMAGED // 10, DAMAGED - DAMAGED // 10):
            for _ in range(part):
                host.gateway._heard(chance.choice(kinds)(chance.choice(packets)), SOURCE)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert state(host) == before
    assert sum(host.gateway.dropped.values()) - received == DAMAGED
    assert set(host.gateway.dropped) == {"size", "signature"}
    assert held[1] - held[0] < 100_000


async def test_recordings(host: Host, quiet: None) -> None:
    """Of the session that goes on, and of earlier ones, in any order."""
    packets = await prepared(host)
    earlier = Sealer(SECRET, "z", 4, clock=host.gateway._clock.micros)
    packets += [earlier.seal(*encode(message)) for message in MESSAGES]
    chance = random.Random(21)
    before = state(host)
    for _ in range(RECORDED):
        host.gateway._heard(chance.choice(packets), ("198.51.100.7", chance.randrange(1, 65_536)))
    assert state(host) == before
    assert set(host.gateway.dropped) == {"repeated", "outdated"}
    assert sum(host.gateway.dropped.values()) == RECORDED


async def test_well_signed_nonsense(host: Host, quiet: None) -> None:
    """Whoever knows the secret may still have a fault: its payloads are read strictly."""
    await prepared(host)
    sealer = Sealer(SECRET, "y", 1, clock=host.gateway._clock.micros)
    chance = random.Random(22)
    before = state(host)
    for _ in range(RECORDED):
        kind, payload = encode(chance.choice(MESSAGES))
        at = chance.randrange(len(payload))
        damaged = payload[:at] + b"\xc1" + payload[at + 1 :]  # a byte that MessagePack never uses
        host.gateway._heard(
            sealer.seal(kind, chance.choice((damaged[: at + 1], payload[:at], b"\x93" + payload))), SOURCE
        )
    assert state(host) == before
    assert host.gateway.dropped == {"payload": RECORDED}
