"""Every route states who may use it, and that is what counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

import pytest
from starlette.types import ASGIApp

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.app import build
from queenmq.http.auth import Unauthorized
from queenmq.http.caller import Caller
from queenmq.http.limits import Limits
from queenmq.http.routes.table import ROUTES, Row
from tests.api.asgi import ask

LEVELS = {
    ("POST", "/api/v1/push"): "RW",
    ("GET", "/api/v1/pop"): "RW",
    ("GET", "/api/v1/pop/{rest:path}"): "RW",
    ("POST", "/api/v1/ack"): "RW",
    ("POST", "/api/v1/ack/batch"): "RW",
    ("POST", "/api/v1/transaction"): "RW",
    ("POST", "/api/v1/lease/{leaseId}/extend"): "RW",
    ("POST", "/api/v1/configure"): "RW",
    ("DELETE", "/api/v1/resources/queues/{queue}"): "A",
    ("GET", "/api/v1/system/shared-state"): "A",
    ("GET", "/internal/api/shared-state/stats"): "A",
    ("GET", "/internal/api/inter-instance/stats"): "A",
    ("POST", "/internal/api/notify"): "A",
    ("GET", "/health"): "P",
    ("GET", "/ready"): "P",
    ("GET", "/api/v1/status/analytics"): "R",
    ("GET", "/api/v1/status/pipelines"): "R",
    ("GET", "/internal/api/engine/stats"): "A",
}
REACH = {"P": 0, "R": 1, "RW": 2, "A": 3}
ROLES = ["read-only", "read-write", "admin"]


def test_every_route_has_the_level_that_is_written_down_here() -> None:
    """A route that is added needs a line here too: its level is a decision, not an accident."""
    table = {(row.method, row.path): row.level for row in ROUTES}
    assert len(table) == len(ROUTES)
    assert table == LEVELS


def authenticate(authorization: bytes | None) -> Caller:
    if authorization is None:
        raise Unauthorized("Authentication required")
    return Caller("somebody", authorization.decode())


async def authenticate_slowly(authorization: bytes | None) -> Caller:
    return authenticate(authorization)


@pytest.fixture(params=[authenticate, authenticate_slowly])
async def app(request: pytest.FixtureRequest, database: str) -> AsyncIterator[ASGIApp]:
    broker = await Broker.open(EngineConfig(dsn=database))
    yield build(broker, Limits(), authenticate=request.param)
    await broker.close()


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row.path)
async def test_a_route_lets_in_exactly_its_level(app: ASGIApp, row: Row) -> None:
    path = row.path.replace("{rest:path}", "queue/q").replace("{leaseId}", "x")
    status, body, headers = await ask(app, row.method, path)
    if row.level == "P":
        assert status in (200, 503)
    else:
        assert (status, body["error"]) == (401, "Authentication required")
        assert (b"www-authenticate", b"Bearer") in headers
    for rank, role in enumerate(ROLES, 1):
        status, body, _ = await ask(app, row.method, path, headers=((b"authorization", role.encode()),))
        assert (status == 403) is (rank < REACH[row.level]), role
        assert status != 401


async def test_a_bad_token_does_not_make_a_public_route_fail(database: str) -> None:
    def refuse(authorization: bytes | None) -> Awaitable[Caller]:
        raise Unauthorized("Invalid token")

    broker = await Broker.open(EngineConfig(dsn=database))
    try:
        built = build(broker, Limits(), authenticate=refuse)
        assert (await ask(built, "GET", "/health", headers=((b"authorization", b"x"),)))[0] == 200
        assert (await ask(built, "GET", "/api/v1/pop/queue/q"))[0] == 401
    finally:
        await broker.close()


async def test_the_subject_of_the_token_is_the_producer_on_every_way_in(database: str) -> None:
    broker = await Broker.open(EngineConfig(dsn=database))
    try:
        built = build(broker, Limits(), authenticate=authenticate)
        token = ((b"authorization", b"admin"),)
        item = b'{"queue":"q","payload":1,"producerSub":"forged"}'
        assert (await ask(built, "POST", "/api/v1/push", b'{"items":[%b]}' % item, token))[0] == 201
        operation = b'{"operations":[{"type":"push","items":[%b]}]}' % item
        assert (await ask(built, "POST", "/api/v1/transaction", operation, token))[0] == 200
        _, body, _ = await ask(built, "GET", "/api/v1/pop/queue/q?batch=5", headers=token)
        assert [message["producerSub"] for message in body["messages"]] == ["somebody", "somebody"]
    finally:
        await broker.close()
