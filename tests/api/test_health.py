"""Liveness, readiness and the engine's counters."""

from __future__ import annotations

import asyncio
import socket

import asyncpg
import pytest

from queenmq import __version__
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.app import build
from queenmq.http.limits import Limits
from tests.api.asgi import ask
from tests.api.serving import Api
from tests.conftest import Server
from tests.engine.relay import Relay


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
    await api.broker.store.pool.execute("update queen.schema_migrations set checksum = 'other' where number = 0")
    answer = await api.http.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert "queen db migrate" in answer.json()["reasons"][0]
    assert answer.json()["reasons"][0] in answer.json()["error"]
    assert (answer.json()["code"], answer.json()["field"]) == ("not_ready", None)
    assert (await api.http.get("/health")).status_code == 200


async def test_a_database_that_is_gone_makes_a_worker_not_ready_but_alive(
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
        assert (health.status_code, health.json()["status"]) == (200, "healthy")
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
