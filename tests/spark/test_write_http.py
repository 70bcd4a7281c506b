"""Rows over HTTP: to a real server, and to one that first says no in all the ways a server may."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from queenmq.spark.errors import OptionError, WriteRefused
from queenmq.spark.options import WriteOptions
from queenmq.spark.pushing import Tally
from tests.server.running import Server
from tests.spark.writing import SCOPE, numbered, payloads, rows, stored, to_server, write

Reply = tuple[int, dict[str, str], bytes]
_KEPT = {"content-type", "retry-after"}


class Front:
    """A proxy before the server. `script` holds what it answers itself, one reply for each request, before it passes
    requests on: a status with headers and body, or None to hang up. `forget` hangs up after the server has answered,
    `hasty` makes it refuse requests without reading them."""

    def __init__(self, target: int) -> None:
        self.script: list[Reply | None] = []
        self.forget = 0
        self.hasty = False
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if front.hasty:
                    self.send_error(413)
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["content-length"]))
                front.bodies.append(body)
                front.headers.append({name.lower(): value for name, value in self.headers.items()})
                reply = front.script.pop(0) if front.script else front.pass_on(target, self.path, body)
                if reply is None:
                    self.close_connection = True
                    return
                self.send_response(reply[0])
                for name, value in {"content-length": str(len(reply[2])), **reply[1]}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply[2])

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def pass_on(self, port: int, path: str, body: bytes) -> Reply | None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            reply = answer.status, {n: v for n, v in answer.getheaders() if n.lower() in _KEPT}, answer.read()
        finally:
            connection.close()
        if self.forget:
            self.forget -= 1
            return None
        return reply

    def end(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUEEN_ENCRYPTION_KEY", "QUEEN_TOKEN", "QUEEN_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(database: str, tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path, "--workers", "1", DATABASE_URL=database)
    yield started.wait_ready()
    started.end()


@pytest.fixture
def front(server: Server) -> Iterator[Front]:
    opened = Front(server.port)
    yield opened
    opened.end()


@pytest.fixture
def alone() -> Iterator[Front]:
    """With no server behind it."""
    opened = Front(1)
    yield opened
    opened.end()


def failure(status: int, code: str = "", error: str = "no", field: str | None = None, **headers: str) -> Reply:
    body = json.dumps({"error": error, "code": code, "field": field}).encode()
    return status, {"content-type": "application/json", **headers}, body


def test_whatever_goes_wrong_every_row_is_stored_once_and_in_order(database: str, front: Front) -> None:
    options = to_server(front.url, queue="q", batchSize="10")
    front.script = [
        failure(429, "overloaded", **{"retry-after": "0"}),
        failure(503, "stopping", **{"retry-after": "0"}),
        None,
        (502, {}, b"<html>a proxy's page</html>"),
        (201, {"content-length": "999", "connection": "close"}, b'[{"status":"queued"},{"sta'),
    ]
    front.forget = 1
    assert write(options, rows(payload=list(numbered(35)))) == Tally(25, 10), "one answer was lost"
    assert len(set(front.bodies[:7])) == 1, "a push is repeated with the same ids"
    assert payloads(database, "q") == list(numbered(35))
    assert len(front.bodies) == 5 + 1 + 4

    front.script = [failure(413, "body_too_large")]
    trace = "0190e8f0-0000-7000-8000-000000000000"
    batch = rows(
        payload=['"ü\\u00fc😀"', '{"a": [1, null]}', None, json.dumps("x" * (1 << 20))],
        partition=['ä"\\b', None, "p", "p"],
        transaction_id=['my"id', None, None, None],
        trace_id=[trace, None, None, None],
    )
    assert write(to_server(front.url, queue="other"), batch) == Tally(4)
    assert write(to_server(front.url, queue="other"), batch) == Tally(0, 4)
    found = {(message.partition, message.seq): message for message in stored(database, "other")}
    assert found['ä"\\b', 1].payload == '"üü😀"'
    assert (found['ä"\\b', 1].transaction_id, found['ä"\\b', 1].trace_id) == ('my"id', trace)
    assert found["Default", 1].payload == '{"a": [1, null]}'
    assert found["p", 1].payload == "null"
    assert len(found["p", 2].payload) == (1 << 20) + 2


def test_a_full_queue_over_http(database: str, server: Server) -> None:
    client = server.connect()
    client.post("/api/v1/configure", {"queue": "q", "options": {"maxSize": 3}})
    options = replace(to_server(f"http://127.0.0.1:{server.port}", queue="q"), max_retry_seconds=0.1)
    batch = rows(payload=list(numbered(8)), queue=["q", "free"] * 4)
    with pytest.raises(WriteRefused, match=r"given up after 0.1 s \(maxRetrySeconds\): queue q is full"):
        write(options, batch)
    assert payloads(database, "q") == ['{"n": 0}', '{"n": 2}', '{"n": 4}']
    assert len(payloads(database, "free")) == 4
    client.get("/api/v1/pop/queue/q?batch=10&autoAck=true")
    assert write(options, batch) == Tally(1, 7)


def test_only_what_was_refused_is_sent_again(alone: Front) -> None:
    alone.script = [
        (201, {}, b'[{"status":"queued"},{"status":"failed","code":"queue_full"},{"status":"duplicate"}]'),
        failure(429, "queue_full", **{"retry-after": "0"}),
        (201, {}, b'[{"status":"queued"}]'),
    ]
    assert write(to_server(alone.url, queue="q"), rows(payload=["1", "2", "3"])) == Tally(2, 1)
    sent = [[item["payload"] for item in json.loads(body)["items"]] for body in alone.bodies]
    assert sent == [[1, 2, 3], [2], [2]]


def test_a_queue_whose_server_has_no_key_refuses_at_once(server: Server) -> None:
    server.connect().post("/api/v1/configure", {"queue": "q", "options": {"encryptionEnabled": True}})
    options = to_server(f"http://127.0.0.1:{server.port}", queue="q")
    for names in (["q"], ["q", "open"]):
        batch = rows(payload=['{"secret": 1}'] * len(names), queue=names)
        with pytest.raises(WriteRefused, match="no QUEEN_ENCRYPTION_KEY") as refused:
            write(options, batch)
        assert "secret" not in str(refused.value)
        assert "given up" not in str(refused.value)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            failure(400, "invalid_value", "items[0].queue must be a name"),
            "refuses the push (400): items[0].queue must be",
        ),
        (failure(401, "unauthorized", "A token is needed"), "refuses the push (401): A token is needed"),
        (failure(413, "body_too_large", "too large"), "refuses the push (413): too large"),
        ((404, {}, b"<html>nothing here</html>"), "refuses the push (404): no reason given"),
        ((200, {}, b"<html>hello</html>"), "does not answer a push as a queenmq server does; check option url"),
        ((201, {}, b"[]"), "answers for 0 of 1 messages"),
        ((201, {}, b'[{"status":"failed","error":"because"}]'), "says failed of it: because"),
        ((201, {}, b'[{"status":"odd"}]'), "says odd of it: no reason"),
    ],
)
def test_what_cannot_be_repeated_is_told(alone: Front, reply: Reply, expected: str) -> None:
    alone.script = [reply]
    with pytest.raises(WriteRefused) as refused:
        write(to_server(alone.url, queue="q"), rows(payload=['{"secret": 1}']))
    assert expected in refused.value.message
    assert "secret" not in refused.value.message
    assert len(alone.bodies) == 1


def test_accepted_is_as_good_as_stored(alone: Front) -> None:
    alone.script = [(202, {}, b'[{"status":"buffered"},{"status":"queued"},{"status":"duplicate"}]')]
    assert write(to_server(alone.url, queue="q"), rows(payload=["1", "2", "3"])) == Tally(2, 1)


def test_the_server_says_how_long_to_wait(alone: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("queenmq.spark.pushing.sleep", pauses.append)
    fine: Reply = (201, {}, b'[{"status":"queued"}]')
    alone.script = [failure(429, **{"retry-after": "7"}), failure(503), failure(503), failure(429), fine]
    assert write(to_server(alone.url, queue="q"), rows(payload=["1"])) == Tally(1)
    assert pauses[0] == 7.0
    assert 0 < pauses[1] < pauses[3] < 1, "without a word from the server, pauses grow"
    pauses.clear()
    alone.script = [*[failure(429, **{"retry-after": "0"})] * 4, fine]
    assert write(to_server(alone.url, queue="q"), rows(payload=["1"])) == Tally(1)
    assert 0 < pauses[0] < pauses[2], "nor is a server besieged that says: at once"


def test_a_row_that_only_the_server_refuses_is_named(database: str, tmp_path: Path) -> None:
    limits = {"QUEEN_MAX_BODY_BYTES": "20000", "QUEEN_MAX_PUSH_ITEMS": "50", "QUEEN_MAX_NAME_LENGTH": "40"}
    server = Server(tmp_path, "--workers", "1", DATABASE_URL=database, **limits)
    try:
        url = f"http://127.0.0.1:{server.wait_ready().port}"
        refused = partial(refusal, to_server(url, queue="q", batchSize="10"))
        names = ["p"] * 37 + ["p" * 41]
        long = [*numbered(30), json.dumps("x" * 20000), "31"]
        assert re.match(
            r"row 37 of task 4: \S+ refuses the push \(400\): partition must be a text of 1 to 40",
            refused(rows(payload=list(numbered(38)), partition=names)),
        )
        assert refused(rows(payload=long)).startswith("row 30 of task 4: 127.0.0.1")
        found = [message.payload for message in stored(database, "q") if message.partition == "Default"]
        assert found == list(numbered(30)), "what came before it stays"
        too_many = refusal(to_server(url, queue="q"), rows(payload=["1"] * 51))
        assert too_many.endswith("items must be at most 50, not 51; option batchSize can be smaller")
    finally:
        server.end()


def refusal(options: WriteOptions, batch: pa.RecordBatch) -> str:
    with pytest.raises(WriteRefused) as refused:
        write(options, batch, scope=replace(SCOPE, task=4))
    return refused.value.message


def test_the_row_is_right_after_a_push_was_divided(alone: Front) -> None:
    """Because it was too large, and because a queue had no room for some of it."""
    some_full = b'[{"status":"queued"},{"status":"failed","code":"queue_full"},{"status":"failed","code":"queue_full"}]'
    alone.script = [
        (201, {}, b'[{"status":"queued"},{"status":"queued"},{"status":"queued"}]'),
        failure(413),
        (201, {}, b'[{"status":"queued"}]'),
        failure(413),
        (201, {}, b'[{"status":"queued"}]'),
        failure(400, "invalid_value", "items[0].queue must be another", field="items[0].queue"),
    ]
    options = to_server(alone.url, queue="q", batchSize="3")
    said = refusal(options, rows(payload=list(numbered(6))))
    assert re.fullmatch(r"row 5 of task 4: \S+ refuses the push \(400\): queue must be another", said)
    alone.script = [(201, {}, some_full), (201, {}, b'[{"status":"queued"}]'), (201, {}, b'[{"status":"odd"}]')]
    assert refusal(options, rows(payload=list(numbered(3)))).startswith("row 2 of task 4: ")


def test_a_refusal_is_heard_although_the_request_was_not_read(alone: Front) -> None:
    alone.hasty = True
    options = replace(to_server(alone.url, queue="q"), max_retry_seconds=0.5)
    assert "refuses the push (413)" in refusal(options, rows(payload=[json.dumps("x" * (16 << 20))]))


def test_a_token_is_not_shown_that_no_header_can_hold(alone: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEEN_TOKEN", "hunter2\n")
    alone.script = [(201, {}, b'[{"status":"queued"}]')]
    assert write(to_server(alone.url, queue="q"), rows(payload=["1"])) == Tally(1)
    assert alone.headers[0]["authorization"] == "Bearer hunter2", "a file with a token ends with an end of line"
    for token in ("hunter2\nhunter2", "hunter2 hunter2", "hunter2ü"):
        monkeypatch.setenv("QUEEN_TOKEN", token)
        with pytest.raises(
            OptionError, match=r"option QUEEN_TOKEN \(environment\) is 'hidden'; it must be a text"
        ) as bad:
            write(to_server(alone.url, queue="q"), rows(payload=["1"]))
        assert "hunter2" not in "".join(traceback.format_exception(bad.value))


def test_the_token_comes_from_the_environment(alone: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEEN_TOKEN", "hunter2")
    alone.script = [(201, {}, b'[{"status":"queued"}]'), failure(403, "forbidden", "not allowed")]
    assert write(to_server(f"{alone.url}/base/", queue="q"), rows(payload=["1"])) == Tally(1)
    assert alone.headers[0]["authorization"] == "Bearer hunter2"
    with pytest.raises(WriteRefused, match="not allowed") as refused:
        write(to_server(alone.url, queue="q"), rows(payload=["1"]))
    assert "hunter2" not in str(refused.value)


def test_a_server_that_is_not_there_is_given_up() -> None:
    options = replace(to_server("http://127.0.0.1:1", queue="q"), max_retry_seconds=0.1)
    with pytest.raises(WriteRefused, match=r"given up after 0.1 s .* 127.0.0.1:1 does not answer \(ConnectionRefused"):
        write(options, rows(payload=["1"]))


def test_https_is_spoken_where_it_is_asked_for(alone: Front) -> None:
    """To a server that does not speak it: the attempt fails, and nothing is sent in clear."""
    options = replace(to_server(alone.url.replace("http:", "https:"), queue="q"), max_retry_seconds=0.1)
    with pytest.raises(WriteRefused, match=r"does not answer \(SSL"):
        write(options, rows(payload=["1"]))
    assert not alone.bodies
