"""Input made to do harm: it is refused by name or stored as the text it is, and the server goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.serving import Api, data, serving
from tests.conftest import Server

INJECTIONS = [
    "'; drop table queen.queues; --",
    '"; delete from queen.segments; --',
    "$1",
    "%s%s%n",
    "{0}{queue}",
    "../../etc/passwd",
    "..%2f..%2f",
    "\\",
    '"',
    "\\u0000",
    "a\u2028b",
    "\u202egnirts",
    "\uff07 or 1=1",
    "null",
    "None",
    "__queue_mode__",
    "*",
]


def item(payload: bytes) -> bytes:
    return b'{"queue":"q","payload":%b}' % payload


BAD_PAYLOADS = {
    "deep list": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep and never closed": b"[" * 100_000,
    "deeper than allowed": b"[" * 257 + b"]" * 257,
    "nul": b'"\\u0000"',
    "lone high surrogate": b'"\\ud800"',
    "lone low surrogate": b'"a\\udc00b"',
    "swapped surrogates": b'"\\udc00\\ud800"',
    "latin-1": b'"\xe9"',
    "surrogate as UTF-8": b'"\xed\xa0\x80"',
    "giant exponent": b"1e999999999",
    "giant number": b"9" * 200_000,
    "many decimals": b"0." + b"1" * 20_000,
    "numbers that grow": b"[" + b"1e99999," * 4000 + b"1]",
}


@pytest.mark.parametrize("name", BAD_PAYLOADS)
async def test_a_payload_that_cannot_be_stored_is_named(api: Api, name: str) -> None:
    for before in (0, 3):
        items = b",".join([item(b"1")] * before + [item(BAD_PAYLOADS[name])])
        answer = await api.send("/api/v1/push", b'{"items":[%b]}' % items)
        assert answer.status_code == 400
        assert answer.json()["field"] == f"items[{before}].payload"
    assert await api.stored() == 0
    assert len(await api.push("q", "fine")) == 1


async def test_a_deep_payload_is_named_whatever_else_the_body_holds(api: Api) -> None:
    deep = item(b"[" * 5000 + b"]" * 5000)
    for extra in (b'"x":[1,2,3],', b'"[[,\\"":"[,[",', b'"x":[[[],[]],{}],'):
        answer = await api.send("/api/v1/push", b'{%b"items":[%b,%b]}' % (extra, item(b"[[],[]]"), deep))
        assert answer.status_code == 400
        assert answer.json()["field"] == "items[1].payload"


@pytest.mark.parametrize("name", BAD_PAYLOADS)
async def test_the_same_in_a_transaction_is_refused(api: Api, name: str) -> None:
    operation = b'{"type":"push","items":[%b,%b]}' % (item(b"1"), item(BAD_PAYLOADS[name]))
    answer = await api.send("/api/v1/transaction", b'{"operations":[%b]}' % operation)
    assert answer.status_code == 400
    assert answer.json()["field"] == "operations[0].items[1].payload"
    assert await api.stored() == 0


@pytest.mark.parametrize("path", ["ack", "ack/batch", "configure", "transaction", "lease/x/extend", "push"])
async def test_a_body_that_is_only_deep_is_refused_everywhere(api: Api, path: str) -> None:
    for body in (b"[" * 100_000, b'{"options":' * 100_000, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        answer = await api.send(f"/api/v1/{path}", body)
        assert answer.status_code == 400, answer.text


async def test_an_option_as_deep_as_can_just_be_read_is_refused_by_name(api: Api) -> None:
    """What a decoder can still follow may be too deep for what comes behind it."""
    for depth in (*range(900, 1000, 3), *range(1000, 1100, 25)):
        value = b"[" * depth + b"]" * depth
        answer = await api.send("/api/v1/configure", b'{"queue":"q","options":{"leaseTime":%b}}' % value)
        assert answer.status_code == 400, (depth, answer.text)
        assert answer.json()["field"] == "options.leaseTime"


async def test_a_million_items_are_refused(api: Api) -> None:
    body = b'{"items":[' + b",".join([b'{"queue":"q"}'] * 1_000_000) + b"]}"
    answer = await api.send("/api/v1/push", body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "items must be at most 10000, not 1000000"
    assert await api.stored() == 0


async def test_names_that_are_not_unicode_are_named(api: Api) -> None:
    for text in (b"\xff", b"\\ud800", b"\xed\xa0\x80"):
        for field in (b"queue", b"partition", b"transactionId", b"traceId"):
            fields = {b"queue": b"q", field: text}
            entry = b",".join(b'"%b":"%b"' % pair for pair in fields.items())
            answer = await api.send("/api/v1/push", b'{"items":[{"queue":"q"},{%b}]}' % entry)
            assert answer.status_code == 400
            assert answer.json()["field"] == f"items[1].{field.decode()}"
    assert await api.stored() == 0


TEXTS = {
    "ack": (b'{"transactionId":%b}', "transactionId"),
    "ack/batch": (b'{"acknowledgments":[{"transactionId":"t","partitionId":%b}]}', "acknowledgments[0].partitionId"),
    "configure": (b'{"namespace":"n","queue":%b}', "queue"),
    "transaction": (b'{"operations":[{"type":"ack","transactionId":%b}]}', "operations[0].transactionId"),
    "push": (b'{"items":[{"queue":"q"},{"queue":%b}]}', "items[1].queue"),
}


@pytest.mark.parametrize("path", TEXTS)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b'"\xff"', "byte 0xff is not UTF-8"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'"a\\udc00 and more"', "half of a surrogate pair"),
        (b"1e999", "number out of range"),
        (b"NaN", "Invalid JSON"),
        (b"-Infinity", "Invalid JSON"),
        (b'"\n"', "Invalid JSON"),
        (b"[" * 5000 + b"]" * 5000, "array"),
    ],
)
async def test_the_field_that_holds_what_no_json_can_is_named(api: Api, path: str, value: bytes, said: str) -> None:
    template, field = TEXTS[path]
    answer = await api.send(f"/api/v1/{path}", template % value)
    assert answer.status_code == 400
    assert answer.json()["field"] == field
    assert said in answer.json()["error"]


@pytest.mark.parametrize("path", [*TEXTS, "lease/x/extend"])
async def test_a_field_nobody_asked_for_is_named_when_it_is_too_deep(api: Api, path: str) -> None:
    answer = await api.send(f"/api/v1/{path}", b'{"x":1,"extra":' + b"[" * 5000 + b"]" * 5000 + b"}")
    assert answer.status_code == 400
    assert answer.json() == {
        "error": "extra must be JSON nested at most 256 deep",
        "code": "invalid_value",
        "field": "extra",
    }


@pytest.mark.parametrize("text", INJECTIONS)
async def test_every_name_is_only_a_name(api: Api, text: str) -> None:
    (result,) = await api.push(text, text, partition=text, transactionId=text)
    assert result["transaction_id"] == text
    path = quote(text, safe="").replace(".", "%2E")
    (message,) = await api.take(path, path, consumerGroup=text)
    assert (message["data"], message["partition"], message["transactionId"]) == (text, text, text)
    assert message["consumerGroup"] == text
    assert (await api.ack(message, "dlq", error=text, consumerGroup=text))["dlq"] is True
    configured = await api.post("/api/v1/configure", {"queue": text, "namespace": text, "task": text})
    assert (configured.json()["namespace"], configured.json()["task"]) == (text, text)
    scoped = await api.http.get("/api/v1/pop", params={"namespace": text, "task": text})
    assert data(scoped.json()["messages"]) == [text]
    for lease in (path, "x"):
        assert (await api.http.post(f"/api/v1/lease/{lease}/extend")).json()["success"] is False
    assert await api.stored() == 1


async def test_odd_texts_in_acks_are_answered(api: Api) -> None:
    await api.push("q", 1)
    (message,) = await api.take("q")
    for text in INJECTIONS:
        for field in ("transactionId", "partitionId", "leaseId", "status"):
            (result,) = (await api.post("/api/v1/ack", {**message, field: text})).json()
            assert result["success"] is False
    assert (await api.ack(message))["success"] is True


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
        st.sampled_from(["", "x" * 300, "\x00", "a\x1eb", "push", "ack", "completed", "failed", "retry", "now"]),
        st.sampled_from([10**400, -1, 2**31, 2**63, 1e308]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
ID = "0190a000-0000-7000-8000-000000000000"
GOOD: dict[str, dict[str, Any]] = {
    "push": {
        "items": [
            {"queue": "q", "partition": "p", "payload": 1, "transactionId": "t", "traceId": ID, "producerSub": ""}
        ]
    },
    "ack": {
        "transactionId": "t",
        "partitionId": ID,
        "status": "completed",
        "leaseId": ID,
        "consumerGroup": "g",
        "error": "e",
    },
    "ack/batch": {
        "acknowledgments": [{"transactionId": "t", "partitionId": ID, "status": "failed", "leaseId": ID, "error": "e"}],
        "consumerGroup": "g",
    },
    "configure": {
        "queue": "q",
        "namespace": "n",
        "task": "t",
        "options": {"leaseTime": 5, "retryLimit": 1, "maxSize": 0, "ttl": 0, "retentionEnabled": False, "priority": 1},
    },
    "transaction": {
        "operations": [
            {"type": "push", "items": [{"queue": "q", "payload": 1, "transactionId": "x"}]},
            {"type": "ack", "transactionId": "t", "partitionId": ID, "status": "completed", "consumerGroup": "g"},
        ],
        "requiredLeases": [ID],
        "kv": [],
        "timers": [],
    },
    f"lease/{ID}/extend": {"seconds": 5},
}


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value, the value itself first."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*path, index))
    return found


def replaced(value: Any, path: tuple[str | int, ...], by: object) -> Any:
    if not path:
        return by
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


PLACES = [(route, place) for route, body in GOOD.items() for place in places(body)]


@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=30, max_size=60))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_json_in_place_of_any_field_is_answered_without_a_server_error(
    embedded_server: Server, changes: list[tuple[tuple[str, tuple[str | int, ...]], object]]
) -> None:
    async def run() -> None:
        name, schema = await embedded_server.lend()
        async with serving(embedded_server.database(name)) as api:
            for (route, place), value in changes:
                body = json.dumps(replaced(GOOD[route], place, value)).encode()
                answer = await api.send(f"/api/v1/{route}", body)
                assert answer.status_code < 500, (route, body, answer.text)
                if answer.status_code >= 400:
                    assert set(answer.json()) == {"error", "code", "field"}
            assert len(await api.push("after", 1)) == 1
        await embedded_server.take_back(name, schema)

    asyncio.run(run())


@given(requests=st.lists(st.tuples(st.sampled_from(sorted(GOOD)), st.binary(max_size=40)), min_size=20, max_size=40))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes_as_a_body_are_answered_without_a_server_error(
    embedded_server: Server, requests: list[tuple[str, bytes]]
) -> None:
    async def run() -> None:
        name, schema = await embedded_server.lend()
        async with serving(embedded_server.database(name)) as api:
            for route, body in requests:
                answer = await api.send(f"/api/v1/{route}", body)
                assert answer.status_code < 500, (route, body, answer.text)
        await embedded_server.take_back(name, schema)

    asyncio.run(run())


QUERY_NAMES = ["batch", "wait", "timeout", "consumerGroup", "autoAck", "subscriptionMode", "subscriptionFrom"]
QUERY_NAMES += ["partitions", "autopilot", "namespace", "task", "frames", "leaseId", "%", ""]
QUERY_TEXT = st.text(st.sampled_from("0123456789-+.%20aeZ:T&=;#é\x00 true now"), max_size=12)


@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from(["", "/queue/q", "/queue/q/partition/p"]),
            st.dictionaries(st.sampled_from(QUERY_NAMES), QUERY_TEXT, max_size=5),
            st.booleans(),
        ),
        min_size=30,
        max_size=60,
    )
)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_query_is_answered_without_a_server_error(
    embedded_server: Server, asked: list[tuple[str, dict[str, str], bool]]
) -> None:
    async def run() -> None:
        name, schema = await embedded_server.lend()
        async with serving(embedded_server.database(name)) as api:
            await api.push("q", *range(100), partition="p")
            for path, query, encoded in asked:
                pairs = {**query, "wait": "false"}.items()
                text = "&".join(
                    f"{key}={quote(value, safe='') if encoded else quote(value, safe='%&=+;')}" for key, value in pairs
                )
                answer = await api.http.get(f"/api/v1/pop{path}?{text}")
                assert answer.status_code in (200, 204, 400), (path, text, answer.text)
        await embedded_server.take_back(name, schema)

    asyncio.run(run())
