"""Push over a real socket: what is answered, what is stored, and what is refused without storing anything."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from queenmq.http.limits import Limits
from tests.api.serving import Api, data, serving


async def refused(api: Api, body: object) -> dict[str, Any]:
    """The error of a push that must be refused, after a look that nothing was stored."""
    answer = await api.post("/api/v1/push", body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()
    assert set(error) == {"error", "code", "field"}
    assert await api.stored() == 0
    return error


async def test_the_answer_names_every_id_twice_once_per_style(api: Api) -> None:
    trace = str(uuid.uuid4())
    (result,) = await api.push("orders", {"n": 1}, transactionId="tx-1", traceId=trace)
    assert result["index"] == 0
    assert result["status"] == "queued"
    assert result["transaction_id"] == result["transactionId"] == "tx-1"
    assert result["message_id"] == result["messageId"]
    assert result["partition_id"] == result["partitionId"]
    assert result["trace_id"] == trace
    assert result["queueName"] == "orders"
    assert uuid.UUID(result["message_id"]).version == 7


async def test_the_index_is_that_of_the_request_also_when_requests_are_merged(api: Api) -> None:
    answers = await asyncio.gather(*(api.push("orders", *range(size)) for size in range(1, 30)))
    for size, results in enumerate(answers, 1):
        assert [result["index"] for result in results] == list(range(size))
    assert len({result["message_id"] for results in answers for result in results}) == sum(range(1, 30))


async def test_an_empty_push_is_answered_with_an_empty_list(api: Api) -> None:
    answer = await api.post("/api/v1/push", {"items": []})
    assert (answer.status_code, answer.json()) == (201, [])


async def test_the_first_of_a_transaction_id_wins(api: Api) -> None:
    first, second = await api.push("orders", "a", "b", transactionId="same")
    (third,) = await api.push("orders", "c", transactionId="same")
    (elsewhere,) = await api.push("orders", "d", transactionId="same", partition="other")
    assert [first["status"], second["status"], third["status"]] == ["queued", "duplicate", "duplicate"]
    assert first["message_id"] == second["message_id"] == third["message_id"]
    assert elsewhere["status"] == "queued"
    assert data(await api.take("orders", "Default", batch=10)) == ["a"]


async def test_an_id_that_the_server_gave_is_a_duplicate(api: Api) -> None:
    """Messages of several requests share a flush; each of their ids is that of one message."""
    answers = await asyncio.gather(*(api.push("orders", *range(size)) for size in (1, 2, 3)))
    given = [result["message_id"] for results in answers for result in results]
    body = {"items": [{"queue": "orders", "payload": "again", "transactionId": tx} for tx in given]}
    again = (await api.post("/api/v1/push", body)).json()
    assert [(result["status"], result["message_id"]) for result in again] == [("duplicate", tx) for tx in given]
    (elsewhere,) = await api.push("orders", "again", transactionId=given[-1], partition="other")
    assert elsewhere["status"] == "queued"
    assert await api.stored() == 7


async def test_concurrent_pushes_of_one_transaction_id_store_one(api: Api) -> None:
    answers = await asyncio.gather(*(api.push("orders", n, transactionId="same") for n in range(12)))
    statuses = sorted(result["status"] for (result,) in answers)
    assert statuses == ["duplicate"] * 11 + ["queued"]
    assert len({result["message_id"] for (result,) in answers}) == 1
    assert await api.stored() == 1


async def test_every_kind_of_payload_comes_back_as_it_was_sent(api: Api) -> None:
    payloads: list[object] = [
        None,
        True,
        0,
        -1.5,
        "",
        "Zoë 🐝",
        [],
        {},
        {"a": [1, {"b": None}]},
        "x" * 1_000_000,
        10**30,
    ]
    await api.push("orders", *payloads)
    assert data(await api.take("orders", batch=20)) == payloads


async def test_an_item_without_payload_carries_null(api: Api) -> None:
    answer = await api.post("/api/v1/push", {"items": [{"queue": "orders"}]})
    assert answer.status_code == 201
    assert data(await api.take("orders")) == [None]


async def test_explicit_nulls_are_missing_fields(api: Api) -> None:
    (result,) = await api.push("orders", 1, partition=None, transactionId=None, traceId=None)
    assert result["transaction_id"] == result["message_id"]
    assert [message["partition"] for message in await api.take("orders")] == ["Default"]


async def test_unknown_fields_and_a_claimed_producer_are_ignored(api: Api) -> None:
    await api.push("orders", 1, producerSub="somebody", bufferMs=10, colour="red")
    (message,) = await api.take("orders")
    assert message["producerSub"] is None


@pytest.mark.parametrize("body", [{}, {"items": None}, {"items": 1}, {"items": {}}, {"items": "x"}, [], None, "x", 5])
async def test_without_an_array_of_items_the_error_says_so(api: Api, body: object) -> None:
    assert "items array is required" in (await refused(api, body))["error"]


async def test_an_empty_body_is_an_empty_object(api: Api) -> None:
    for body in (b"", b" \n"):
        answer = await api.send("/api/v1/push", body)
        assert answer.status_code == 400
        assert answer.json() == {"error": "items array is required", "code": "invalid_value", "field": "items"}


@pytest.mark.parametrize(
    ("item", "field", "phrase"),
    [
        ({}, "queue", "Queue must be a string: items[1].queue is missing"),
        ({"queue": None}, "queue", "Queue must be a string: items[1].queue is missing"),
        ({"queue": 7}, "queue", "Queue must be a string: items[1].queue is an integer"),
        ({"queue": ["a"]}, "queue", "Queue must be a string: items[1].queue is an array"),
        ({"queue": ""}, "queue", "items[1].queue must be a text of 1 to 255 characters"),
        ({"queue": "a" * 256}, "queue", "items[1].queue must be a text of 1 to 255 characters"),
        ({"queue": "a\nb"}, "queue", "without control characters"),
        ({"queue": "a\x00b"}, "queue", "without control characters"),
        ({"queue": "q", "partition": 1.5}, "partition", "Partition must be a string: items[1].partition is a number"),
        ({"queue": "q", "partition": ""}, "partition", "items[1].partition must be a text of 1 to 255 characters"),
        ({"queue": "q", "partition": "\x1e"}, "partition", "without control characters"),
        ({"queue": "q", "transactionId": True}, "transactionId", "TransactionId must be a string"),
        ({"queue": "q", "transactionId": "x" * 256}, "transactionId", "a text of up to 255 characters"),
        ({"queue": "q", "transactionId": "a\x1eb"}, "transactionId", "without control characters"),
        ({"queue": "q", "transactionId": "a\x85b"}, "transactionId", "without control characters"),
        ({"queue": "q", "traceId": {}}, "traceId", "TraceId must be a string: items[1].traceId is an object"),
        ({"queue": "q", "traceId": "nope"}, "traceId", "items[1].traceId must be a UUID, not 'nope'"),
        ({"queue": "q", "traceId": ""}, "traceId", "items[1].traceId must be a UUID"),
    ],
)
async def test_a_bad_item_is_named_and_nothing_is_stored(api: Api, item: object, field: str, phrase: str) -> None:
    error = await refused(api, {"items": [{"queue": "good", "payload": 1}, item, {"queue": "good"}]})
    assert error["code"] == "invalid_value"
    assert error["field"] == f"items[1].{field}"
    assert phrase in error["error"]


async def test_the_first_bad_item_is_the_one_that_is_named(api: Api) -> None:
    bad: list[dict[str, object]] = [
        {"queue": "q", "traceId": "nope"},
        {"queue": "q", "payload": "\x00"},
        {"queue": "q", "transactionId": "\x00"},
        {"queue": "\x00"},
    ]
    for items in (bad, bad[::-1]):
        error = await refused(api, {"items": [{"queue": "good"}, *items]})
        (field,) = items[0].keys() - ({"queue"} if len(items[0]) > 1 else set())
        assert error["field"] == f"items[1].{field}"


async def test_an_item_that_is_no_object_is_named(api: Api) -> None:
    error = await refused(api, {"items": [{"queue": "q"}, 5]})
    assert error == {
        "error": "items[1] must be an object, not an integer",
        "code": "invalid_value",
        "field": "items[1]",
    }


async def test_bad_json_is_called_that(api: Api) -> None:
    for body in (b"{", b'{"items":[}', b"items", b'{"items":[]}]', b"\xff\xfe", b"QPB1\x00\x00\x00"):
        answer = await api.send("/api/v1/push", body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("Invalid JSON: ")
        assert answer.json()["code"] == "invalid_json"


async def test_one_bad_request_fails_alone_while_its_neighbours_succeed(api: Api) -> None:
    bad = {"items": [{"queue": "orders", "payload": "bad", "traceId": "nope"}]}
    good = asyncio.gather(*(api.push("orders", n, partition=f"p{n}") for n in range(20)))
    answers = await asyncio.gather(*(api.post("/api/v1/push", bad) for _ in range(20)))
    assert [answer.status_code for answer in answers] == [400] * 20
    assert {result["status"] for (result,) in await good} == {"queued"}
    assert await api.stored() == 20


async def test_a_push_is_visible_to_a_queue_wide_pop_at_once(api: Api) -> None:
    for n in range(40):
        await api.push("orders", n, partition=f"p{n}")
        (message,) = await api.take("orders", autoAck="true")
        assert message["data"] == n


async def test_too_many_items_are_refused_whole(database: str) -> None:
    async with serving(database, Limits(max_push_items=3)) as api:
        assert len(await api.push("orders", 1, 2, 3)) == 3
        answer = await api.post("/api/v1/push", {"items": [{"queue": "orders"}] * 4})
        assert answer.status_code == 400
        assert answer.json()["error"] == "items must be at most 3, not 4"
        assert await api.stored() == 3


async def test_shorter_names_can_be_asked_for(database: str) -> None:
    async with serving(database, Limits(max_name_length=5, max_json_depth=2)) as api:
        assert len(await api.push("12345", [[]], partition="12345", transactionId="12345")) == 1
        for fields in ({"queue": "123456"}, {"partition": "123456"}, {"transactionId": "123456"}):
            answer = await api.post("/api/v1/push", {"items": [{"queue": "q", **fields}]})
            assert answer.status_code == 400
            assert " 5 characters" in answer.json()["error"]
        deep = await api.post("/api/v1/push", {"items": [{"queue": "q", "payload": [[[]]]}]})
        assert deep.json()["field"] == "items[0].payload"
        assert (await api.pop("123456")).status_code == 400


async def test_a_full_queue_refuses_the_whole_push_until_there_is_room(api: Api) -> None:
    await api.configure("small", maxSize=2)
    await api.push("small", 1, 2)
    answer = await api.post("/api/v1/push", {"items": [{"queue": "small", "payload": 3}]})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["code"] == "queue_full"
    assert len(await api.take("small", batch=2, autoAck="true")) == 2
    (result,) = await api.push("small", 3)
    assert result["status"] == "queued"


async def test_when_only_one_of_two_queues_is_full_its_items_are_failed(api: Api) -> None:
    await api.configure("small", maxSize=1)
    await api.push("small", 1)
    answer = await api.post("/api/v1/push", {"items": [{"queue": "small"}, {"queue": "large"}, {"queue": "small"}]})
    assert answer.status_code == 201
    results = answer.json()
    assert [result["status"] for result in results] == ["failed", "queued", "failed"]
    assert results[0]["code"] == "queue_full"
    assert results[0]["error"]
    assert (results[0]["queue"], results[0]["partition"]) == ("small", "Default")
    assert results[0]["transaction_id"] is results[0]["transactionId"] is results[0]["message_id"] is None
    assert results[1].get("error") is None
    assert await api.stored() == 2
