"""The payload of each kind of packet: its bytes, and that nothing malformed gets through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.messages import (
    ConsumerDeregistered,
    ConsumerRegistered,
    Heartbeat,
    LeaseHintAcquired,
    LeaseHintReleased,
    MalformedPayload,
    Message,
    MessageAvailable,
    PartitionDeleted,
    PartitionFree,
    QueueConfigDelete,
    QueueConfigSet,
    decode,
    encode,
)
from queenmq.cluster.packets import MAX_PAYLOAD, Kind, Opener, Packet, Sealer
from queenmq.domain.queue_config import QueueConfig

TS = 1_700_000_000_000
SECRET = bytes(range(32))
SENDER, SESSION = "queen-mq-1", 0x0000_0191_2345_6789
SENT_BY = (
    "717565656e2d6d712d3100000000000000000000000000000000000000000000303030303031393132333435363738390000000000000001"
)
CONFIG = QueueConfig(
    queue_id=7,
    version=42,
    namespace="shop",
    priority=-1,
    lease_time=300,
    retry_limit=3,
    retry_delay=1000,
    encryption_enabled=True,
)
GOLDEN: dict[Kind, tuple[Message, str, str]] = {
    # what is said, its payload, and the signature of the first packet of that sender in that session
    Kind.MESSAGE_AVAILABLE: (
        MessageAvailable("orders", "customer-123", TS),
        "83a57175657565a66f7264657273a9706172746974696f6eac637573746f6d65722d313233a27473cf0000018bcfe56800",
        "8eb3d5e06b743dfa126b889c9dea4f1a5d184375c687efecaaa414ba849235bf",
    ),
    Kind.PARTITION_FREE: (
        PartitionFree("orders", "customer-123", "processor", TS),
        "84a57175657565a66f7264657273a9706172746974696f6eac637573746f6d65722d313233ae636f6e73756d65725f67726f"
        "7570a970726f636573736f72a27473cf0000018bcfe56800",
        "4b5a102c9eaef7b0cac1ff359a9f01f5942a8fb957f1d0c939cfeeceb9791f16",
    ),
    Kind.HEARTBEAT: (
        Heartbeat(TS, 2),
        "82a27473cf0000018bcfe56800a671756575657302",
        "2fb61feb5f83956f8d3983aa0ec8056039146ff208adae2d45202386466efbfd",
    ),
    Kind.QUEUE_CONFIG_SET: (
        QueueConfigSet("orders", CONFIG, 42),
        "83a57175657565a66f7264657273a6636f6e6669678ca871756575655f696407a96e616d657370616365a473686f70a47461"
        "736ba0a87072696f72697479ffaa6c656173655f74696d65cd012cab72657472795f6c696d697403ab72657472795f64656c"
        "6179cd03e8b264656c617965645f70726f63657373696e6700ad77696e646f775f62756666657200a374746cc0a86d61785f"
        "73697a6500b2656e6372797074696f6e5f656e61626c6564c3a776657273696f6e2a",
        "6e12ad954167a08c6a0065add4fd164c4fb78157e0245d769ff16227b4548949",
    ),
    Kind.QUEUE_CONFIG_DELETE: (
        QueueConfigDelete("orders"),
        "81a57175657565a66f7264657273",
        "73afe7bbcaa2e73ba34a5e53fc2576389a8cc2ee2e09df03d368797ea170a584",
    ),
    Kind.CONSUMER_REGISTERED: (
        ConsumerRegistered("orders", "queen-mq-1"),
        "82a57175657565a66f7264657273a97365727665725f6964aa717565656e2d6d712d31",
        "13c9a65d5bc8ead14ff1982a3b621767cdaa693b47cd50692622742d97bd1497",
    ),
    Kind.CONSUMER_DEREGISTERED: (
        ConsumerDeregistered("orders", "queen-mq-1"),
        "82a57175657565a66f7264657273a97365727665725f6964aa717565656e2d6d712d31",
        "a1b76cdf73f65b078aef0753506248027320a0bd2ce458da14f08b3d4f7c2f9f",
    ),
    Kind.PARTITION_DELETED: (
        PartitionDeleted("orders", "customer-123"),
        "82a57175657565a66f7264657273a9706172746974696f6eac637573746f6d65722d313233",
        "7d3f32f559c6b37fd5dc56f3177ac1ce4d02d047a7a91b170de491c32013c165",
    ),
    Kind.LEASE_HINT_ACQUIRED: (
        LeaseHintAcquired("abc-123", "processor", "queen-mq-2", TS, "orders"),
        "85ac706172746974696f6e5f6964a76162632d313233ae636f6e73756d65725f67726f7570a970726f636573736f72a97365"
        "727665725f6964aa717565656e2d6d712d32ad657870697265735f61745f6d73cf0000018bcfe56800a57175657565a66f72"
        "64657273",
        "b7a87962c2d7fa2972d3c44ea24dec2ee56b886fb9876619c5e960f8eae51247",
    ),
    Kind.LEASE_HINT_RELEASED: (
        LeaseHintReleased("abc-123", "processor", "queen-mq-2", "orders"),
        "84ac706172746974696f6e5f6964a76162632d313233ae636f6e73756d65725f67726f7570a970726f636573736f72a97365"
        "727665725f6964aa717565656e2d6d712d32a57175657565a66f7264657273",
        "c64c60c9fcf8239121c4b8e4470d60b1f3844c07a0a37de3caa462e80456279e",
    ),
}

pack = msgspec.msgpack.encode


def fields(kind: Kind, **changed: object) -> dict[str, Any]:
    """The map that the payload of the example is, with some fields changed."""
    known: dict[str, Any] = msgspec.msgpack.decode(bytes.fromhex(GOLDEN[kind][1]))
    return {**known, **changed}


def taken(kind: Kind, payload: bytes) -> bool:
    return type(decode(kind, payload)) is type(GOLDEN[kind][0])


def refused(kind: Kind, payload: bytes) -> bool:
    with pytest.raises(MalformedPayload, match=kind.name):
        decode(kind, payload)
    return True


def taken_or_refused(kind: Kind, payload: bytes) -> bool:
    try:
        return taken(kind, payload)
    except MalformedPayload:
        return True


# Message serialization and deserialization


def test_there_is_a_message_for_every_kind() -> None:
    assert set(GOLDEN) == set(Kind)


@pytest.mark.parametrize("kind", Kind)
def test_message_serialization_has_exactly_these_bytes(kind: Kind) -> None:
    message, payload, signature = GOLDEN[kind]
    assert encode(message) == (kind, bytes.fromhex(payload))
    packet = Sealer(SECRET, SENDER, SESSION).seal(*encode(message))
    assert packet.hex() == f"01{kind:02x}{len(payload) // 2:04x}{signature}{SENT_BY}{payload}"


@pytest.mark.parametrize("kind", Kind)
def test_message_deserialization_understands_a_packet_of_long_ago(kind: Kind) -> None:
    message, payload, signature = GOLDEN[kind]
    packet = Opener(SECRET).open(
        bytes.fromhex(f"01{kind:02x}{len(payload) // 2:04x}{signature}{SENT_BY}{payload}"),
    )
    assert isinstance(packet, Packet)
    assert decode(packet.kind, packet.payload) == message


def test_a_configuration_travels_with_its_version_beside_it() -> None:
    sent = fields(Kind.QUEUE_CONFIG_SET)
    assert (sent["queue"], sent["version"], sent["config"]["lease_time"]) == ("orders", 42, 300)
    assert "version" not in sent["config"]


def test_a_configuration_has_one_version() -> None:
    with pytest.raises(ValueError, match="version 41 with a configuration of version 42"):
        QueueConfigSet("orders", CONFIG, 41)
    smuggled = fields(Kind.QUEUE_CONFIG_SET, config={"queue_id": 7, "version": 99})
    assert decode(Kind.QUEUE_CONFIG_SET, pack(smuggled)) == QueueConfigSet(
        "orders", QueueConfig(queue_id=7, version=42), 42
    )


def test_what_is_not_known_is_not_sent() -> None:
    assert msgspec.msgpack.decode(encode(Heartbeat(TS))[1]) == {"ts": TS}
    hint = LeaseHintAcquired("abc-123", "processor", "queen-mq-2", TS)
    assert msgspec.msgpack.decode(encode(hint)[1]) == {
        "partition_id": "abc-123",
        "consumer_group": "processor",
        "server_id": "queen-mq-2",
        "expires_at_ms": TS,
    }
    assert decode(*encode(Heartbeat(TS))) == Heartbeat(TS, -1)
    assert decode(*encode(hint)) == hint


@pytest.mark.parametrize("kind", Kind)
def test_fields_of_a_later_version_are_skipped(kind: Kind) -> None:
    more = fields(kind, added={"deep": [1, None, {"er": b""}]})
    assert decode(kind, pack(more)) == GOLDEN[kind][0]


def test_a_later_version_may_add_to_the_configuration() -> None:
    more = {**fields(Kind.QUEUE_CONFIG_SET)["config"], "added": [1]}
    sent = pack(fields(Kind.QUEUE_CONFIG_SET, config=more))
    assert decode(Kind.QUEUE_CONFIG_SET, sent) == GOLDEN[Kind.QUEUE_CONFIG_SET][0]


NAMES = st.text(min_size=1, max_size=255)
NAMES_OR_NONE = st.text(max_size=255)
SERVERS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=31)
TIMES = st.integers(0, 2**53)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
CONFIGS = st.builds(
    QueueConfig,
    queue_id=NUMBERS,
    version=st.integers(0, 2**63 - 1),
    namespace=NAMES_OR_NONE,
    task=NAMES_OR_NONE,
    priority=NUMBERS,
    lease_time=NUMBERS,
    ttl=st.none() | NUMBERS,
    max_size=NUMBERS,
    encryption_enabled=st.booleans(),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(MessageAvailable, NAMES, NAMES, TIMES),
    st.builds(PartitionFree, NAMES, NAMES, NAMES, TIMES),
    st.builds(Heartbeat, TIMES, st.integers(-1, 2**53)),
    st.builds(lambda queue, config: QueueConfigSet(queue, config, config.version), NAMES, CONFIGS),
    st.builds(QueueConfigDelete, NAMES),
    st.builds(ConsumerRegistered, NAMES_OR_NONE, SERVERS),
    st.builds(ConsumerDeregistered, NAMES_OR_NONE, SERVERS),
    st.builds(PartitionDeleted, NAMES, NAMES),
    st.builds(LeaseHintAcquired, NAMES, NAMES, SERVERS, TIMES, NAMES_OR_NONE),
    st.builds(LeaseHintReleased, NAMES, NAMES, SERVERS, NAMES_OR_NONE),
)


@given(MESSAGES)
def test_what_is_said_is_heard(message: Message) -> None:
    assert decode(*encode(message)) == message


# Hostile payloads


@given(st.sampled_from(Kind), st.binary(max_size=MAX_PAYLOAD))
def test_noise_does_no_harm(kind: Kind, noise: bytes) -> None:
    assert taken_or_refused(kind, noise)


@given(st.sampled_from(Kind), st.data())
def test_a_changed_byte_does_no_harm(kind: Kind, data: st.DataObject) -> None:
    payload = bytearray.fromhex(GOLDEN[kind][1])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    assert taken_or_refused(kind, bytes(payload))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "payload", [b"", b"\x80", b"\x90", b"\xc0", b"\x01", b"\xa1x", b"\xc1", b"\xdf\xff\xff\xff\xff"]
)
def test_what_is_no_map_of_the_fields_is_malformed(kind: Kind, payload: bytes) -> None:
    assert refused(kind, payload)


@pytest.mark.parametrize("kind", Kind)
def test_nothing_may_be_cut_off_or_follow(kind: Kind) -> None:
    payload = bytes.fromhex(GOLDEN[kind][1])
    assert all(refused(kind, payload[:cut]) for cut in range(len(payload)))
    assert refused(kind, payload + b"\x00")
    assert refused(kind, payload + payload)


OPTIONAL = {(Kind.HEARTBEAT, "queues"), (Kind.LEASE_HINT_ACQUIRED, "queue"), (Kind.LEASE_HINT_RELEASED, "queue")}
EVERY_FIELD = [(kind, name) for kind in Kind for name in fields(kind)]


@pytest.mark.parametrize(("kind", "name"), [each for each in EVERY_FIELD if each not in OPTIONAL])
def test_no_field_may_be_missing(kind: Kind, name: str) -> None:
    assert refused(kind, pack({key: value for key, value in fields(kind).items() if key != name}))


@pytest.mark.parametrize(("kind", "name"), EVERY_FIELD)
@pytest.mark.parametrize("value", [None, True, 1.0, b"orders", [], 2**64 - 1])
def test_no_field_may_have_another_type(kind: Kind, name: str, value: object) -> None:
    assert refused(kind, pack(fields(kind, **{name: value})))


@pytest.mark.parametrize(
    ("kind", "name"), [each for each in EVERY_FIELD if not isinstance(fields(each[0])[each[1]], str)]
)
def test_nothing_else_may_be_text(kind: Kind, name: str) -> None:
    assert refused(kind, pack(fields(kind, **{name: "1"})))


@pytest.mark.parametrize(
    "changed",
    [
        {"queue_id": None},
        {"queue_id": "7"},
        {"lease_time": 300.0},
        {"lease_time": True},
        {"lease_time": 2**63},
        {"encryption_enabled": 1},
        {"ttl": "1"},
        {"namespace": None},
        {"namespace": "x" * 256},
        {"task": "x" * 256},
    ],
)
def test_no_setting_of_a_queue_may_have_another_type(changed: dict[str, object]) -> None:
    config = {**fields(Kind.QUEUE_CONFIG_SET)["config"], **changed}
    assert refused(Kind.QUEUE_CONFIG_SET, pack(fields(Kind.QUEUE_CONFIG_SET, config=config)))


def test_a_configuration_names_its_queue_by_id() -> None:
    assert refused(Kind.QUEUE_CONFIG_SET, pack(fields(Kind.QUEUE_CONFIG_SET, config={})))


NAMED = [(kind, name) for kind, name in EVERY_FIELD if name in ("queue", "partition", "partition_id", "consumer_group")]
CONSUMERS = (Kind.CONSUMER_REGISTERED, Kind.CONSUMER_DEREGISTERED)
MAY_BE_EMPTY = OPTIONAL | {(kind, "queue") for kind in CONSUMERS}


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_a_name_is_neither_empty_nor_too_long(kind: Kind, name: str) -> None:
    most = 256 if kind in CONSUMERS else 255  # a mark may follow what consumers wait for
    for letter in "xé😀":
        assert taken(kind, pack(fields(kind, **{name: letter * most})))
        assert refused(kind, pack(fields(kind, **{name: letter * (most + 1)})))
    empty = pack(fields(kind, **{name: ""}))
    assert taken(kind, empty) if (kind, name) in MAY_BE_EMPTY else refused(kind, empty)


@pytest.mark.parametrize("kind", [kind for kind, name in EVERY_FIELD if name == "server_id"])
@pytest.mark.parametrize("server", ["", "x" * 32, "a b", "a\0", "ü", "queen\n", "\x7f"])
def test_a_server_has_a_name_that_fits_a_packet(kind: Kind, server: str) -> None:
    assert refused(kind, pack(fields(kind, server_id=server)))
    assert taken(kind, pack(fields(kind, server_id="!" + "~" * 30)))


@pytest.mark.parametrize(
    ("kind", "name", "lowest", "highest"),
    [
        (kind, name, *bounds)
        for kind, name in EVERY_FIELD
        for field, bounds in {
            "ts": (0, 2**53),
            "expires_at_ms": (0, 2**53),
            "queues": (-1, 2**53),
            "version": (0, 2**63 - 1),
        }.items()
        if field == name
    ],
)
def test_a_number_is_within_its_bounds(kind: Kind, name: str, lowest: int, highest: int) -> None:
    for value in (lowest, highest):
        assert taken(kind, pack(fields(kind, **{name: value})))
    for value in (lowest - 1, highest + 1, -(2**63)):
        assert refused(kind, pack(fields(kind, **{name: value})))


@pytest.mark.parametrize("kind", Kind)
def test_deep_nesting_is_malformed(kind: Kind) -> None:
    known = bytes.fromhex(GOLDEN[kind][1])
    more = bytes([known[0] + 1]) + known[1:] + b"\xa1x"
    assert taken(kind, more + b"\x91\x01")
    assert refused(kind, more + b"\x91" * 100_000 + b"\x01")


def test_deep_nesting_inside_a_configuration_is_malformed() -> None:
    payload = b"\x83\xa5queue\xa1q\xa7version\x01\xa6config\x81\xa1x" + b"\x91" * 100_000
    assert refused(Kind.QUEUE_CONFIG_SET, payload)


def test_text_that_is_not_utf_8_is_malformed() -> None:
    for text in (b"\xa1\xff", b"\xa3\xed\xa0\x80", b"\xa2\xc0\x80"):
        assert refused(Kind.QUEUE_CONFIG_DELETE, b"\x81\xa5queue" + text)
