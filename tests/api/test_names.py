"""A name that is misspelt is refused with the one that was meant; any other that is not known is ignored."""

from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.domain.options import OPTIONS
from queenmq.http.errors import InvalidField
from queenmq.http.limits import Limits
from queenmq.http.parse import spelling
from queenmq.http.parse.pushes import PushParser
from queenmq.http.parse.spelling import _REMEMBERED, MOST_UNKNOWN, Names, Shape
from tests.api import client_names as sent
from tests.api.serving import Api, Json, data

ITEM = {"queue": "orders", "partition": "p", "payload": 1}
ACK = {"transactionId": "t", "partitionId": "p", "status": "completed"}
PUSH, ACKS, BATCH, TRANSACTION = "/api/v1/push", "/api/v1/ack", "/api/v1/ack/batch", "/api/v1/transaction"
CONFIGURE, NOTIFY = "/api/v1/configure", "/internal/api/notify"
LEASE = "/api/v1/lease/00000000-0000-0000-0000-000000000000/extend"

MISSPELT = [
    (PUSH, {"items": [ITEM], "item": []}, "item", "items"),
    (PUSH, {"items": [ITEM, ITEM, ITEM, {"queue": "orders", "partiton": "p"}]}, "items[3].partiton", "partition"),
    (PUSH, {"items": [{**ITEM, "Queue": "x"}]}, "items[0].Queue", "queue"),
    (PUSH, {"items": [{"Queue": "x"}]}, "items[0].Queue", "queue"),
    (PUSH, {"items": [{**ITEM, "transactionID": "x"}]}, "items[0].transactionID", "transactionId"),
    (PUSH, {"items": [{**ITEM, "transaction_id": "x"}]}, "items[0].transaction_id", "transactionId"),
    (PUSH, {"items": [{"queue": "orders", "paylaod": 1}]}, "items[0].paylaod", "payload"),
    (PUSH, {"items": [{"queue": "orders", "Data": 1}]}, "items[0].Data", "data"),
    (PUSH, {"items": [{"queue": "orders", "dat": 1}]}, "items[0].dat", "data"),
    (ACKS, {**ACK, "consumergroup": "g"}, "consumergroup", "consumerGroup"),
    (ACKS, {**ACK, "leaseID": "l"}, "leaseID", "leaseId"),
    (BATCH, {"acknowledgments": [ACK], "consumerGroups": "g"}, "consumerGroups", "consumerGroup"),
    (BATCH, {"acknowledgements": [ACK]}, "acknowledgements", "acknowledgments"),
    (BATCH, {"acknowledgments": [ACK, {**ACK, "statuss": "x"}]}, "acknowledgments[1].statuss", "status"),
    (TRANSACTION, {"operation": [], "operations": []}, "operation", "operations"),
    (
        TRANSACTION,
        {"operations": [{"type": "push", "items": [ITEM]}], "requiredleases": []},
        "requiredleases",
        "requiredLeases",
    ),
    (TRANSACTION, {"operations": [{"type": "ack", **ACK, "leaseid": "l"}]}, "operations[0].leaseid", "leaseId"),
    (
        TRANSACTION,
        {"operations": [{"type": "push", "items": [ITEM]}, {"type": "push", "items": [ITEM, {**ITEM, "queu": "x"}]}]},
        "operations[1].items[1].queu",
        "queue",
    ),
    (CONFIGURE, {"queue": "orders", "namespaces": "n"}, "namespaces", "namespace"),
    (CONFIGURE, {"queue": "orders", "Options": {}}, "Options", "options"),
    (CONFIGURE, {"queue": "orders", "options": {"retrylimit": 1}}, "options.retrylimit", "retryLimit"),
    (CONFIGURE, {"queue": "orders", "options": {"lease_time": 1}}, "options.lease_time", "leaseTime"),
    (CONFIGURE, {"queue": "orders", "options": {"TTL": 1}}, "options.TTL", "ttl"),
    (CONFIGURE, {"queue": "orders", "options": {"ttls": 1}}, "options.ttls", "ttl"),
    (NOTIFY, {"queue": "orders", "partitions": "p"}, "partitions", "partition"),
    (LEASE, {"second": 5}, "second", "seconds"),
]


@pytest.mark.parametrize(("path", "body", "field", "meant"), MISSPELT)
async def test_a_field_that_is_misspelt_is_refused(api: Api, path: str, body: Json, field: str, meant: str) -> None:
    answer = await api.post(path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"] == f"{field} is not known; did you mean {meant}?"
    assert answer.json()["field"] == field
    assert await api.stored() == 0
    assert await api.broker.store.pool.fetchval("select count(*) from queen.queues") == 0


@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        ("/api/v1/pop/queue/orders?consumergroup=g", "consumergroup", "consumerGroup"),
        ("/api/v1/pop/queue/orders?batch=2&autoack=true", "autoack", "autoAck"),
        ("/api/v1/pop/queue/orders?subscription%5Fmode=new", "subscription_mode", "subscriptionMode"),
        ("/api/v1/pop/queue/orders/partition/p?timout=5", "timout", "timeout"),
        ("/api/v1/pop/queue/orders?wai=true", "wai", "wait"),
        ("/api/v1/pop?namspace=x", "namspace", "namespace"),
        ("/api/v1/status/analytics?intervall=hour", "intervall", "interval"),
        ("/api/v1/status/analytics?To=2024-01-01", "To", "to"),
    ],
)
async def test_a_parameter_that_is_misspelt_is_refused(api: Api, path: str, name: str, meant: str) -> None:
    await api.push("orders", 1)
    answer = await api.http.get(path)
    assert (answer.status_code, answer.json()["field"]) == (400, name)
    assert answer.json()["error"] == f"{name} is not known; did you mean {meant}?"
    assert len(await api.take("orders")) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PUSH, b'{"items":[{"queue":"orders","x":1,"\xff":1,"partiton":"p"}]}'),
        (CONFIGURE, b'{"queue":"orders","options":{"leaseTime\xff":1}}'),
        (ACKS, b'{"transactionId":"t","partitionId":"p","x":1,"leaseId\xff":""}'),
    ],
)
async def test_a_name_that_is_not_unicode_is_refused(api: Api, path: str, body: bytes) -> None:
    answer = await api.send(path, body)
    assert answer.status_code == 400, answer.text
    assert "the byte 0xff is not UTF-8" in answer.json()["error"]
    assert await api.broker.store.pool.fetchval("select count(*) from queen.queues") == 0


@pytest.mark.parametrize("path", ["/api/v1/pop/queue/orders", "/api/v1/pop/queue/orders/partition/p7"])
async def test_a_partition_as_a_parameter_is_refused(api: Api, path: str) -> None:
    await api.push("orders", 1)
    answer = await api.http.get(f"{path}?partition=p7")
    assert (answer.status_code, answer.json()["field"]) == (400, "partition")
    place = "/api/v1/pop/queue/<queue>/partition/<partition>"
    assert answer.json()["error"] == f"partition is not a parameter but part of the path: {place}"
    assert len(await api.take("orders")) == 1


IGNORED = {"id": 1, "createdAt": "2024", "producerSub": None, "x": [1, {"partiton": 2}], "a": 1, "retryCount": 0}


async def test_other_names_are_ignored(api: Api) -> None:
    for _ in range(2):
        answer = await api.post(PUSH, {**IGNORED, "items": [{**ITEM, **IGNORED}, ITEM]})
        assert answer.status_code == 201, answer.text
    first, *_ = await api.take("orders", batch=10, partitions=5, frames="x")
    answer = await api.post(ACKS, {**first, "status": "completed"})  # a message as it came, with a status
    assert answer.json()[0]["success"] is True
    answer = await api.post(BATCH, {**IGNORED, "acknowledgments": [{**first, **IGNORED}]})
    assert answer.status_code == 200
    step = {"type": "push", "items": [{**ITEM, **IGNORED}], **IGNORED}
    answer = await api.post(TRANSACTION, {**IGNORED, "operations": [step]})
    assert answer.json()["success"] is True
    answer = await api.post(CONFIGURE, {"queue": "orders", **IGNORED, "options": {**IGNORED, "leaseTime": 7}})
    assert answer.json()["options"]["leaseTime"] == 7
    assert (await api.post(NOTIFY, {"queue": "orders", **IGNORED})).status_code == 200
    assert (await api.post(LEASE, {"seconds": 5, **IGNORED})).status_code == 200


class TestWhatOfficialClientsSend:
    async def test_nothing_of_it_is_refused(self, api: Api) -> None:
        item: Json = dict.fromkeys(sent.PUSH_ITEM) | {"queue": "orders"}
        push = dict.fromkeys(sent.PUSH_BODY) | {"items": [item]}
        assert (await api.post(PUSH, push)).status_code == 201
        ack: Json = dict.fromkeys(sent.ACK) | {"transactionId": "t", "partitionId": "p"}
        assert (await api.post(ACKS, ack)).status_code == 200
        entry: Json = dict.fromkeys(sent.ACK_BATCH_ENTRY) | {"transactionId": "t", "partitionId": "p"}
        batch = dict.fromkeys(sent.ACK_BATCH_BODY) | {"acknowledgments": [entry]}
        assert (await api.post(BATCH, batch)).status_code == 200
        pushed: Json = dict.fromkeys(sent.TRANSACTION_PUSH_ITEM) | {"queue": "orders"}
        steps = [
            dict.fromkeys(sent.TRANSACTION_PUSH) | {"type": "push", "items": [pushed]},
            dict.fromkeys(sent.TRANSACTION_ACK) | {"type": "ack", "transactionId": "t", "partitionId": "p"},
        ]
        transaction = dict.fromkeys(sent.TRANSACTION_BODY) | {"operations": steps}
        assert (await api.post(TRANSACTION, transaction)).status_code == 200
        options = dict.fromkeys(sent.CONFIGURE_OPTIONS)
        configure = dict.fromkeys(sent.CONFIGURE_BODY) | {"queue": "orders", "options": options}
        assert (await api.post(CONFIGURE, configure)).status_code == 200
        assert (await api.post(LEASE, dict.fromkeys(sent.LEASE_BODY))).status_code == 200

    async def test_no_parameter_of_it_is_refused(self, api: Api) -> None:
        query = "&".join(f"{name}=" for name in sent.POP_QUERY)
        assert (await api.http.get(f"/api/v1/pop/queue/orders?{query}")).status_code == 204
        query = "&".join(f"{name}=" for name in sent.ANALYTICS_QUERY)
        assert (await api.http.get(f"/api/v1/status/analytics?{query}")).status_code == 200


class TestData:
    """What a pop calls `data` may be pushed under that name."""

    async def test_it_is_another_name_of_the_payload(self, api: Api) -> None:
        items = [{"queue": "orders", "data": {"n": 1}}, {**ITEM, "partition": None}, {"queue": "orders", "data": [2]}]
        assert (await api.post(PUSH, {"items": items})).status_code == 201
        assert data(await api.take("orders", batch=10)) == [{"n": 1}, 1, [2]]

    async def test_in_a_transaction_too(self, api: Api) -> None:
        step = {"type": "push", "items": [{"queue": "orders", "data": {"n": 1}}]}
        assert (await api.post(TRANSACTION, {"operations": [step]})).json()["success"] is True
        assert data(await api.take("orders")) == [{"n": 1}]

    async def test_a_message_can_be_pushed_as_it_was_popped(self, api: Api) -> None:
        await api.push("orders", {"n": 1})
        (message,) = await api.take("orders")
        answer = await api.post(PUSH, {"items": [{**message, "queue": "copies"}]})
        assert answer.status_code == 201
        assert data(await api.take("copies")) == [{"n": 1}]

    @pytest.mark.parametrize(
        ("fields", "stored"),
        [
            ({"data": None}, None),
            ({"data": None, "payload": 1}, 1),
            ({"data": 0, "payload": None}, 0),
            ({"data": ""}, ""),
        ],
    )
    async def test_null_is_the_same_as_missing(self, api: Api, fields: Json, stored: Any) -> None:
        assert (await api.post(PUSH, {"items": [{"queue": "orders", **fields}]})).status_code == 201
        assert data(await api.take("orders")) == [stored]

    async def test_both_at_once_are_refused(self, api: Api) -> None:
        both = {"queue": "orders", "payload": {"n": 1}, "data": {"n": 1}}
        answer = await api.post(PUSH, {"items": [ITEM, both]})
        assert (answer.status_code, answer.json()["field"]) == (400, "items[1].data")
        assert answer.json()["error"].startswith("items[1] has payload and data")
        step = {"type": "push", "items": [both]}
        answer = await api.post(TRANSACTION, {"operations": [step]})
        assert (answer.status_code, answer.json()["field"]) == (400, "operations[0].items[0].data")
        assert await api.stored() == 0

    async def test_the_rules_of_a_payload_count(self, api: Api) -> None:
        deep = b"[" * 300 + b"]" * 300
        answer = await api.send(PUSH, b'{"items":[{"queue":"orders","data":%b}]}' % deep)
        assert answer.status_code == 400
        answer = await api.send(PUSH, b'{"items":[{"queue":"orders","data":"\\u0000"}]}')
        assert answer.status_code == 400


def edits(name: str) -> set[str]:
    """Every name that is one letter away: one missing, one more, another one, two in each other's place."""
    cuts = [(name[:at], name[at:]) for at in range(len(name) + 1)]
    return (
        {left + right[1:] for left, right in cuts if right}
        | {left + letter + right for left, right in cuts for letter in string.ascii_letters}
        | {left + letter + right[1:] for left, right in cuts for letter in string.ascii_letters if right}
        | {left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1}
    ) - {name}


OPTION_NAMES = Names(option.name for option in OPTIONS)


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_every_misspelling_by_one_letter_or_case_is_noticed(name: str) -> None:
    misspellings = {each for each in edits(name) if max(len(each), len(name)) >= 4} | {name.upper(), name.capitalize()}
    for misspelt in misspellings - OPTION_NAMES.known:
        meant = OPTION_NAMES.meant(misspelt)
        assert meant is not None, misspelt
        assert meant == name or misspelt.lower() in {each.lower() for each in edits(meant)}


def distance(one: str, other: str) -> int:
    """Edits between two texts, counted the plain way."""
    rows = [[max(row, column) for column in range(len(other) + 1)] for row in range(len(one) + 1)]
    for row, left in enumerate(one, 1):
        for column, right in enumerate(other, 1):
            best = min(
                rows[row - 1][column] + 1, rows[row][column - 1] + 1, rows[row - 1][column - 1] + (left != right)
            )
            if row > 1 and column > 1 and left == other[column - 2] and right == one[row - 2]:
                best = min(best, rows[row - 2][column - 2] + 1)
            rows[row][column] = best
    return rows[-1][-1]


@given(st.text("abcd_A", min_size=1, max_size=8))
def test_only_what_is_one_letter_away_is_noticed(name: str) -> None:
    names = Names(("abcd", "abba", "cabAB", "ab", "bca"))
    folded = name.replace("_", "").lower()
    near = {each for each in names.known if folded == each.lower()} or {
        each for each in names.known if max(len(each), len(folded)) > 3 and distance(folded, each.lower()) == 1
    }
    if name not in names.known:
        meant = names.meant(name)
        assert meant in near if near else meant is None


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were compared with known ones."""
    asked: list[str] = []
    meant = Names.meant

    def counted(self: Names, name: str) -> str | None:
        asked.append(name)
        return meant(self, name)

    monkeypatch.setattr(Names, "meant", counted)
    return asked


MANY = dict.fromkeys((f"x{n}" for n in range(10 * MOST_UNKNOWN)), 1)
WITH_MANY = [
    (PUSH, {"items": [ITEM], **MANY}),
    (PUSH, {"items": [{**ITEM, **MANY}]}),
    (PUSH, {"items": [{**ITEM, f"x{n}": 1} for n in range(MOST_UNKNOWN + 1)]}),
    (ACKS, {**ACK, **MANY}),
    (BATCH, {"acknowledgments": [{**ACK, **MANY}]}),
    (TRANSACTION, {"operations": [{"type": "push", "items": [{**ITEM, **MANY}]}]}),
    (TRANSACTION, {"operations": [{"type": "ack", **ACK, **MANY}]}),
    (CONFIGURE, {"queue": "orders", **MANY}),
    (CONFIGURE, {"queue": "orders", "options": MANY}),
    (NOTIFY, {"queue": "orders", **MANY}),
    (LEASE, {"seconds": 5, **MANY}),
]


class TestVeryManyNames:
    """Names are cheap to send: a request with very many is refused, and not looked at to its end."""

    @pytest.mark.parametrize(("path", "body"), WITH_MANY)
    async def test_different_ones_are_refused(self, api: Api, compared: list[str], path: str, body: Json) -> None:
        answer = await api.post(path, body)
        assert answer.status_code == 400
        assert answer.json()["error"] == f"the body has more than {MOST_UNKNOWN} different fields that are not known"
        assert len(compared) <= MOST_UNKNOWN
        assert await api.broker.store.pool.fetchval("select count(*) from queen.queues") == 0

    async def test_of_a_query_too(self, api: Api, compared: list[str]) -> None:
        query = "&".join(MANY)[:20_000]
        for path in ("/api/v1/pop/queue/orders", "/api/v1/status/analytics"):
            compared.clear()
            answer = await api.http.get(f"{path}?{query}")
            assert answer.status_code == 400
            assert answer.json()["error"] == f"the query has more than {MOST_UNKNOWN} parameters that are not known"
            assert len(compared) <= MOST_UNKNOWN

    async def test_as_many_as_may_be_are_ignored(self, api: Api, compared: list[str]) -> None:
        others = dict.fromkeys((f"y{n}" for n in range(MOST_UNKNOWN)), 1)
        assert (await api.post(PUSH, {"items": [{**ITEM, **others}, {**ITEM, **others}]})).status_code == 201
        assert len(compared) == MOST_UNKNOWN

    def test_the_same_ones_in_many_objects_are_refused_at_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spelling, "MOST_FIELDS", 40)
        parse = PushParser(Limits())
        parse(msgspec.json.encode({"items": [{"queue": "q", "x": 1}] * 19}))  # 39 with items
        with pytest.raises(InvalidField, match="more than 40 fields in all"):
            parse(msgspec.json.encode({"items": [{"queue": "q", "x": 1}] * 20}))

    def test_no_more_of_the_body_is_decoded(self) -> None:
        names = ",".join(f'"x{n}":1' for n in range(MOST_UNKNOWN + 1))
        with pytest.raises(InvalidField, match="different fields"):
            Shape(Names(("queue",))).check(b'{"queue":"q",%b,this is not JSON' % names.encode())

    def test_those_that_are_remembered_are_few_and_short(self) -> None:
        names = Names(("queue",))
        for start in range(0, 3 * _REMEMBERED, MOST_UNKNOWN):
            names.check(f"y{n}" for n in range(start, start + MOST_UNKNOWN))
        names.check(["z" * 1000])
        assert len(names._harmless) <= _REMEMBERED
        assert max(map(len, names._harmless)) < 1000


def test_too_many_items_are_refused_before_their_names_are_looked_at() -> None:
    parse = PushParser(Limits(max_push_items=2))
    with pytest.raises(InvalidField, match="items must be at most 2, not 3"):
        parse(msgspec.json.encode({"items": [{"queue": "q", "partiton": "p"}] * 3}))
