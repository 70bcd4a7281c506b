"""Configuring a queue over a real socket."""

from __future__ import annotations

import uuid

import pytest

from queenmq.domain.options import OPTIONS
from queenmq.storage.store import Store
from tests.api.serving import Api, data

PATH = "/api/v1/configure"

DEFAULTS = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "maxWaitTimeSeconds": 0,
    "maxSize": 0,
    "priority": 0,
    "ttl": 0,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "dedupWindowSeconds": 3600,
    "encryptionEnabled": False,
}


async def test_the_answer_shows_every_option(api: Api) -> None:
    answer = await api.post(PATH, {"queue": "orders"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["configured"] is True
    assert (body["queue"], body["namespace"], body["task"]) == ("orders", "", "")
    assert body["options"] == DEFAULTS
    assert set(DEFAULTS) == {option.name for option in OPTIONS}
    uuid.UUID(body["queueId"])
    (result,) = await api.push("orders", 1)
    assert result["partition_id"] == body["partitionId"]


async def test_every_option_comes_back_as_it_was_sent(api: Api) -> None:
    wanted = {name: not value if isinstance(value, bool) else value + 7 for name, value in DEFAULTS.items()}
    assert (await api.configure("orders", **wanted))["options"] == wanted


async def test_options_that_are_not_sent_keep_their_values(api: Api) -> None:
    await api.post(PATH, {"queue": "orders", "namespace": "shop", "task": "mail", "options": {"leaseTime": 5}})
    body = (await api.post(PATH, {"queue": "orders", "options": {"retryLimit": 9}})).json()
    assert (body["namespace"], body["task"]) == ("shop", "mail")
    assert (body["options"]["leaseTime"], body["options"]["retryLimit"]) == (5, 9)
    body = (await api.post(PATH, {"queue": "orders", "namespace": "", "task": None, "options": None})).json()
    assert (body["namespace"], body["task"], body["options"]["leaseTime"]) == ("", "mail", 5)


async def test_a_queue_made_by_a_push_keeps_what_its_name_says(api: Api) -> None:
    await api.push("shop.mail.x", 1)
    body = await api.configure("shop.mail.x", leaseTime=9)
    assert (body["namespace"], body["task"]) == ("shop", "mail")


async def test_unknown_options_and_nulls_are_ignored(api: Api) -> None:
    options: dict[str, object] = {
        "colour": "red",
        "leaseTime": None,
        "queue": "x",
        "namespace": 1,
        "task": [],
        "lease_time_seconds": 5,
    }
    answer = await api.post(PATH, {"queue": "orders", "options": options, "other": {}})
    assert answer.json()["options"] == DEFAULTS


async def test_whole_numbers_may_be_written_as_decimals(api: Api) -> None:
    assert (await api.configure("orders", leaseTime=30.0))["options"]["leaseTime"] == 30


@pytest.mark.parametrize(
    ("body", "error", "field"),
    [
        ({}, "queue is required", "queue"),
        ({"queue": None}, "queue is required", "queue"),
        ({"queue": ""}, "queue is required", "queue"),
        ({"queue": 5}, "queue is required", "queue"),
        ({"queue": "a\x00"}, "queue must be a text", "queue"),
        ({"queue": "x" * 256}, "queue must be a text", "queue"),
        ({"queue": "q", "namespace": 1}, "namespace must be a string", "namespace"),
        ({"queue": "q", "task": "\x7f"}, "task must be a text", "task"),
        ({"queue": "q", "options": []}, "options must be an object", "options"),
        ({"queue": "q", "options": {"leaseTime": "5"}}, "options.leaseTime must be an integer", "options.leaseTime"),
        ({"queue": "q", "options": {"leaseTime": -1}}, "options.leaseTime must be an integer", "options.leaseTime"),
        ({"queue": "q", "options": {"leaseTime": 1.5}}, "options.leaseTime must be an integer", "options.leaseTime"),
        ({"queue": "q", "options": {"leaseTime": True}}, "options.leaseTime must be an integer", "options.leaseTime"),
        ({"queue": "q", "options": {"maxSize": 10**30}}, "options.maxSize must be an integer", "options.maxSize"),
        ({"queue": "q", "options": {"retentionEnabled": 1}}, "must be true or false", "options.retentionEnabled"),
        ([], "the body must be an object, not an array", None),
    ],
)
async def test_a_bad_configuration_names_its_field_and_changes_nothing(
    api: Api, body: object, error: str, field: str | None
) -> None:
    answer = await api.post(PATH, body)
    assert answer.status_code == 400, answer.text
    assert error in answer.json()["error"]
    assert answer.json()["field"] == field
    assert await api.broker.store.pool.fetchval("select count(*) from queen.queues") == 0


@pytest.mark.parametrize("value", [b"1e999", b"-1e999", b"1" + b"0" * 6000])
async def test_a_number_that_nothing_can_hold_is_refused_in_an_option_and_ignored_in_an_unknown_one(
    api: Api, value: bytes
) -> None:
    answer = await api.send(PATH, b'{"queue":"q","options":{"priority":1,"leaseTime":%b}}' % value)
    assert (answer.status_code, answer.json()["field"]) == (400, "options.leaseTime")
    assert answer.json()["error"].startswith(
        f"options.leaseTime must be an integer from 0 to 2147483647, not '{value[:50].decode()}"
    )
    answer = await api.send(PATH, b'{"queue":"q","options":{"colour":%b}}' % value)
    assert answer.json()["options"] == DEFAULTS


async def test_an_empty_body_is_an_empty_object(api: Api) -> None:
    answer = await api.send(PATH, b"")
    assert (answer.status_code, answer.json()["error"]) == (400, "queue is required")


async def test_a_queue_that_was_deleted_elsewhere_is_made_again(api: Api, database: str) -> None:
    before = await api.configure("orders", leaseTime=5)
    await api.push("orders", "before")
    elsewhere = await Store.open(database)
    await elsewhere.delete_queue("orders")
    await elsewhere.close()
    after = await api.configure("orders")
    assert after["options"] == DEFAULTS
    assert {before["queueId"], before["partitionId"]}.isdisjoint({after["queueId"], after["partitionId"]})
    (result,) = await api.push("orders", "after")
    assert result["partition_id"] == after["partitionId"]
    assert data(await api.take("orders", batch=5)) == ["after"]


async def test_a_changed_option_counts_from_the_next_request(api: Api) -> None:
    await api.push("orders", 1, 2, 3)
    await api.configure("orders", maxSize=3)
    answer = await api.post("/api/v1/push", {"items": [{"queue": "orders", "payload": 4}]})
    assert answer.status_code == 429
    await api.configure("orders", maxSize=4)
    await api.push("orders", 4)
