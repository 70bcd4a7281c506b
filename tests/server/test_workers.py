"""What a worker is told, what it makes of it, and what it says."""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from pathlib import Path

import jwt
import pytest

from queenmq.engine.config import EngineConfig
from queenmq.http.limits import Limits
from queenmq.server import logs
from queenmq.server.control import Leaving, Load, Notice, NoticeReader, Plan, Ready, line, receive_plan, send_plan
from queenmq.server.settings import Settings
from queenmq.server.worker import engine_config, limits
from tests.server.conftest import StartServer

SECRET = "a secret of the tests, long enough for HS256"
PUSH = {"items": [{"queue": "orders", "payload": {"total": 12}}]}
DSN = "postgresql://ann:S3CRET@db/shop"


def plan(number: int = 0, **environ: str) -> Plan:
    return Plan(number, 1, DSN, Settings.from_env({"DATABASE_URL": DSN, **environ}))


def test_a_plan_arrives_as_it_was_sent(tmp_path: Path) -> None:
    settings = Settings.from_env(
        {
            "QUEEN_DATA_DIR": str(tmp_path),
            "QUEEN_PG_BIN": str(tmp_path),
            "POP_WAIT_BACKOFF_MULTIPLIER": "1.5",
            "QUEEN_PGBOUNCER": "true",
        }
    )
    sent = Plan(3, 4711, DSN, settings)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_plan(ours, sent)
        assert receive_plan(theirs) == sent
        ours.close()
        with pytest.raises(EOFError):
            receive_plan(theirs)


def test_notices_arrive_whole_however_they_are_cut() -> None:
    said: list[Notice] = [Ready(), Load(received=70, open=12), Leaving()]
    data = b"".join(line(notice) for notice in said)
    for cut in range(len(data) + 1):
        reader = NoticeReader()
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == said


@pytest.mark.parametrize(("workers", "shares"), [(1, [10]), (3, [4, 3, 3]), (20, [1] * 20)])
def test_connections_to_the_database_are_split_among_the_workers(workers: int, shares: list[int]) -> None:
    settings = {"SIDECAR_POOL_SIZE": "10", "DB_POOL_SIZE": "10", "NUM_WORKERS": str(workers)}
    made = [engine_config(plan(number, **settings)) for number in range(workers)]
    assert [each.connections for each in made] == shares
    assert [each.admin_connections for each in made] == shares


def test_the_settings_of_time_become_seconds() -> None:
    config = engine_config(plan(SIDECAR_MICRO_BATCH_WAIT_MS="7", POP_WAIT_MAX_INTERVAL_MS="1500"))
    assert (config.dsn, config.batch_wait, config.poll_max) == (DSN, 0.007, 1.5)
    made = limits(plan(QUEEN_IDLE_TIMEOUT_MS="2500", DEFAULT_TIMEOUT="100", QUEEN_TCP_KEEPALIVE_S="9"), 10_000)
    assert (made.idle_timeout, made.default_timeout, made.tcp_keepalive) == (2.5, 0.1, 9)


def test_without_settings_a_worker_works_as_its_parts_do_by_default() -> None:
    """So the defaults of the settings and those of the parts cannot drift apart."""
    alone = plan(NUM_WORKERS="2")
    assert engine_config(alone) == EngineConfig(dsn=DSN)
    assert limits(alone, 1_000_000) == Limits()


def test_a_worker_takes_no_more_connections_than_it_may_have_files() -> None:
    assert limits(plan(QUEEN_MAX_CONNECTIONS="20000", NUM_WORKERS="2"), 1_000).max_connections == 1_000 - 16 - 10 - 64
    assert limits(plan(QUEEN_MAX_CONNECTIONS="500", NUM_WORKERS="2"), 1_000).max_connections == 500


@pytest.fixture
def restored_logging() -> object:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored_logging")
class TestTheLog:
    def test_a_line_is_an_object_with_the_data_beside_the_sentence(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.configure("info", "auto", "worker 1")
        logging.getLogger("queenmq.x").info("took %d s", 3, extra=logs.fields(worker=1, where=Path("/x")))
        said = json.loads(capsys.readouterr().err)
        assert said.pop("time").endswith("Z")
        assert said == {"level": "info", "source": "worker 1", "message": "took 3 s", "worker": 1, "where": "/x"}

    def test_an_error_brings_its_traceback_in_the_same_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.configure("info", "json", "supervisor")
        try:
            raise LookupError("gone")
        except LookupError:
            logging.getLogger("asyncio").exception("a task\nhas failed")
        (one,) = capsys.readouterr().err.splitlines()
        said = json.loads(one)
        assert said["message"] == "a task\nhas failed"
        assert "LookupError: gone" in said["traceback"]

    def test_only_what_matters_enough_is_written(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.configure("warning", "text", "supervisor")
        logging.getLogger("queenmq").info("unimportant")
        logging.getLogger("queenmq").warning("important")
        assert capsys.readouterr().err.endswith("supervisor: WARNING: important\n")

    def test_what_clients_send_fills_no_log(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.configure("debug", "json", "worker 0")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.access").info("GET /")
        assert capsys.readouterr().err == ""
        logging.getLogger("uvicorn.error").error("Exception in ASGI application")
        assert json.loads(capsys.readouterr().err)["source"] == "worker 0"


def test_the_log_of_a_terminal_is_text(monkeypatch: pytest.MonkeyPatch, restored_logging: object) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    logs.configure("info", "auto", "supervisor")
    assert isinstance(logging.getLogger().handlers[0].formatter, logs.TextFormatter)


def test_what_the_settings_say_about_security_reaches_the_workers(start_server: StartServer, database: str) -> None:
    server = start_server(
        "--workers",
        "1",
        DATABASE_URL=database,
        JWT_ENABLED="true",
        JWT_SECRET=SECRET,
        QUEEN_ENCRYPTION_KEY="5e" * 32,
    ).wait_ready()
    client = server.connect()
    assert client.get("/health")[0] == 200
    assert client.post("/api/v1/push", PUSH)[0] == 401
    token = jwt.encode({"sub": "ann", "role": "admin", "exp": time.time() + 60}, SECRET, "HS256")
    client.headers["authorization"] = f"Bearer {token}"
    options = {"queue": "orders", "options": {"encryptionEnabled": True}}
    assert client.post("/api/v1/configure", options)[0] in (200, 201)
    assert client.post("/api/v1/push", PUSH)[0] == 201
    status, body = client.get("/api/v1/pop/queue/orders?autoAck=true")
    assert (status, body["messages"][0]["data"]) == (200, {"total": 12})
    assert SECRET not in server.complaints + server.said
