"""Extending a lease, in all the ways clients do it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.api.serving import Api


async def leased(api: Api, partitions: int = 1) -> str:
    await api.configure("orders", leaseTime=10)
    for n in range(partitions):
        await api.push("orders", n, partition=f"p{n}")
    answer = await api.pop("orders", batch=99, partitions=partitions)
    return str(answer.json()["leaseId"])


async def expiry(api: Api) -> datetime:
    moment = await api.broker.store.pool.fetchval("select min(lease_expires_at) from queen.partition_consumers")
    assert isinstance(moment, datetime)
    return moment


async def test_an_extension_without_a_body_works(api: Api) -> None:
    """Python clients send none."""
    lease = await leased(api)
    answer = await api.http.post(f"/api/v1/lease/{lease}/extend")
    assert answer.status_code == 200
    assert answer.json()["success"] is True
    assert await expiry(api) > datetime.now(UTC) + timedelta(seconds=50)


async def test_the_answer_is_one_object_with_every_name_for_the_time(api: Api) -> None:
    lease = await leased(api, partitions=3)
    body = (await api.post(f"/api/v1/lease/{lease}/extend", {"seconds": 100})).json()
    expires = body["expiresAt"]
    assert body == {
        "index": 0,
        "leaseId": lease,
        "success": True,
        "renewed": 3,
        "error": None,
        "expiresAt": expires,
        "newExpiresAt": expires,
        "lease_expires_at": expires,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", expires)
    assert abs(datetime.fromisoformat(expires) - await expiry(api)) < timedelta(milliseconds=2)


async def test_an_extension_never_shortens(api: Api) -> None:
    lease = await leased(api)
    await api.post(f"/api/v1/lease/{lease}/extend", {"seconds": 1000})
    before = await expiry(api)
    body = (await api.post(f"/api/v1/lease/{lease}/extend", {"seconds": 1})).json()
    assert body["success"] is True
    assert await expiry(api) == before


@pytest.mark.parametrize("body", [{}, {"seconds": None}, {"seconds": 60}, {"seconds": 60.0}, {"other": 1}])
async def test_seconds_are_60_when_not_given(api: Api, body: object) -> None:
    lease = await leased(api)
    assert (await api.post(f"/api/v1/lease/{lease}/extend", body)).json()["success"] is True
    assert timedelta(seconds=40) < await expiry(api) - datetime.now(UTC) < timedelta(seconds=70)


@pytest.mark.parametrize("seconds", [0, -1, 86_401, 10**30, "60", True, 1.5, [], {}])
async def test_seconds_that_are_none_are_refused_and_change_nothing(api: Api, seconds: object) -> None:
    lease = await leased(api)
    before = await expiry(api)
    answer = await api.post(f"/api/v1/lease/{lease}/extend", {"seconds": seconds})
    assert answer.status_code == 400
    assert answer.json()["field"] == "seconds"
    assert answer.json()["error"].startswith("seconds must be an integer from 1 to 86400")
    assert await expiry(api) == before


@pytest.mark.parametrize("seconds", [b"1e999", b"1" + b"0" * 6000, b"NaN", b'"\\ud800"'])
async def test_seconds_that_cannot_be_read_are_named(api: Api, seconds: bytes) -> None:
    answer = await api.send("/api/v1/lease/x/extend", b'{"seconds":%b}' % seconds)
    assert (answer.status_code, answer.json()["field"]) == (400, "seconds")


@pytest.mark.parametrize(
    "lease", ["8cdd3af4-56dc-4da0-9dd9-704607b84f24", "someone-elses", "%00", "a%2Fb", "'; select 1; --"]
)
async def test_a_lease_that_is_not_known_is_told_so(api: Api, lease: str) -> None:
    answer = await api.http.post(f"/api/v1/lease/{lease}/extend", json={})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["success"], body["renewed"], body["error"]) == (False, 0, "Lease not found")
    assert body["expiresAt"] is None


async def test_a_lease_that_has_ended_is_told_so(api: Api) -> None:
    lease = await leased(api)
    await api.broker.store.pool.execute(
        "update queen.partition_consumers set lease_expires_at = now() - interval '1 s'"
    )
    body = (await api.post(f"/api/v1/lease/{lease}/extend", {})).json()
    assert (body["success"], body["error"]) == (False, "Lease expired")
