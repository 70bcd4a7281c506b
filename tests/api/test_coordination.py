"""What a server shows of what it shares, and how it is told from outside that there are messages."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.serving import Api
from tests.engine.saying import until

SAME = ["/internal/api/shared-state/stats", "/internal/api/inter-instance/stats", "/api/v1/system/shared-state"]


@pytest.mark.parametrize("path", SAME)
async def test_every_tier_is_shown(api: Api, path: str) -> None:
    await api.push("orders", 1)
    await api.push("orders", 2)
    shown = (await api.http.get(path)).json()
    assert shown["enabled"] is shown["running"] is False
    assert shown["queue_config_cache"] == {"size": 1, "entries": 1, "hits": 1, "misses": 1, "hit_rate": 0.5}
    assert shown["partition_id_cache"]["size"] == 1
    assert shown["partition_id_cache"]["max_size"] == 100_000
    assert {"hits", "misses", "evictions"} < set(shown["partition_id_cache"])
    assert {"size", "hints_used", "hints_wrong", "accuracy"} < set(shown["lease_hints"])
    assert shown["local_sidecars"] == 1
    assert set(shown["group_backoff"]) == {"groups_tracked", "groups_in_flight", "groups_backed_off"}
    assert shown["maintenance_mode"] is shown["pop_maintenance_mode"] is False


class TestNotify:
    @pytest.mark.parametrize("body", [{"queue": "orders"}, {"queue": "orders", "partition": "p1"}])
    @pytest.mark.parametrize("partition", [None, "p1"])
    async def test_it_wakes_who_waits(self, api: Api, body: dict[str, str], partition: str | None) -> None:
        await api.push("orders", 0, partition="p1")
        await api.take("orders", autoAck="true")
        waiting = asyncio.ensure_future(api.pop("orders", partition, wait="true", timeout=30_000))
        await until(lambda: api.broker.pops.waiters.parked == 1)
        looks = api.broker.stats()["pop_states"]["leasing"]["entered"]
        answer = await api.post("/internal/api/notify", body)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        await until(lambda: api.broker.stats()["pop_states"]["leasing"]["entered"] > looks)
        await api.push("orders", 1, partition="p1")
        assert [message["data"] for message in (await waiting).json()["messages"]] == [1]

    async def test_other_queues_and_partitions_are_left_alone(self, api: Api) -> None:
        await api.push("orders", 0, partition="p1")
        await api.take("orders", autoAck="true")
        waiting = asyncio.ensure_future(api.pop("orders", "p1", wait="true", timeout=30_000))
        await until(lambda: api.broker.pops.waiters.parked == 1)
        for body in ({"queue": "bills"}, {"queue": "orders", "partition": "p2"}):
            await api.post("/internal/api/notify", body)
            assert api.broker.pops.waiters.parked == 1
        waiting.cancel()

    @pytest.mark.parametrize("body", [b"", b"{}", b'{"queue": ""}', b'{"queue": null}'])
    async def test_a_queue_is_required(self, api: Api, body: bytes) -> None:
        answer = await api.send("/internal/api/notify", body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("queue is required")
        assert answer.json()["field"] == "queue"

    @pytest.mark.parametrize(
        "body", [{"queue": "a\x00b"}, {"queue": "q" * 256}, {"queue": "q", "partition": "p" * 256}]
    )
    async def test_names_are_checked(self, api: Api, body: dict[str, str]) -> None:
        answer = await api.post("/internal/api/notify", body)
        assert answer.status_code == 400
        assert answer.json()["field"] == list(body)[-1]


class TestDelete:
    async def test_a_queue_goes_with_everything_that_was_remembered(self, api: Api) -> None:
        await api.push("orders", 1)
        answer = await api.http.delete("/api/v1/resources/queues/orders")
        assert (answer.status_code, answer.json()) == (200, {"deleted": True, "queue": "orders", "existed": True})
        directory = api.broker.store.directory
        assert directory.uid("orders", "Default") is None
        assert "orders" not in directory.configs.snapshot
        assert await api.take("orders") == []
        await api.push("orders", 2)
        assert [message["data"] for message in await api.take("orders")] == [2]

    async def test_one_that_does_not_exist_is_deleted_all_the_same(self, api: Api) -> None:
        answer = await api.http.delete("/api/v1/resources/queues/no%2Fne")
        assert answer.json() == {"deleted": True, "queue": "no/ne", "existed": False}

    async def test_a_name_that_no_queue_can_have_is_refused(self, api: Api) -> None:
        answer = await api.http.delete("/api/v1/resources/queues/" + "q" * 256)
        assert answer.status_code == 400
        assert answer.json()["field"] == "queue"


async def test_a_changed_queue_is_remembered_as_it_is_now(api: Api) -> None:
    await api.push("orders", 1)
    await api.post("/api/v1/configure", {"queue": "orders", "options": {"leaseTime": 77}})
    assert api.broker.store.directory.configs.snapshot["orders"].lease_time == 77
