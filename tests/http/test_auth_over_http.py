"""Tokens over a real socket: every route asks for its role, and the name in the token reaches the message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.auth import Authenticator, TokenRules
from queenmq.http.endpoint import Endpoint
from queenmq.http.limits import Limits
from queenmq.http.routes.table import ROUTES, Row
from tests.conftest import Server
from tests.http.issuer import Issuer, serving
from tests.http.tokens import SECRET, jwk, rsa, signed, token

PUSH = {"items": [{"queue": "jobs", "payload": 1, "producerSub": "mallory"}]}
RANKS = {"P": 0, "R": 1, "RW": 2, "A": 3}
ROLES = {None: 0, "read-only": 1, "read-write": 2, "admin": 3}


def credentials(role: str, **header: str) -> dict[str, str]:
    claims = {"role": role, "exp": time.time() + 600}
    made = signed(rsa(), claims, **header) if header else token(claims)
    return {"Authorization": f"Bearer {made.decode()}"}


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    with serving() as server:
        server.publish(jwk(rsa(), kid="one"))
        yield server


@pytest.fixture
async def client(embedded_server: Server, issuer: Issuer) -> AsyncIterator[httpx.AsyncClient]:
    name, schema = await embedded_server.lend()
    broker = await Broker.open(EngineConfig(dsn=embedded_server.database(name), connections=4, admin_connections=2))
    check = Authenticator(TokenRules(secret=SECRET, jwks_url=issuer.url))
    endpoint = Endpoint(broker, Limits(), authenticate=check, authenticate_slowly=check.slow)
    listener = await asyncio.get_running_loop().create_server(endpoint.protocol, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, timeout=30) as made:
        yield made
    listener.close()
    await asyncio.gather(endpoint.drain(), broker.drain())
    await broker.close()
    await check.close()
    await embedded_server.take_back(name, schema)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
async def test_every_route_asks_for_its_role(client: httpx.AsyncClient, row: Row, role: str | None) -> None:
    path = row.path.replace("{rest:path}", "queue/jobs").replace("{leaseId}", "00000000-0000-7000-8000-000000000000")
    answer = await client.request(row.method, path, headers={} if role is None else credentials(role))
    if ROLES[role] >= RANKS[row.level]:
        assert answer.status_code not in (401, 403)
    elif role is None:
        assert answer.status_code == 401
        assert answer.json() == {"error": "Authentication required", "code": "unauthorized", "field": None}
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    else:
        assert answer.status_code == 403
        assert answer.json() == {"error": "Insufficient permissions", "code": "forbidden", "field": None}


async def test_the_subject_is_stamped_on_what_is_pushed(client: httpx.AsyncClient) -> None:
    headers = credentials("read-write")
    assert (await client.post("/api/v1/push", json=PUSH, headers=headers)).status_code == 201
    operations = [{"type": "push", "items": PUSH["items"]}]
    answer = await client.post("/api/v1/transaction", json={"operations": operations}, headers=headers)
    assert answer.status_code == 200
    popped = await client.get("/api/v1/pop/queue/jobs?batch=10", headers=headers)
    assert [message["producerSub"] for message in popped.json()["messages"]] == ["alice", "alice"]


async def test_a_bad_token_is_told_why_and_changes_nothing(client: httpx.AsyncClient) -> None:
    expired = {"Authorization": f"Bearer {token({'exp': 1}).decode()}"}
    answer = await client.post("/api/v1/push", json=PUSH, headers=expired)
    assert (answer.status_code, answer.json()["error"]) == (401, "Invalid token: it has expired")
    popped = await client.get("/api/v1/pop/queue/jobs", headers=credentials("read-write"))
    assert popped.status_code == 204


@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/configure"])
async def test_several_authorization_headers_are_refused(client: httpx.AsyncClient, path: str) -> None:
    good = credentials("admin")["Authorization"]
    answer = await client.post(path, json={"queue": "jobs"} | PUSH, headers=[("Authorization", good)] * 2)
    assert answer.status_code in (400, 401)


@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/configure"])
async def test_published_keys_are_waited_for(client: httpx.AsyncClient, issuer: Issuer, path: str) -> None:
    headers = credentials("read-write", kid="one")
    answers = await asyncio.gather(
        *[client.post(path, json={"queue": "jobs"} | PUSH, headers=headers) for _ in range(5)]
    )
    assert {answer.is_success for answer in answers} == {True}
    assert issuer.asked == 1
    unknown = await client.post(path, json={"queue": "jobs"} | PUSH, headers=credentials("admin", kid="two"))
    assert (unknown.status_code, issuer.asked) == (401, 1)


async def test_without_keys_the_answer_is_to_try_again(client: httpx.AsyncClient, issuer: Issuer) -> None:
    issuer.status = 500
    answer = await client.post("/api/v1/push", json=PUSH, headers=credentials("admin", kid="one"))
    assert (answer.status_code, answer.json()["code"]) == (503, "keys_unavailable")
    assert int(answer.headers["Retry-After"]) > 0
