"""What the parsers remember, and what they make of odd addresses and bodies, without a server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from queenmq.http.errors import InvalidField, InvalidJson
from queenmq.http.limits import Limits
from queenmq.http.parse.bodies import Decoder
from queenmq.http.parse.pops import PopParser
from queenmq.http.parse.pushes import PushParser
from queenmq.http.parse.spelling import Names, Shape
from queenmq.http.parse.text import Query
from queenmq.wire.names import InvalidValue


def body(*items: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"items": items})


def test_names_that_passed_are_remembered_up_to_a_bound() -> None:
    parse = PushParser(Limits(max_push_items=60_000))
    for start in range(0, 300_000, 50_000):
        parse(body(*({"queue": f"q{n}", "partition": f"p{n}"} for n in range(start, start + 50_000))))
    assert len(parse._known) <= 65_536 + 100_000  # the bound, and what one push may bring at once
    parse(body({"queue": "one more"}))
    assert len(parse._known) <= 65_536


def test_a_remembered_name_spares_no_other_name_its_check() -> None:
    parse = PushParser(Limits())
    parse(body({"queue": "known", "partition": "known"}))
    for bad in ({"queue": "known", "partition": "\x00"}, {"queue": "\x00", "partition": "known"}):
        with pytest.raises(InvalidValue):
            parse(body({"queue": "known"}, bad))
        with pytest.raises(InvalidValue):  # nor is it remembered for having been seen
            parse(body({"queue": "known"}, bad))


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("transactionId", "t\x1e"),
        ("transactionId", "t" * 256),
        ("traceId", "no uuid"),
        ("payload", "\x00"),
        ("partition", "\x1e"),
        ("queue", "\x1e"),
    ],
)
def test_an_item_alone_is_held_to_the_same_rules(field: str, bad: str) -> None:
    parse = PushParser(Limits())
    good = {"queue": "known", "partition": "known", "transactionId": "t", "payload": {"n": 1}}
    assert len(parse(body(good))) == 1
    with pytest.raises(InvalidValue) as refused:
        parse(body(good | {field: bad}))
    assert refused.value.field == f"items[0].{field}"


def test_long_names_are_not_remembered_but_accepted() -> None:
    parse = PushParser(Limits())
    for _ in range(2):
        assert len(parse(body({"queue": "q" * 255}))) == 1
    assert "q" * 255 not in parse._known


def test_addresses_are_remembered_up_to_a_bound() -> None:
    parse = PopParser(Limits())
    for n in range(10_000):
        parse(f"/queue/q{n}", b"")
    assert len(parse._known) <= 4096
    parse("/queue/q", b"x" * 5000)
    assert ("/queue/q", b"x" * 5000) not in parse._known


def test_an_address_means_the_same_every_time_and_every_ask_is_its_own() -> None:
    parse = PopParser(Limits())
    address = parse("/queue/a%20b/partition/c", b"batch=7&wait=true&timeout=1500&consumerGroup=g")
    assert parse("/queue/a%20b/partition/c", b"batch=7&wait=true&timeout=1500&consumerGroup=g") is address
    first, second = address.ask(), address.ask()
    assert first == second
    assert first is not second
    assert (first.queue, first.partition, first.group, first.batch, first.wait) == ("a b", "c", "g", 7, 1.5)


def test_a_pop_of_one_partition_is_of_one_partition() -> None:
    parse = PopParser(Limits())
    for query in (b"partitions=5", b"autopilot=true", b"autopilot=true&partitions=5"):
        assert parse("/queue/q/partition/p", query).partitions == 1
        assert parse("/queue/q", query).partitions > 1


def test_a_refused_address_is_refused_again() -> None:
    parse = PopParser(Limits())
    for _ in range(2):
        with pytest.raises(InvalidValue):
            parse("/queue/%00", b"")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"n=5", 5),
        (b"n=+5", 5),
        (b"n=%2B5", 5),
        (b"n=-5", -5),
        (b"n=005", 5),
        (b"n=5&n=6", 6),
        (b"n=", 77),
        (b"n", 77),
        (b"", 77),
        (b"n=5x", 77),
        (b"n=1_000", 77),
        (b"n=%D9%A5", 77),
        (b"n=0x10", 77),
        (b"n=" + b"9" * 4000, 1000),
        (b"n=-" + b"9" * 4000, -1000),
        (b"n=" + b"0" * 4000 + b"5", 5),
    ],
)
def test_integers_in_a_query(raw: bytes, expected: int) -> None:
    assert Query(raw).integer("n", 77, -1000, 1000) == expected


def test_times_are_read_as_utc() -> None:
    parse = PopParser(Limits())
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    for text in (
        b"2024-05-01T12:00:00Z",
        b"2024-05-01T14:00:00%2B02:00",
        b"2024-05-01T14:00:00+0200",
        b"2024-05-01+12:00",
    ):
        assert parse("/queue/q", b"subscriptionFrom=" + text).subscription_from == noon


class Numbers(msgspec.Struct, forbid_unknown_fields=True):
    a: list[int] = []


def test_a_decoders_complaint_becomes_a_field_and_a_sentence() -> None:
    decode = Decoder(Numbers, Numbers, Shape(Names.of(Numbers)), {})
    with pytest.raises(InvalidField) as refused:
        decode(b'{"a": [1, "x"]}')
    assert "must be an integer, not a string" in refused.value.message
    with pytest.raises(InvalidJson, match="Invalid JSON"):
        decode(b'{"a": [1, 2')
    assert decode(b"") == decode(b" \r\n") == (Numbers(), False)


def test_a_payload_too_deep_to_read_is_named_however_little_is_allowed() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    with pytest.raises(InvalidField, match="at most 1 deep") as refused:
        PushParser(Limits(max_json_depth=1))(b'{"items":[{"queue":"q"},{"queue":"q","payload":%b}]}' % deep)
    assert refused.value.field == "items[1].payload"
