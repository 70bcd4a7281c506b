"""Liveness, readiness and the engine's counters."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import asyncpg
import pytest
from starlette.types import ASGIApp

from queenmq import __version__
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.app import build
from queenmq.http.limits import Limits
from tests.api.asgi import ask
from tests.api.serving import Api
from tests.conftest import Server
from tests.engine.relay import Relay


async def health(app: ASGIApp) -> tuple[int, str, str]:
    status, body, _ = await ask(app, "GET", "/health")
    return status, body["status"], body["database"]


async def until_health(app: ASGIApp, wanted: tuple[int, str, str]) -> None:
    async with asyncio.timeout(20):
        while await health(app) != wanted:  # noqa: ASYNC110  the condition is not ours to signal
            await asyncio.sleep(0.05)


async def test_health_names_the_server_and_its_database(api: Api) -> None:
    await api.push("orders", 1)
    assert (await api.http.get("/ready")).status_code == 200
    answer = await api.http.get("/health")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "healthy",
        "database": "connected",
        "server": socket.gethostname(),
        "worker_id": 0,
        "version": __version__,
        "queen": {"worker_id": 0, "status": "active"},
    }


async def test_head_asks_the_same_without_a_body(api: Api) -> None:
    answer = await api.http.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await api.http.head("/ready")).status_code == 200


async def test_a_worker_is_ready_on_a_current_schema(api: Api) -> None:
    answer = await api.http.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})


async def test_an_old_schema_makes_a_worker_not_ready_but_alive(api: Api) -> None:
    await api.broker.store.pool.execute("update queen.schema_migrations set version = 1 where number = -1")
    answer = await api.http.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert "queen db migrate" in answer.json()["reasons"][0]
    assert answer.json()["reasons"][0] in answer.json()["error"]
    assert (answer.json()["code"], answer.json()["field"]) == ("not_ready", None)
    assert (await api.http.get("/health")).status_code == 200


async def test_a_database_that_is_gone_makes_a_worker_neither_ready_nor_healthy(
    api: Api, database: str, embedded_server: Server
) -> None:
    """Its database is taken away while it runs."""
    assert (await api.http.get("/ready")).status_code == 200
    admin = await asyncpg.connect(embedded_server.dsn)
    name = database.partition("?")[0].rsplit("/", 1)[1]
    try:
        await admin.execute(f"alter database {name} with allow_connections false")
        await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
        answer = await api.http.get("/ready")
        assert answer.status_code == 503
        assert len(answer.json()["reasons"]) == 1
        health = await api.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    finally:
        await admin.execute(f"alter database {name} with allow_connections true")
        await admin.close()


async def test_a_database_that_does_not_answer_in_time_makes_a_worker_not_ready(api: Api) -> None:
    blocker = await api.broker.store.pool.acquire()
    transaction = blocker.transaction()
    await transaction.start()
    try:
        await blocker.execute("lock table queen.schema_migrations")
        answer = await api.http.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["reasons"] == ["the database did not answer within 1 s"]
        assert (await api.http.get("/health")).status_code == 200
    finally:
        await transaction.rollback()
        await api.broker.store.pool.release(blocker)


async def test_a_connection_on_which_nothing_comes_back_is_not_waited_for(database: str) -> None:
    async with Relay(database) as relay:
        broker = await Broker.open(EngineConfig(dsn=relay.dsn, connections=2, admin_connections=1))
        app = build(broker, Limits())
        try:
            assert (await ask(app, "GET", "/ready"))[0] == 200
            relay.fall_silent()
            async with asyncio.timeout(10):
                for _ in range(2):
                    status, body, _ = await ask(app, "GET", "/ready")
                    assert (status, body["reasons"]) == (503, ["the database did not answer within 1 s"])
        finally:
            await relay.cut()
            await broker.close()


class TestHealthOfAnIdleWorker:
    """Nothing but /health is asked of it, so nothing else tells it how its database is."""

    @pytest.fixture
    async def relay(self, database: str) -> AsyncIterator[Relay]:
        async with Relay(database) as relay:
            yield relay

    @pytest.fixture
    async def app(self, relay: Relay) -> AsyncIterator[ASGIApp]:
        broker = await Broker.open(EngineConfig(dsn=relay.dsn, connections=2, admin_connections=1))
        try:
            yield build(broker, Limits())
        finally:
            await relay.cut()
            await broker.close()

    async def test_it_notices_that_the_database_is_away_and_that_it_is_back(self, app: ASGIApp, relay: Relay) -> None:
        assert await health(app) == (200, "healthy", "connected")
        await relay.down()
        await until_health(app, (503, "unhealthy", "disconnected"))
        relay.up()
        await until_health(app, (200, "healthy", "connected"))

    async def test_a_database_that_was_never_there_is_disconnected(self, app: ASGIApp, relay: Relay) -> None:
        await relay.down()
        assert await health(app) == (503, "unhealthy", "disconnected")

    async def test_a_connection_on_which_nothing_comes_back_is_replaced(self, app: ASGIApp, relay: Relay) -> None:
        assert await health(app) == (200, "healthy", "connected")
        relay.fall_silent()
        await until_health(app, (503, "unhealthy", "disconnected"))
        await until_health(app, (200, "healthy", "connected"))

    async def test_the_refusal_has_the_shape_of_an_error(self, app: ASGIApp, relay: Relay) -> None:
        await relay.down()
        _, body, _ = await ask(app, "GET", "/health")
        assert (body["code"], body["field"]) == ("database_unavailable", None)
        assert "database" in body["error"]

    async def test_many_who_ask_share_one_connection(self, app: ASGIApp, relay: Relay) -> None:
        answers = await asyncio.gather(*(health(app) for _ in range(200)))
        assert set(answers) == {(200, "healthy", "connected")}
        assert relay.accepted == 1
        await relay.down()
        await until_health(app, (503, "unhealthy", "disconnected"))
        tried = relay.accepted
        await asyncio.gather(*(health(app) for _ in range(200)))
        assert relay.accepted <= tried + 1


async def test_a_stopping_worker_is_not_ready(database: str) -> None:
    broker = await Broker.open(EngineConfig(dsn=database))
    try:
        app = build(broker, Limits(), draining=lambda: True, worker_id=7)
        status, body, _ = await ask(app, "GET", "/ready")
        assert (status, body["reasons"]) == (503, ["the server is stopping"])
        status, body, _ = await ask(app, "GET", "/health")
        assert (status, body["queen"]) == (200, {"worker_id": 7, "status": "stopping"})
    finally:
        await broker.close()


@pytest.mark.parametrize("part", ["engine", "http"])
async def test_the_counters_of_a_worker_can_be_read(api: Api, part: str) -> None:
    answer = await api.http.get("/internal/api/engine/stats")
    assert answer.status_code == 200
    assert isinstance(answer.json()[part], dict)
    assert answer.json()["workerId"] == 0
