"""The datagram: its bytes, and that nothing but the very packet of somebody who knows the secret is taken."""

from __future__ import annotations

import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.packets import (
    MAX_DATAGRAM,
    MAX_PAYLOAD,
    MAX_SEQUENCE,
    Drop,
    Kind,
    Opener,
    Packet,
    PayloadTooLarge,
    Sealer,
)

SECRET = bytes(range(32))
SENDER = "queen-mq-0"
SESSION = 0x0000_0191_2345_6789
GOLDEN = (
    "0101000e"
    "ed8ad781d0e1577d362f801132940f850d27397f6812479ceed8888e84d359f1"
    "717565656e2d6d712d3000000000000000000000000000000000000000000000"
    "30303030303139313233343536373839"
    "0000000000000001"
    "81a57175657565a66f7264657273"
)


def forged(
    *,
    version: int = 1,
    number: int = 3,
    length: int | None = None,
    sender: bytes = b"queen-mq-0",
    session: bytes = b"0000019123456789",
    sequence: int = 1,
    payload: bytes = b"\x80",
    secret: bytes = SECRET,
) -> bytes:
    """A packet of somebody who has the secret and another program: written after the description, not with our code."""
    kind = struct.pack(">BB", version, number)
    rest = sender.ljust(32, b"\0") + session + struct.pack(">Q", sequence)
    signature = hmac.new(secret, kind + rest + payload, hashlib.sha256).digest()
    return kind + struct.pack(">H", len(payload) if length is None else length) + signature + rest + payload


def test_the_header_has_92_bytes_and_a_datagram_1400_at_most() -> None:
    sealer = Sealer(SECRET, SENDER, SESSION)
    assert len(sealer.seal(Kind.HEARTBEAT, b"")) == 92
    assert len(sealer.seal(Kind.HEARTBEAT, bytes(MAX_PAYLOAD))) == MAX_DATAGRAM == 1400


def test_a_packet_of_long_ago_is_still_understood() -> None:
    payload = b"\x81\xa5queue\xa6orders"
    assert Sealer(SECRET, SENDER, SESSION).seal(Kind.MESSAGE_AVAILABLE, payload).hex() == GOLDEN
    golden = bytes.fromhex(GOLDEN)
    assert Opener(SECRET).open(golden) == Packet(Kind.MESSAGE_AVAILABLE, SENDER, SESSION, 1, payload)


@pytest.mark.parametrize("kind", Kind)
def test_a_packet_has_exactly_these_bytes(kind: Kind) -> None:
    payload = b"\x81\xa5queue\xa6orders"
    assert Sealer(SECRET, SENDER, SESSION).seal(kind, payload) == forged(number=kind, payload=payload)


def test_the_numbers_of_the_types_are_part_of_the_format() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        "MESSAGE_AVAILABLE": 1,
        "PARTITION_FREE": 2,
        "HEARTBEAT": 3,
        "QUEUE_CONFIG_SET": 10,
        "QUEUE_CONFIG_DELETE": 11,
        "CONSUMER_REGISTERED": 20,
        "CONSUMER_DEREGISTERED": 21,
        "PARTITION_DELETED": 25,
        "LEASE_HINT_ACQUIRED": 30,
        "LEASE_HINT_RELEASED": 31,
    }


@given(
    kind=st.sampled_from(Kind),
    sender=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=31),
    session=st.integers(0, 2**64 - 1),
    payloads=st.lists(st.binary(max_size=MAX_PAYLOAD), min_size=1, max_size=5),
)
def test_what_is_sealed_can_be_opened(kind: Kind, sender: str, session: int, payloads: list[bytes]) -> None:
    sealer, opener = Sealer(SECRET, sender, session), Opener(SECRET)
    for sequence, payload in enumerate(payloads, 1):
        assert opener.open(sealer.seal(kind, payload)) == Packet(kind, sender, session, sequence, payload)


def test_the_largest_numbers_survive() -> None:
    packet = Opener(SECRET).open(forged(session=b"f" * 16, sequence=MAX_SEQUENCE))
    assert packet == Packet(Kind.HEARTBEAT, SENDER, 2**64 - 1, MAX_SEQUENCE, b"\x80")


def test_a_payload_that_is_too_large_is_refused_and_costs_no_number() -> None:
    sealer = Sealer(SECRET, SENDER, SESSION)
    with pytest.raises(PayloadTooLarge):
        sealer.seal(Kind.QUEUE_CONFIG_SET, bytes(MAX_PAYLOAD + 1))
    assert sealer.seal(Kind.HEARTBEAT, b"") == forged(payload=b"", sequence=1)


def test_with_a_clock_a_number_tells_when_and_still_rises() -> None:
    times = iter([1_000, 1_000, 900, 1_001, 1_004, 2**60])
    sealer = Sealer(SECRET, SENDER, SESSION, clock=lambda: next(times))
    for sequence in (1_000, 1_001, 1_002, 1_003, 1_004, 2**60):
        assert sealer.seal(Kind.HEARTBEAT, b"") == forged(payload=b"", sequence=sequence)


@given(st.data())
def test_no_bit_can_be_changed(data: st.DataObject) -> None:
    datagram = bytearray(Sealer(SECRET, SENDER, SESSION).seal(Kind.MESSAGE_AVAILABLE, b"\x81\xa5queue\xa6orders"))
    bit = data.draw(st.integers(0, 8 * len(datagram) - 1))
    datagram[bit // 8] ^= 1 << bit % 8
    # the length is not signed, and confirmed by the size of the datagram instead
    assert Opener(SECRET).open(bytes(datagram)) is (Drop.SIZE if bit // 8 in (2, 3) else Drop.SIGNATURE)


@given(st.integers(0, 91 + 14), st.binary(max_size=20))
def test_nothing_can_be_cut_off_or_added(cut: int, added: bytes) -> None:
    datagram = Sealer(SECRET, SENDER, SESSION).seal(Kind.MESSAGE_AVAILABLE, b"\x81\xa5queue\xa6orders")
    changed = datagram[:cut] + added
    if changed != datagram:
        assert Opener(SECRET).open(changed) in (Drop.SIZE, Drop.SIGNATURE)


@given(st.binary(max_size=1500))
def test_noise_is_dropped(noise: bytes) -> None:
    assert Opener(SECRET).open(noise) in (Drop.SIZE, Drop.SIGNATURE)


def test_another_secret_is_of_no_use() -> None:
    assert Opener(SECRET).open(forged(secret=bytes(32))) is Drop.SIGNATURE


@pytest.mark.parametrize(
    ("datagram", "drop"),
    [
        (forged(version=0), Drop.VERSION),
        (forged(version=2), Drop.VERSION),
        (forged(number=0), Drop.KIND),
        (forged(number=4), Drop.KIND),
        (forged(number=255), Drop.KIND),
        (forged(length=0), Drop.SIZE),
        (forged(length=2), Drop.SIZE),
        (forged(payload=bytes(MAX_PAYLOAD + 1)), Drop.SIZE),
        (forged(sender=b""), Drop.HEADER),
        (forged(sender=b"x" * 32), Drop.HEADER),
        (forged(sender=b"a b"), Drop.HEADER),
        (forged(sender=b"a\0b"), Drop.HEADER),
        (forged(sender=b"\xff"), Drop.HEADER),
        (forged(session=b"0000019123456G89"), Drop.HEADER),
        (forged(session=b"000001912345678A"), Drop.HEADER),
        (forged(session=bytes(16)), Drop.HEADER),
    ],
)
def test_who_has_the_secret_and_another_format_is_told_apart(datagram: bytes, drop: Drop) -> None:
    assert Opener(SECRET).open(datagram) is drop


@pytest.mark.parametrize("sender", ["", "x" * 32, "a b", "a\0", "ü", "\x7f"])
def test_a_name_that_does_not_fit_is_refused_at_once(sender: str) -> None:
    with pytest.raises(ValueError, match="not a sender"):
        Sealer(SECRET, sender, SESSION)


@pytest.mark.parametrize("session", [-1, 2**64])
def test_a_session_that_does_not_fit_is_refused_at_once(session: int) -> None:
    with pytest.raises(ValueError, match="not a sender"):
        Sealer(SECRET, SENDER, session)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), b"a" * 64])
def test_a_secret_has_32_bytes(secret: bytes) -> None:
    for make in (lambda: Opener(secret), lambda: Sealer(secret, SENDER, SESSION)):
        with pytest.raises(ValueError, match="not 32"):
            make()
