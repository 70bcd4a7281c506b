"""Pop over a real socket: addresses, sizes, waiting, subscriptions."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from queenmq.http.limits import Limits
from tests.api.serving import Api, data, serving

QUEUE_MODE = "__QUEUE_MODE__"


async def test_the_answer_says_where_messages_come_from_and_how_to_ack_them(api: Api) -> None:
    (pushed,) = await api.push("orders", {"n": 1}, partition="eu", transactionId="tx")
    answer = await api.pop("orders", batch=5)
    assert answer.status_code == 200
    body = answer.json()
    (message,) = body["messages"]
    assert body["success"] is True
    assert body["queue"] == "orders"
    assert body["partition"] == message["partition"] == "eu"
    assert body["partitionId"] == message["partitionId"] == pushed["partition_id"]
    assert body["leaseId"] == message["leaseId"] != ""
    assert body["consumerGroup"] == message["consumerGroup"] == QUEUE_MODE
    assert body["partitionsClaimed"] == 1
    assert message["id"] == pushed["message_id"]
    assert message["transactionId"] == "tx"
    assert message["data"] == {"n": 1}
    assert message["traceId"] is None
    assert message["producerSub"] is None


async def test_created_at_is_utc_with_microseconds(api: Api) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    await api.push("orders", 1)
    (message,) = await api.take("orders")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", message["createdAt"])
    assert before < datetime.fromisoformat(message["createdAt"]) < datetime.now(UTC) + timedelta(seconds=5)


async def test_an_empty_pop_is_204_without_body_and_the_connection_goes_on(api: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        for _ in range(3):
            writer.write(b"GET /api/v1/pop/queue/nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 204 ")
            assert b"content-length: 0" in head.lower() or b"content-length" not in head.lower()
            assert b"transfer-encoding" not in head.lower()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_unknown_queues_and_partitions_are_empty_and_are_not_created(api: Api) -> None:
    assert (await api.pop("nothing")).status_code == 204
    assert (await api.pop("nothing", "nowhere")).status_code == 204
    assert await api.broker.store.pool.fetchval("select count(*) from queen.queues") == 0


@pytest.mark.parametrize(
    "name",
    ["a b", "a/b", "a%b", "a+b", "a?b=c&d", "Zoë", "蜂", "🐝", "..", ".", "a;b", "'; drop table x; --", "%2F", "~"],
)
async def test_any_name_is_reachable_by_its_path(api: Api, name: str) -> None:
    await api.push(name, "there", partition=name)
    await api.push(name, "elsewhere", partition="other")
    path = quote(name, safe="") if name not in (".", "..") else name.replace(".", "%2E")
    assert data(await api.take(path, path, batch=5, consumerGroup=name)) == ["there"]
    assert sorted(data(await api.take(path, batch=5, partitions=5))) == ["elsewhere", "there"]


async def test_a_raw_name_in_a_path_works_as_far_as_http_allows_it(api: Api) -> None:
    await api.push("a:b@c,d", 1)
    assert data(await api.take("a:b@c,d")) == [1]


async def test_raw_bytes_beyond_ascii_are_no_path(api: Api) -> None:
    """HTTP wants them percent-encoded; every client's library does that by itself."""
    for path in ("Zoë".encode(), b"\xff", b"Zo\xeb"):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(b"GET /api/v1/pop/queue/%b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        status = (await asyncio.wait_for(reader.readline(), 10)).split()[1]
        writer.close()
        await writer.wait_closed()
        assert status == b"400"


async def test_a_path_that_is_not_utf8_is_refused_by_name(api: Api) -> None:
    for path, field in (("%ff", "queue"), ("q/partition/%c3%28", "partition"), ("%ED%A0%80", "queue")):
        answer = await api.pop(path)
        assert answer.status_code == 400
        assert answer.json()["field"] == field


async def test_names_in_paths_keep_the_rules_for_names(api: Api) -> None:
    for path, field in (
        ("%00", "queue"),
        ("a%1eb", "queue"),
        ("x" * 256, "queue"),
        ("", "queue"),
        ("q/partition/%0a", "partition"),
        ("q/partition/", "partition"),
    ):
        answer = await api.pop(path)
        assert answer.status_code == 400, path
        assert answer.json()["field"] == field


async def test_other_paths_below_pop_do_not_exist(api: Api) -> None:
    for path in ("/api/v1/pop/queue", "/api/v1/pop/queue/a/b", "/api/v1/pop/queue/a/partition/b/c", "/api/v1/popx"):
        answer = await api.http.get(path)
        assert answer.status_code == 404, path
        assert answer.json()["code"] == "not_found"


async def test_the_batch_is_kept_within_bounds(database: str) -> None:
    async with serving(database, Limits(max_batch_size=3, default_batch_size=2)) as api:
        await api.push("orders", *range(100))
        for given, expected in (("", 2), ("x", 2), ("1.5", 2), ("-5", 1), ("0", 1), ("3", 3), ("99", 3), ("9" * 40, 3)):
            assert len(await api.take("orders", batch=given, autoAck="true")) == expected, given
        assert len(await api.take("orders", autoAck="true")) == 2


async def test_booleans_are_true_or_one(api: Api) -> None:
    for value, leased in (("true", False), ("TRUE", False), ("1", False), ("yes", True), ("", True), ("0", True)):
        queue = f"q-{value}"
        await api.push(queue, 1)
        (message,) = await api.take(queue, autoAck=value)
        assert bool(message["leaseId"]) is leased, value


async def test_auto_ack_moves_on_without_a_lease(api: Api) -> None:
    await api.push("orders", 1, 2)
    assert data(await api.take("orders", autoAck="true")) == [1]
    assert data(await api.take("orders", autoAck="true")) == [2]
    assert await api.take("orders") == []


async def test_parameters_are_found_by_their_whole_name(api: Api) -> None:
    """A lookup by substring would find `batch` in `xxbatch`, and `task` or `ns` inside others."""
    await api.push("orders", *range(10))
    answer = await api.http.get("/api/v1/pop/queue/orders?xxbatch=9&batch=2&batchxx=7&partitions=1&ns=3")
    assert data(answer.json()["messages"]) == [0, 1]
    assert (await api.http.get("/api/v1/pop?xxnamespace=a&partitions=1&subtask=b")).status_code == 400


async def test_query_values_are_decoded(api: Api) -> None:
    await api.push("orders", 1)
    answer = await api.http.get("/api/v1/pop/queue/orders?consumerGroup=Zo%C3%AB+%2B+%F0%9F%90%9D&b%61tch=1")
    assert answer.json()["consumerGroup"] == "Zoë + 🐝"
    bad = await api.http.get("/api/v1/pop/queue/orders?consumerGroup=%ff")
    assert (bad.status_code, bad.json()["field"]) == (400, "consumerGroup")


async def test_an_empty_group_is_queue_mode(api: Api) -> None:
    await api.push("orders", 1)
    assert (await api.pop("orders", consumerGroup="")).json()["consumerGroup"] == QUEUE_MODE


async def test_every_group_gets_every_message(api: Api) -> None:
    await api.push("orders", 1, 2)
    for group in ("a", "b", ""):
        assert data(await api.take("orders", batch=5, consumerGroup=group)) == [1, 2]


async def test_several_partitions_in_one_pop(api: Api) -> None:
    for n in range(6):
        await api.push("orders", n, partition=f"p{n}")
    answer = (await api.pop("orders", batch=100, partitions=4)).json()
    assert answer["partitionsClaimed"] == 4
    assert len({message["partition"] for message in answer["messages"]}) == 4
    assert {message["leaseId"] for message in answer["messages"]} == {answer["leaseId"]}
    (single,) = await api.take("orders", answer["messages"][0]["partition"], partitions=4, consumerGroup="g")
    assert single["partition"] == answer["messages"][0]["partition"]


async def test_a_leased_partition_is_not_given_twice(api: Api) -> None:
    await api.push("orders", 1)
    assert len(await api.take("orders")) == 1
    assert await api.take("orders") == []
    assert await api.take("orders", "Default") == []


async def test_delayed_partitions_do_not_starve_ready_ones(api: Api) -> None:
    """A pop of one partition must look past those whose messages may not be delivered yet."""
    await api.push("orders", "old", partition="ready")
    for n in range(7):
        await api.push("orders", "young", partition=f"delayed-{n}")
    await api.configure("orders", delayedProcessing=3600)
    await api.broker.store.pool.execute(
        """update queen.segments set created_at = created_at - interval '2 hours' where partition_id =
           (select partition_id from queen.partitions where name = 'ready')"""
    )
    assert data(await api.take("orders", batch=5)) == ["old"]
    assert await api.take("orders", batch=5) == []


async def test_a_waiting_pop_is_answered_by_a_push(api: Api) -> None:
    waiting = asyncio.ensure_future(api.take("orders", wait="true", timeout=30_000))
    elsewhere = asyncio.ensure_future(api.take("orders", "eu", wait="1", timeout=30_000, consumerGroup="g"))
    await until_parked(api, 2)
    await api.push("orders", 1, partition="eu")
    assert data(await asyncio.wait_for(waiting, 20)) == [1]
    assert data(await asyncio.wait_for(elsewhere, 20)) == [1]


async def test_a_waiting_pop_ends_empty_at_its_timeout(api: Api) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await api.pop("orders", wait="true", timeout=300)).status_code == 204
    assert loop.time() - began >= 0.29


async def test_a_wait_is_no_longer_than_the_server_allows(database: str) -> None:
    async with serving(database, Limits(max_timeout=0.1)) as api:
        answer = await asyncio.wait_for(api.pop("orders", wait="true", timeout=10**15), 20)
        assert answer.status_code == 204


async def test_without_wait_the_timeout_means_nothing(api: Api) -> None:
    assert (await asyncio.wait_for(api.pop("orders", timeout=3_600_000), 20)).status_code == 204


@pytest.mark.parametrize("mode", ["new", "new-only"])
async def test_a_new_group_can_start_with_the_next_message(api: Api, mode: str) -> None:
    await api.push("orders", "before")
    assert await api.take("orders", consumerGroup="g", subscriptionMode=mode) == []
    await api.push("orders", "after")
    assert data(await api.take("orders", batch=5, consumerGroup="g", subscriptionMode=mode)) == ["after"]


async def test_a_new_group_can_start_at_the_beginning(api: Api) -> None:
    await api.push("orders", "before")
    for mode in ("all", "from_beginning", ""):
        assert data(await api.take("orders", consumerGroup=f"g{mode}", subscriptionMode=mode)) == ["before"]


@pytest.mark.parametrize("mode", ["latest", "neu", "NEW", "NEWEST", " "])
async def test_a_mode_that_is_not_known_is_refused(api: Api, mode: str) -> None:
    await api.push("orders", "before")
    answer = await api.pop("orders", consumerGroup="g", subscriptionMode=mode)
    assert (answer.status_code, answer.json()["field"]) == (400, "subscriptionMode")
    allowed = "all, from_beginning, new or new-only"
    assert answer.json()["error"] == f"subscriptionMode must be {allowed}, not '{mode}'"
    assert await api.broker.store.pool.fetchval("select count(*) from queen.consumer_groups_metadata") == 0


async def test_the_servers_default_mode_counts_when_none_is_sent(database: str) -> None:
    async with serving(database, Limits(default_subscription_mode="new")) as api:
        await api.push("orders", "before")
        assert await api.take("orders", consumerGroup="g") == []
        assert data(await api.take("orders", consumerGroup="h", subscriptionMode="all")) == ["before"]


async def test_a_group_can_start_at_a_time(api: Api) -> None:
    await api.push("orders", "before")
    past, future = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    tokyo = past.astimezone(datetime.fromisoformat("2024-01-01T00:00:00+09:00").tzinfo)
    for n, text in enumerate([past.isoformat(), past.isoformat()[:19] + "Z", past.isoformat()[:19], tokyo.isoformat()]):
        assert data(await api.take("orders", consumerGroup=f"g{n}", subscriptionFrom=text)) == ["before"], text
    assert await api.take("orders", consumerGroup="future", subscriptionFrom=future.isoformat()) == []
    assert await api.take("orders", consumerGroup="now", subscriptionFrom="now") == []
    raw = f"/api/v1/pop/queue/orders?consumerGroup=plus&subscriptionFrom={tokyo.isoformat()}"  # its + is a space now
    assert data((await api.http.get(raw)).json()["messages"]) == ["before"]


@pytest.mark.parametrize("text", ["soon", "2024-13-01", "12", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
async def test_a_time_that_is_none_is_refused_by_name(api: Api, text: str) -> None:
    await api.push("orders", 1)
    answer = await api.pop("orders", consumerGroup="g", subscriptionFrom=text)
    assert answer.status_code == 400
    assert answer.json()["field"] == "subscriptionFrom"
    assert text in answer.json()["error"]


async def test_autopilot_chooses_the_sizes_that_were_left_out(api: Api) -> None:
    for n in range(30):
        await api.push("orders", *range(10), partition=f"p{n}")
    answer = (await api.pop("orders", autopilot="true")).json()
    chosen = answer["autopilot"]
    assert answer["partitionsClaimed"] <= chosen["partitions"]
    assert 1 < len(answer["messages"]) <= chosen["batch"]
    pinned = (await api.pop("orders", autopilot="true", batch=7)).json()
    assert (len(pinned["messages"]), pinned["autopilot"]["batch"]) == (7, 7)
    narrow = (await api.pop("orders", autopilot="true", partitions=1)).json()
    assert (narrow["partitionsClaimed"], narrow["autopilot"]["partitions"]) == (1, 1)
    assert (await api.pop("nothing", autopilot="true")).status_code == 204
    assert "autopilot" not in (await api.pop("orders", consumerGroup="g")).json()


async def test_conflation_is_refused_because_clients_must_not_get_a_backlog_instead(api: Api) -> None:
    await api.push("orders", 1)
    answer = await api.pop("orders", consumerGroup="g", conflation="true")
    assert answer.status_code == 400
    assert "conflation is not supported" in answer.json()["error"]
    assert len(await api.take("orders", consumerGroup="g", conflation="false")) == 1


async def test_a_request_for_frames_is_answered_with_json(api: Api) -> None:
    await api.push("orders", 1)
    assert data(await api.take("orders", frames="true")) == [1]


async def test_namespace_and_task_choose_queues(api: Api) -> None:
    await api.push("shop.mail", "a")
    await api.push("shop.bill", "b")
    await api.push("farm.mail", "c")

    async def found(group: str, **query: str) -> list[tuple[str, str]]:
        answer = await api.http.get(
            "/api/v1/pop", params={"batch": 9, "partitions": 9, "consumerGroup": group, **query}
        )
        assert answer.status_code == 200, answer.text
        return sorted((message["queue"], message["data"]) for message in answer.json()["messages"])

    assert await found("1", namespace="shop") == [("shop.bill", "b"), ("shop.mail", "a")]
    assert await found("2", task="mail") == [("farm.mail", "c"), ("shop.mail", "a")]
    assert await found("3", namespace="farm", task="mail") == [("farm.mail", "c")]
    assert (await api.http.get("/api/v1/pop?namespace=farm&task=bill")).status_code == 204


async def test_a_pop_that_names_nothing_is_refused(api: Api) -> None:
    for path in ("/api/v1/pop", "/api/v1/pop?", "/api/v1/pop/", "/api/v1/pop?namespace=&task=", "/api/v1/pop?batch=1"):
        answer = await api.http.get(path)
        assert answer.status_code == 400, path
        assert "namespace or task is required" in answer.json()["error"]


async def test_a_head_request_takes_no_message(api: Api) -> None:
    await api.push("orders", 1)
    answer = await api.http.head("/api/v1/pop/queue/orders")
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]
    assert len(await api.take("orders")) == 1


async def test_a_client_that_leaves_while_waiting_takes_no_message(api: Api) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(b"GET /api/v1/pop/queue/orders?wait=true&timeout=60000 HTTP/1.1\r\nHost: x\r\n\r\n")
    await until_parked(api, 1)
    writer.close()
    await writer.wait_closed()
    await until_parked(api, 0)
    await api.push("orders", 1)
    assert data(await asyncio.wait_for(api.take("orders", wait="true", timeout=20_000), 30)) == [1]


async def until_parked(api: Api, count: int) -> None:
    """Wait until so many pops are under way."""
    async with asyncio.timeout(20):
        while True:
            stats = (await api.http.get("/internal/api/engine/stats")).json()
            if stats["http"]["parked"] == count:
                return
            await asyncio.sleep(0.01)
