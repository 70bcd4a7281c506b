"""Transactions over a real socket: everything or nothing, in the words that clients look for."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from queenmq.http.limits import Limits
from tests.api.serving import Api, Json, data, receipt, serving

PATH = "/api/v1/transaction"


def push(queue: str, *payloads: object, **fields: object) -> Json:
    return {"type": "push", "items": [{"queue": queue, "payload": payload, **fields} for payload in payloads]}


def ack(message: Json, **fields: object) -> Json:
    """As older clients send it: the lease stands in requiredLeases only."""
    return {
        "type": "ack",
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "status": "completed",
        **fields,
    }


async def commit(api: Api, *operations: object, leases: list[str] | None = None) -> Json:
    answer = await api.post(PATH, {"operations": operations, "requiredLeases": leases or []})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    uuid.UUID(body["transactionId"])
    return body


async def test_results_stand_in_the_order_of_the_operations_flattened(api: Api) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in")
    body = await commit(api, push("out", 1, 2), ack(message), push("other", 3), leases=[message["leaseId"]])
    assert body["success"] is True
    results = body["results"]
    assert [(result["index"], result["type"], result["success"]) for result in results] == [
        (0, "push", True),
        (1, "push", True),
        (2, "ack", True),
        (3, "push", True),
    ]
    assert [result["queueName"] for result in results] == ["out", "out", "in", "other"]
    assert results[2]["transactionId"] == message["transactionId"]
    assert (results[2]["error"], results[2]["dlq"]) == (None, False)
    stored = await api.take("out", batch=5)
    assert data(stored) == [1, 2]
    assert [result["messageId"] for result in results[:2]] == [message["id"] for message in stored]
    assert await api.take("in") == []


async def test_a_duplicate_is_reported_and_does_not_abort(api: Api) -> None:
    (first,) = await api.push("out", "first", transactionId="tx")
    body = await commit(api, push("out", "second", transactionId="tx"), push("out", "third"))
    assert body["success"] is True
    assert [result["status"] for result in body["results"]] == ["duplicate", "queued"]
    assert body["results"][0]["messageId"] == first["message_id"]
    assert data(await api.take("out", batch=5)) == ["first", "third"]


async def test_an_ack_that_fails_takes_everything_back(api: Api) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in")
    unknown = {**message, "transactionId": "unknown"}
    body = await commit(api, push("out", 1), ack(message), ack(unknown), leases=[message["leaseId"]])
    assert body["success"] is False
    assert body["error"] == "ACK operation failed: Message not found"
    assert body["results"] == []
    assert await api.take("out") == []
    assert (await api.ack(message))["success"] is True


async def test_a_required_lease_fences(api: Api) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in")
    for lease in ("someone-else", str(uuid.uuid4())):
        body = await commit(api, push("out", 1), leases=[message["leaseId"], lease])
        assert body["success"] is False
        assert f"required lease {lease} is not held" in body["error"]
    assert await api.take("out") == []
    assert (await commit(api, push("out", 1), leases=[message["leaseId"]]))["success"] is True


async def test_a_lost_lease_fences_acks_that_name_it_either_way(api: Api) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in")
    await api.ack(message, "retry")
    (again,) = await api.take("in")
    assert (await commit(api, ack(message), leases=[message["leaseId"]]))["success"] is False
    named = await commit(api, push("out", 1), ack(message, leaseId=message["leaseId"]))
    assert named["error"] == "ACK operation failed: Invalid or expired lease"
    assert await api.take("out") == []
    assert (await commit(api, ack(again, leaseId=again["leaseId"]), leases=[again["leaseId"]]))["success"] is True


async def test_failed_is_retried_as_anywhere_else(api: Api) -> None:
    await api.configure("in", retryLimit=3, retryDelay=0)
    await api.push("in", "a")
    (message,) = await api.take("in")
    body = await commit(api, ack(message, status="failed"), leases=[message["leaseId"]])
    assert (body["success"], body["results"][0]["dlq"]) == (True, False)
    assert data(await api.take("in")) == ["a"]


async def test_success_is_another_word_for_completed(api: Api) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in")
    assert (await commit(api, ack(message, status="success"), leases=[message["leaseId"]]))["success"] is True
    assert await api.take("in") == []


async def test_an_ack_counts_for_its_group(api: Api) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in", consumerGroup="g")
    assert (await commit(api, ack(message, consumerGroup="g"), leases=[message["leaseId"]]))["success"] is True
    assert await api.take("in", consumerGroup="g") == []
    assert data(await api.take("in")) == ["a"]


async def test_a_full_queue_takes_everything_back(api: Api) -> None:
    await api.configure("small", maxSize=1)
    await api.push("small", 1)
    body = await commit(api, push("out", 1), push("small", 2))
    assert (body["success"], body["code"]) == (False, "queue_full")
    assert body["error"]
    assert await api.take("out") == []


async def test_a_queue_that_cannot_be_encrypted_takes_everything_back(api: Api) -> None:
    answer = await api.post("/api/v1/configure", {"queue": "secret", "options": {"encryptionEnabled": True}})
    assert answer.status_code in (200, 201)
    await api.push("in", "a")
    (message,) = await api.take("in")
    operations = [ack(message), push("out", 1), push("secret", 2)]
    answer = await api.post(PATH, {"operations": operations, "requiredLeases": [message["leaseId"]]})
    assert (answer.status_code, answer.json()["code"]) == (503, "encryption_unavailable")
    assert (await commit(api, ack(message), leases=[message["leaseId"]]))["success"] is True
    assert await api.take("out") == []


async def test_empty_leases_and_steps_of_newer_clients_that_are_empty_are_fine(api: Api) -> None:
    body: dict[str, Any] = {"operations": [push("out", 1)], "requiredLeases": ["", None], "kv": [], "timers": None}
    assert (await api.post(PATH, body)).json()["success"] is True
    body = {"operations": [push("out", 1)], "requiredLeases": None}
    assert (await api.post(PATH, body)).json()["success"] is True


@pytest.mark.parametrize(
    ("body", "error", "field"),
    [
        ({}, "operations array required", "operations"),
        ({"operations": None}, "operations array required", "operations"),
        ({"operations": {}}, "operations array required", "operations"),
        ([], "operations array required", None),
        ({"operations": []}, "operations array cannot be empty", "operations"),
        ({"operations": [1]}, "operations[0] must be an object, not an integer", "operations[0]"),
        ({"operations": [{}]}, "Unknown operation type: null", "operations[0].type"),
        ({"operations": [{"type": "pop"}]}, "Unknown operation type: 'pop'", "operations[0].type"),
        (
            {"operations": [{"type": "push"}]},
            "items array is required: operations[0].items is missing",
            "operations[0].items",
        ),
        ({"operations": [{"type": "push", "items": [{}]}]}, "Queue must be a string", "operations[0].items[0].queue"),
        (
            {"operations": [{"type": "push", "items": [{"queue": "q", "traceId": "x"}]}]},
            "must be a UUID",
            "operations[0].items[0].traceId",
        ),
        ({"operations": [{"type": "ack"}]}, "transactionId is required", "operations[0].transactionId"),
        (
            {"operations": [{"type": "ack", "transactionId": "t"}]},
            "partitionId is required to ensure message uniqueness",
            "operations[0].partitionId",
        ),
        (
            {"operations": [{"type": "ack", "transactionId": "\x00", "partitionId": "p"}]},
            "without control characters",
            "operations[0].transactionId",
        ),
        (
            {"operations": [{"type": "ack", "transactionId": "t", "partitionId": "p", "consumerGroup": "\n"}]},
            "must be a text",
            "operations[0].consumerGroup",
        ),
        ({"operations": [push("q", 1)], "requiredLeases": [1]}, "must be a string", "requiredLeases[0]"),
        ({"operations": [push("q", 1)], "requiredLeases": ["", "x" * 256]}, "must be a text", "requiredLeases[1]"),
        (
            {"operations": [push("q", 1)], "requiredLeases": ["x"] * 10_001},
            "at most 10000, not 10001",
            "requiredLeases",
        ),
        ({"operations": [push("q", 1)], "kv": [{"op": "get"}]}, "kv operations are not supported", "kv"),
        ({"operations": [push("q", 1)], "timers": [1]}, "timers operations are not supported", "timers"),
    ],
)
async def test_a_bad_transaction_names_its_field_and_stores_nothing(
    api: Api, body: object, error: str, field: str | None
) -> None:
    answer = await api.post(PATH, body)
    assert answer.status_code == 400, answer.text
    assert error in answer.json()["error"]
    assert answer.json()["field"] == field
    assert await api.stored() == 0


async def test_an_unknown_status_takes_everything_back(api: Api) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in")
    body = await commit(api, push("out", 1), ack(message, status="finished"), leases=[message["leaseId"]])
    assert body["success"] is False
    assert body["error"].startswith("ACK operation failed: status must be one of")
    assert await api.take("out") == []


async def test_an_empty_push_in_a_transaction_does_nothing(api: Api) -> None:
    body = await commit(api, push("out"))
    assert (body["success"], body["results"]) == (True, [])


async def test_too_many_steps_are_refused(database: str) -> None:
    async with serving(database, Limits(max_push_items=3)) as api:
        assert (await commit(api, push("out", 1, 2), push("out", 3)))["success"] is True
        answer = await api.post(PATH, {"operations": [push("out", 1, 2), push("out", 3, 4)]})
        assert answer.status_code == 400
        assert answer.json()["error"] == "operations must hold at most 3 messages and acks, not 4"
        assert await api.stored() == 3


async def test_a_repeated_transaction_with_leased_acks_is_recognised_by_its_lease(api: Api) -> None:
    """The lease that did it may say it again; nothing is done twice."""
    await api.push("in", "a")
    (message,) = await api.take("in")
    await commit(api, ack(message), push("out", 1, transactionId="tx"), leases=[message["leaseId"]])
    result = await api.ack_batch(receipt(message))
    assert result[0]["success"] is True
    assert data(await api.take("out", batch=5)) == [1]


@pytest.mark.parametrize("lease_of_its_own", [True, False])
@pytest.mark.parametrize("known", [True, False])
async def test_an_ack_without_its_group_names_the_group_that_holds_the_lease(
    api: Api, lease_of_its_own: bool, known: bool
) -> None:
    await api.push("in", "a")
    (message,) = await api.take("in", consumerGroup="workers")
    if known:
        assert len(await api.take("in")) == 1
    fields = {"leaseId": message["leaseId"]} if lease_of_its_own else {}
    body = await commit(api, ack(message, **fields), push("out", "b"), leases=[message["leaseId"]])
    assert body["success"] is False
    assert body["error"] == (
        "ACK operation failed: Invalid or expired lease: consumerGroup 'workers' holds it, and this ack names no"
        " consumerGroup"
    )
    assert await api.take("out") == []
