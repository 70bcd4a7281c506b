"""Acks over a real socket: shapes, verdicts, and that nothing is lost or delivered twice by them."""

from __future__ import annotations

import uuid

import pytest

from queenmq.http.limits import Limits
from tests.api.serving import Api, Json, data, receipt, serving

BAD_LEASE = "Invalid or expired lease"


async def pushed(api: Api, *payloads: object, queue: str = "orders") -> list[Json]:
    """Messages in a lease. A retry comes again at once."""
    await api.configure(queue, retryDelay=0)
    await api.push(queue, *payloads)
    return await api.take(queue, batch=len(payloads))


async def test_a_single_ack_is_answered_with_an_array_of_one(api: Api) -> None:
    (message,) = await pushed(api, 1)
    answer = await api.post("/api/v1/ack", receipt(message))
    assert answer.status_code == 200
    assert answer.json() == [
        {
            "index": 0,
            "transactionId": message["transactionId"],
            "success": True,
            "error": None,
            "queueName": "orders",
            "partitionName": "Default",
            "leaseReleased": True,
            "dlq": False,
        }
    ]


async def test_explicit_nulls_are_missing_fields(api: Api) -> None:
    (message,) = await pushed(api, 1)
    result = await api.ack(message, status=None, error=None, consumerGroup=None)  # type: ignore[arg-type]
    assert result["success"] is True
    assert await api.take("orders") == []


async def test_success_is_another_word_for_completed(api: Api) -> None:
    (message,) = await pushed(api, 1)
    assert (await api.ack(message, "success"))["success"] is True
    await api.push("orders", 2)
    (message,) = await api.take("orders")
    assert (await api.ack(message, "success", leaseId=None))["success"] is True


async def test_acking_what_was_taken_without_a_lease_succeeds(api: Api) -> None:
    await api.push("orders", 1, 2)
    (message,) = await api.take("orders", autoAck="true")
    assert message["leaseId"] == ""
    assert (await api.ack(message))["success"] is True
    assert data(await api.take("orders")) == [2]


async def test_an_ack_counts_for_its_group(api: Api) -> None:
    await api.push("orders", 1)
    (message,) = await api.take("orders", consumerGroup="a")
    assert (await api.ack(message, consumerGroup="b"))["error"].startswith(BAD_LEASE)
    assert (await api.ack(message, consumerGroup="a"))["success"] is True
    (result,) = await api.ack_batch(receipt((await api.take("orders", consumerGroup="b"))[0]), group="b")
    assert result["success"] is True


async def test_a_batch_is_for_one_group_whatever_its_items_say(api: Api) -> None:
    await api.push("orders", 1)
    (message,) = await api.take("orders", consumerGroup="a")
    (result,) = await api.ack_batch({**receipt(message), "consumerGroup": "b"}, group="a")
    assert result["success"] is True
    assert await api.take("orders", consumerGroup="a") == []


@pytest.mark.parametrize(
    ("body", "error", "field"),
    [
        ({}, "transactionId is required", "transactionId"),
        ({"partitionId": "p"}, "transactionId is required", "transactionId"),
        ({"transactionId": None, "partitionId": "p"}, "transactionId is required", "transactionId"),
        ({"transactionId": "", "partitionId": "p"}, "transactionId is required", "transactionId"),
        ({"transactionId": "t"}, "partitionId is required to ensure message uniqueness", "partitionId"),
        (
            {"transactionId": 5, "partitionId": "p"},
            "transactionId is required: transactionId is an int",
            "transactionId",
        ),
        ({"transactionId": "a\x00", "partitionId": "p"}, "without control characters", "transactionId"),
        ({"transactionId": "t", "partitionId": "p", "status": 1}, "status must be a string, not an integer", "status"),
        ({"transactionId": "t", "partitionId": "p", "consumerGroup": "\x00"}, "must be a text", "consumerGroup"),
    ],
)
async def test_a_bad_ack_names_its_field(api: Api, body: object, error: str, field: str) -> None:
    answer = await api.post("/api/v1/ack", body)
    assert answer.status_code == 400
    assert error in answer.json()["error"]
    assert answer.json()["field"] == field


@pytest.mark.parametrize("body", [{}, {"acknowledgments": None}, {"acknowledgments": {}}, [], {"acknowledgments": 3}])
async def test_a_batch_needs_its_array(api: Api, body: object) -> None:
    answer = await api.post("/api/v1/ack/batch", body)
    assert answer.status_code == 400
    assert "acknowledgments array is required" in answer.json()["error"]


async def test_an_empty_body_is_an_empty_object(api: Api) -> None:
    assert (await api.send("/api/v1/ack", b"")).json()["error"] == "transactionId is required"
    assert (await api.send("/api/v1/ack/batch", b"")).json()["error"] == "acknowledgments array is required"


async def test_an_empty_batch_is_answered_at_once(api: Api) -> None:
    answer = await api.post("/api/v1/ack/batch", {"acknowledgments": [], "consumerGroup": None})
    assert (answer.status_code, answer.json()) == (200, [])


async def test_a_bad_item_of_a_batch_is_named(api: Api) -> None:
    good = {"transactionId": "t", "partitionId": "p"}
    for bad, field, phrase in (
        ({"partitionId": "p"}, "transactionId", "must have a valid transactionId string"),
        ({"transactionId": "t"}, "partitionId", "must have a valid partitionId string"),
        ({"transactionId": "t", "partitionId": 3}, "partitionId", "must have a valid partitionId string"),
        ({"transactionId": "\x1e", "partitionId": "p"}, "transactionId", "without control characters"),
    ):
        answer = await api.post("/api/v1/ack/batch", {"acknowledgments": [good, bad]})
        assert answer.status_code == 400
        assert answer.json()["field"] == f"acknowledgments[1].{field}"
        assert phrase in answer.json()["error"]


async def test_too_many_acks_are_refused(database: str) -> None:
    async with serving(database, Limits(max_push_items=2)) as api:
        entry = {"transactionId": "t", "partitionId": "p"}
        answer = await api.post("/api/v1/ack/batch", {"acknowledgments": [entry] * 3})
        assert answer.status_code == 400
        assert answer.json()["error"] == "acknowledgments must be at most 2, not 3"


async def test_a_message_that_cannot_exist_fails_alone(api: Api) -> None:
    (message,) = await pushed(api, 1)
    results = await api.ack_batch(
        {**receipt(message), "partitionId": "no uuid"},
        {**receipt(message), "transactionId": "unknown"},
        {**receipt(message), "partitionId": str(uuid.uuid4())},
        {**receipt(message), "leaseId": "no uuid"},
        {**receipt(message), "leaseId": str(uuid.uuid4())},
        {**receipt(message), "status": "finished"},
        receipt(message),
    )
    assert [result["index"] for result in results] == list(range(7))
    assert [result["success"] for result in results] == [False] * 6 + [True]
    assert "partitionId must be a UUID" in results[0]["error"]
    assert results[1]["error"] == results[2]["error"] == "Message not found"
    assert results[3]["error"] == results[4]["error"] == BAD_LEASE
    assert "status must be one of" in results[5]["error"]
    assert results[6]["error"] is None


async def test_results_come_in_the_order_of_the_request(api: Api) -> None:
    messages = await pushed(api, *range(8))
    backwards = messages[::-1]
    results = await api.ack_batch(*(receipt(message) for message in backwards))
    assert [result["transactionId"] for result in results] == [message["transactionId"] for message in backwards]
    assert [result["index"] for result in results] == list(range(8))
    assert all(result["success"] for result in results)


async def test_an_ack_settles_what_lies_before_it_and_the_rest_comes_again(api: Api) -> None:
    messages = await pushed(api, *range(5))
    assert (await api.ack(messages[2]))["leaseReleased"] is False
    assert (await api.ack(messages[3], "retry"))["leaseReleased"] is True
    assert data(await api.take("orders", batch=9)) == [3, 4]


async def test_acking_the_last_message_releases_the_lease(api: Api) -> None:
    """Otherwise the partition would be blocked for the rest of the lease."""
    messages = await pushed(api, *range(5))
    assert (await api.ack(messages[4]))["leaseReleased"] is True
    await api.push("orders", "next")
    assert data(await api.take("orders", batch=9)) == ["next"]


async def test_the_cursor_never_goes_back(api: Api) -> None:
    messages = await pushed(api, *range(5))
    await api.ack(messages[3])
    assert (await api.ack(messages[0]))["success"] is True
    await api.ack(messages[4], "retry")
    assert data(await api.take("orders", batch=9)) == [4]


async def test_the_cursor_never_goes_back_without_a_lease_either(api: Api) -> None:
    messages = await pushed(api, *range(3))
    await api.ack(messages[2])
    await api.ack(messages[0], leaseId=None)
    assert await api.take("orders", batch=9) == []


async def test_acking_one_message_twice_does_not_release_the_lease_early(api: Api) -> None:
    messages = await pushed(api, 1, 2)
    for _ in range(3):
        result = await api.ack(messages[0])
        assert (result["success"], result["leaseReleased"]) == (True, False)
    assert await api.take("orders") == []


async def test_repeating_an_ack_after_the_lease_was_released_succeeds(api: Api) -> None:
    """A client whose answer was lost sends its request again."""
    messages = await pushed(api, 1, 2)
    for _ in range(2):
        results = await api.ack_batch(*(receipt(message) for message in messages))
        assert [result["success"] for result in results] == [True, True]
    assert (await api.ack(messages[1]))["success"] is True


async def test_a_mixed_batch_does_not_lose_the_failed_message(api: Api) -> None:
    messages = await pushed(api, 1, 2, 3)
    results = await api.ack_batch(
        receipt(messages[0], "completed"), receipt(messages[1], "failed"), receipt(messages[2], "completed")
    )
    assert [result["success"] for result in results] == [True, True, False]
    assert data(await api.take("orders", batch=9)) == [2, 3]


async def test_a_failed_message_comes_again_until_its_limit_and_then_is_a_dead_letter(api: Api) -> None:
    await api.configure("orders", retryLimit=1, retryDelay=0)
    await api.push("orders", "a", "b")
    (message,) = await api.take("orders")
    assert (await api.ack(message, "failed", error="no"))["dlq"] is False
    (again,) = await api.take("orders")
    assert again["id"] == message["id"]
    assert (await api.ack(again, "failed", error="still\x00no"))["dlq"] is True
    (other,) = await api.take("orders")
    assert other["data"] == "b"
    assert (await api.ack(other, "failed"))["dlq"] is False  # the count belongs to the message
    letters = await api.broker.store.pool.fetch("select error_message from queen.dead_letter_queue")
    assert [letter["error_message"] for letter in letters] == ["still\ufffdno"]


async def test_dlq_dead_letters_at_once_and_retry_counts_nothing(api: Api) -> None:
    messages = await pushed(api, 1, 2)
    assert (await api.ack(messages[0], "dlq", error="bad"))["dlq"] is True
    for _ in range(6):
        assert (await api.ack(messages[1], "retry"))["dlq"] is False
        messages = [messages[0], *await api.take("orders")]
    assert messages[1]["data"] == 2


async def test_an_error_text_is_cut_and_never_a_reason_to_refuse(api: Api) -> None:
    (message,) = await pushed(api, 1)
    assert (await api.ack(message, "dlq", error="x" * 200_000))["dlq"] is True
    kept = await api.broker.store.pool.fetchval("select length(error_message) from queen.dead_letter_queue")
    assert kept == 10_000


async def test_a_lease_that_was_lost_settles_nothing(api: Api) -> None:
    (message,) = await pushed(api, 1)
    await api.ack(message, "retry")
    (again,) = await api.take("orders")
    result = await api.ack(message)
    assert (result["success"], result["error"]) == (False, BAD_LEASE)
    assert (await api.ack(again))["success"] is True


@pytest.mark.parametrize("verdict", ["failed", "dlq"])
async def test_a_failure_is_not_overtaken_by_the_ack_of_a_later_message(api: Api, verdict: str) -> None:
    """Between the two stands an ack of another partition."""
    await api.configure("orders", retryDelay=0)
    await api.push("orders", "m1", "m2", partition="a")
    await api.push("orders", "n1", partition="b")
    messages = {m["data"]: m for m in await api.take("orders", batch=9, partitions=2)}
    results = await api.ack_batch(
        *[receipt(messages["m1"], verdict), receipt(messages["n1"], "completed"), receipt(messages["m2"], "completed")]
    )
    letters = await api.broker.store.pool.fetchval("select count(*) from queen.dead_letter_queue")
    if verdict == "failed":
        assert [result["success"] for result in results] == [True, True, False]
        assert data(await api.take("orders", "a", batch=9)) == ["m1", "m2"]
    else:
        assert [result["success"] for result in results] == [True, True, True]
        assert letters == 1


async def test_an_ack_without_its_group_names_the_group_that_holds_the_lease(api: Api) -> None:
    await api.push("orders", 1)
    (message,) = await api.take("orders", consumerGroup="workers")
    sentence = f"{BAD_LEASE}: consumerGroup 'workers' holds it, and this ack names no consumerGroup"
    assert (await api.ack(message, consumerGroup=None))["error"] == sentence
    (result,) = await api.ack_batch(receipt(message))
    assert (result["success"], result["error"]) == (False, sentence)
    assert (await api.ack(message, consumerGroup="workers"))["success"] is True
