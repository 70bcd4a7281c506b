"""What every answer has in common: JSON errors, CORS, methods, unknown routes."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from queenmq.http.limits import Limits
from tests.api.serving import Api, data, serving

CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, PUT, DELETE, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization",
}
REQUESTS = [
    ("POST", "/api/v1/push", b'{"items":[]}', 201),
    ("POST", "/api/v1/push", b"{}", 400),
    ("GET", "/api/v1/pop/queue/q", b"", 204),
    ("POST", "/api/v1/ack/batch", b'{"acknowledgments":[]}', 200),
    ("GET", "/health", b"", 200),
    ("GET", "/nope", b"", 404),
    ("DELETE", "/api/v1/push", b"", 405),
    ("OPTIONS", "/api/v1/push", b"", 204),
    ("OPTIONS", "/anything/at/all", b"", 204),
    ("HEAD", "/health", b"", 200),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
async def test_every_answer_has_the_cors_headers_once(
    api: Api, method: str, path: str, body: bytes, status: int
) -> None:
    answer = await api.http.request(method, path, content=body)
    assert answer.status_code == status
    for name, value in CORS.items():
        assert answer.headers.get_list(name) == [value]


async def test_a_preflight_says_how_long_it_holds(api: Api) -> None:
    answer = await api.http.options("/api/v1/push")
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-max-age"] == "86400"


@pytest.mark.parametrize(
    "path", ["/nope", "/api/v1", "/api/v1/push/", "/api/v1/lease/a/b/extend", "/health/x", "/", "//"]
)
async def test_an_unknown_route_is_404_in_json(api: Api, path: str) -> None:
    answer = await api.http.get(f"http://127.0.0.1:{api.port}{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert (body["code"], body["field"]) == ("not_found", None)
    assert path in body["error"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/v1/push", {"POST", "OPTIONS"}),
        ("POST", "/api/v1/pop/queue/q", {"GET", "OPTIONS"}),
        ("PUT", "/health", {"GET", "HEAD", "OPTIONS"}),
        ("DELETE", "/api/v1/transaction", {"POST", "OPTIONS"}),
        ("GET", "/api/v1/lease/x/extend", {"POST", "OPTIONS"}),
    ],
)
async def test_a_wrong_method_is_405_with_what_is_allowed(api: Api, method: str, path: str, allowed: set[str]) -> None:
    answer = await api.http.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    assert answer.json()["code"] == "method_not_allowed"


async def test_the_content_type_does_not_matter(api: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await api.http.post(
            "/api/v1/push", content=b'{"items":[{"queue":"q","payload":1}]}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 201


async def test_a_chunked_body_is_read_whole(api: Api) -> None:
    async def pieces() -> object:
        for piece in (b'{"items":[{"que', b'ue":"q","payl', b'oad":[1,2]}]}'):
            yield piece

    assert (await api.http.post("/api/v1/push", content=pieces())).status_code == 201  # type: ignore[arg-type]
    assert data(await api.take("q")) == [[1, 2]]


async def test_answers_are_json_and_say_so(api: Api) -> None:
    await api.push("q", 1)
    answer = await api.pop("q")
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)


async def test_a_body_beyond_the_limit_is_413(database: str) -> None:
    async with serving(database, Limits(max_body_bytes=2000)) as api:
        for path in ("/api/v1/push", "/api/v1/transaction", "/api/v1/configure"):
            answer = await api.send(path, b" " * 2001)
            assert answer.status_code == 413, path
            assert answer.json()["code"] == "body_too_large"
        assert (await api.send("/api/v1/push", b'{"items":[]}' + b" " * 1900)).status_code == 201


async def test_a_worker_that_holds_too_much_says_when_to_come_again(database: str) -> None:
    async with serving(database, max_pending_bytes=20_000) as api:
        await api.push("q", 0)
        body = {"items": [{"queue": "q", "payload": "x" * 9_000}]}
        blocker = await asyncpg.connect(database)
        try:
            async with blocker.transaction():
                await blocker.execute("lock table queen.segments")
                held = [asyncio.ensure_future(api.post("/api/v1/push", body)) for _ in range(2)]
                async with asyncio.timeout(20):
                    while api.broker.stats()["pending_bytes"] < 18_000:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                refused = await api.post("/api/v1/push", body)
            assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert [answer.status_code for answer in await asyncio.gather(*held)] == [201, 201]
            assert await api.stored() == 3
        finally:
            await blocker.close()


async def test_a_stopping_worker_turns_requests_away(api: Api) -> None:
    await api.push("q", 1)
    await api.broker.drain()
    for method, path, body in (
        ("POST", "/api/v1/push", b'{"items":[{"queue":"q"}]}'),
        ("GET", "/api/v1/pop/queue/q", b""),
        ("POST", "/api/v1/ack", b'{"transactionId":"t","partitionId":"p"}'),
        ("POST", "/api/v1/transaction", b'{"operations":[{"type":"push","items":[{"queue":"q"}]}]}'),
        ("POST", "/api/v1/lease/x/extend", b""),
    ):
        answer = await api.http.request(method, path, content=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "stopping"), path
        assert int(answer.headers["retry-after"]) >= 1
    assert (await api.http.get("/health")).status_code == 200


async def test_the_database_being_away_is_503_and_says_what_to_do(api: Api) -> None:
    await api.push("q", 1)
    await api.broker.store.pool.close()
    answer = await api.post("/api/v1/configure", {"queue": "q"})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["code"] == "database_unavailable"
    assert "again" in answer.json()["error"]
