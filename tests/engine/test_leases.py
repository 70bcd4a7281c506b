"""The memory of leases: which message is which, bounded, and learned from the database when another gave it out."""

from __future__ import annotations

import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.leases import Held, LeaseMemory
from queenmq.storage.pop import QUEUE_MODE
from tests.engine.saying import QUEUE, acks_of, ask, entry, push, read, successes

BASE = "0196c2f5-1111-7000-8000-000000000000"


def held(*columns: tuple[int, int, str, int, bytes | None], low: int, high: int) -> Held:
    return Held(QUEUE, "p", 1, "g", 2, low, high, list(columns))


def test_names_are_found_across_segments_and_only_within_the_lease() -> None:
    one = held((3, 3, BASE, 0, b"a\x1eb\x1ec"), (5, 2, BASE, 7, b"d\x1e"), low=1, high=5)
    assert one.upto(["b", "c", "d", BASE[:32] + "0008"]) == 5
    assert [one.seq(name) for name in ("a", "b", "c", "d", BASE[:32] + "0008")] == [None, 2, 3, 4, 5]
    assert (one.upto(["c", "b"]), one.upto(["d"]), one.upto(["b", "a"]), one.upto(["nobody"])) == (3, 4, None, None)


def test_a_segment_without_names_is_known_by_its_ids() -> None:
    one = held((10, 4, BASE, 2, None), low=7, high=9)
    assert one.upto([BASE[:32] + "0003", BASE[:32] + "0004"]) == 9


FOUR = held((4, 4, BASE, 0, None), low=0, high=4)


def test_a_lease_that_is_read_twice_takes_the_room_of_one() -> None:
    """As it happens when two flushes ask for it at the same time."""
    memory = LeaseMemory(max_bytes=2 * FOUR.weight)
    for _ in range(100):
        memory._add("lease", {"uid": FOUR})
    memory._add("another", {"uid": FOUR})
    assert memory.knows("lease")


def test_what_was_given_out_first_is_forgotten_first() -> None:
    memory = LeaseMemory(max_bytes=2 * FOUR.weight)
    for number in range(5):
        memory._add(f"lease-{number}", {"uid": FOUR})
    assert len(memory) == 2
    assert memory.find("lease-2", "uid", "g") is None
    assert memory.find("lease-4", "uid", "g") is not None
    assert memory.find("lease-4", "uid", "another group") is None
    memory.forget("lease-4", "uid")
    assert not memory.knows("lease-4")


async def test_a_large_segment_in_small_pieces_takes_the_room_of_the_pieces(broker: Broker) -> None:
    await broker.push([entry(n, tx=f"{n}-{'x' * 100}") for n in range(1000)])
    for number in range(5):
        (claim,) = (won := await broker.pop(ask(batch=2))).claims
        assert claim.segments[0].n == 1000
        piece = broker.leases.find(claim.lease_id, claim.partition_uid, QUEUE_MODE)
        assert piece is not None
        assert piece.weight < 3000
        names = [message.transaction_id for message in claim.messages()]
        assert [piece.seq(name) for name in names] == [2 * number + 1, 2 * number + 2]
        assert successes(await broker.ack(acks_of(won))) == [True, True]


@pytest.mark.parametrize("tx", ["mine", None])
async def test_another_worker_can_ack_what_this_one_gave_out(broker: Broker, database: str, tx: str | None) -> None:
    await broker.push([entry(n, tx=tx and f"{tx}-{n}") for n in range(3)])
    won = await broker.pop(ask())
    other = await Broker.open(EngineConfig(dsn=database, connections=2, admin_connections=1))
    try:
        stretches = await other.ack(acks_of(won))
        assert successes(stretches) == [True] * 3
        assert stretches[0].results is None, "the lease was read once, not message by message"
        assert stretches[0].released
    finally:
        await other.close()
    assert read(await broker.pop(ask())) == []


async def test_an_ack_repeated_after_the_lease_has_ended_succeeds(broker: Broker) -> None:
    await push(broker, 1, 2)
    won = await broker.pop(ask())
    for _ in range(2):
        assert successes(await broker.ack(acks_of(won))) == [True, True]
    assert len(broker.leases) == 0
