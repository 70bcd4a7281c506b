"""What an answer looks like, from the hot routes and from Starlette alike."""

from __future__ import annotations

import json

import pytest

from tests.http.protocol.site import Site, get, post

USUAL = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, PUT, DELETE, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization",
}
JSON = {**USUAL, "content-type": "application/json"}


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        (post("/api/v1/push", b'{"items":[]}'), 201, b'{"items":[]}'),
        (post("/api/v1/push?anything=1", b"[]"), 201, b"[]"),
        (post("/api/v1/ack", b"{}"), 200, b"{}"),
        (get("/api/v1/pop/queue/a%20b/partition/p?at-once"), 200, b'["/queue/a%20b/partition/p", "at-once"]'),
        (get("/api/v1/pop?at-once&namespace=n"), 200, b'["", "at-once&namespace=n"]'),
    ],
)
def test_hot_answers(site: Site, request_bytes: bytes, status: int, body: bytes) -> None:
    reply = site.exchange(request_bytes)
    assert (reply.status, reply.body) == (status, body)
    assert reply.headers == {**JSON, "content-length": str(len(body))}


def test_starlette_answers_have_the_same_headers(site: Site) -> None:
    reply = site.exchange(get("/echo/a%2Fb?x=1"))
    assert reply.status == 200
    assert reply.headers == {**JSON, "content-length": str(len(reply.body))}
    assert json.loads(reply.body)["query"] == "x=1"


def test_hot_paths_that_are_written_differently_reach_starlette(site: Site) -> None:
    for target in ("/api/v1/pop/else", "http://queen/api/v1/pop/queue/q", "/api/v1/p%6Fp"):
        assert json.loads(site.exchange(get(target)).body)["method"] == "GET"
    assert site.handlers.handled == 0


def test_nothing_to_deliver_is_204_without_body(site: Site) -> None:
    with site.client() as client:
        client.send(get("/api/v1/pop/queue/q"))
        site.parked(1)
        site.answer_poll(0, None)
        reply = client.reply()
        assert (reply.status, reply.headers) == (204, USUAL)
        client.send(get("/nothing"))
        reply = client.reply()
        assert (reply.status, reply.headers) == (204, USUAL)
        client.send(post("/api/v1/push", b"1"))
        assert client.reply().status == 201


def test_options_is_answered_for_every_path(site: Site) -> None:
    for target in ("/api/v1/push", "/anything", "*"):
        reply = site.exchange(get(target, method="OPTIONS"))
        assert (reply.status, reply.headers) == (204, {**USUAL, "access-control-max-age": "86400"})


def test_head_is_a_get_without_its_body(site: Site) -> None:
    with site.client() as client:
        client.send(get("/echo/x"))
        body = client.reply().body
        client.send(get("/echo/x", method="HEAD"))
        reply = client.reply(head=True)
        assert (reply.status, reply.headers["content-length"]) == (200, str(len(body) + len("HEAD") - len("GET")))
        client.send(post("/api/v1/push", b"1"))
        assert client.reply().status == 201


def test_more_headers_of_an_answer(site: Site) -> None:
    reply = site.exchange(get("/api/v1/pop/queue/q?headers"))
    assert (reply.status, reply.headers["retry-after"]) == (429, "3")


def test_large_answers(site: Site) -> None:
    with site.client() as client:
        for size in (65_535, 65_536, 3_000_000):
            client.send(get(f"/api/v1/pop/queue/q?big={size}"))
            assert client.reply().body == b"x" * size


def test_errors_of_handlers(site: Site) -> None:
    with site.client() as client:
        client.send(post("/api/v1/push", b"raise"))
        reply = client.reply()
        assert (reply.status, reply.error["field"]) == (400, "items")
        client.send(post("/api/v1/ack/batch", b"{}"))
        reply = client.reply()
        assert (reply.status, reply.error) == (
            400,
            {"error": "too late", "code": "invalid_value", "field": "status"},
        )
        assert not reply.closes


def test_a_poll_that_the_engine_gives_up_is_503(site: Site) -> None:
    with site.client() as client:
        client.send(get("/api/v1/pop/queue/q"))
        site.parked(1)
        site.call(lambda: site.handlers.polls[0].cancel())
        reply = client.reply()
        assert (reply.status, reply.error["code"]) == (503, "stopping")


@pytest.mark.parametrize("path", ["/bug", "/silence"])
def test_a_bug_in_the_application_is_a_json_500(site: Site, path: str, caplog: pytest.LogCaptureFixture) -> None:
    with site.client() as client:
        client.send(get(f"{path}?secret"))
        reply = client.reply()
        assert (reply.status, reply.error["code"]) == (500, "internal_error")
        assert reply.headers == {**JSON, "content-length": str(len(reply.body))}
        client.send(post("/api/v1/push", b"1"))
        assert client.reply().status == 201
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text
    caplog.clear()


def test_a_bug_in_the_middle_of_an_answer_ends_it(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with site.client() as client:
        client.send(get("/bug/late?secret"))
        assert client.reply(head=True).status == 200
        assert client.is_closed()
    assert "secret" not in caplog.text
    assert "a request failed" in caplog.text
    caplog.clear()


def test_counts(site: Site) -> None:
    with site.client() as client:
        client.send(post("/api/v1/push", b"1") + get("/echo/x") + post("/api/v1/push", b"raise"))
        assert [reply.status for reply in client.replies(3)] == [201, 200, 400]
        assert site.stats() == {
            "connections": 1,
            "parked": 0,
            "requests": 3,
            "answers": {"2xx": 2, "3xx": 0, "4xx": 1, "5xx": 0},
            "refused": 0,
            "timeouts": 0,
        }
