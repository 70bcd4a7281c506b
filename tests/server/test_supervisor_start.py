"""`queen serve` starts, waits for what may still come, and says in one sentence why it cannot start."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shlex
import signal
import socket
import subprocess

import asyncpg
import pytest

from queenmq.cli.exits import Exit
from queenmq.server import listening
from tests.server.conftest import StartServer
from tests.server.relay import Relay
from tests.server.running import Server, eventually


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sentence(server: Server, code: Exit) -> str:
    """The one with which it ended."""
    assert server.wait_end() == code, server.complaints
    (said,) = [line for line in server.complaints.splitlines() if line.startswith("queen: ")]
    assert "Traceback" not in server.complaints
    assert server.said == ""
    return said


def test_a_ready_server_says_where_it_is(shared: Server) -> None:
    assert "is ready" in shared.said
    assert f"  URL       http://127.0.0.1:{shared.port}\n" in shared.said
    assert "  Workers   2\n" in shared.said
    assert "  Database  postgresql://" in shared.said
    assert sorted(shared.workers) == [0, 1]
    assert [entry["message"] for entry in shared.log] == [f"ready at http://127.0.0.1:{shared.port}"]


def test_what_it_tells_to_try_works(shared: Server) -> None:
    (command,) = [line.partition("Try")[2].strip() for line in shared.said.splitlines() if line.startswith("  Try")]
    push, pop = (shlex.split(each) for each in command.split(" && "))
    url = f"http://127.0.0.1:{shared.port}"
    assert [word.removeprefix(url) for word in push[:3]] == ["curl", "-s", "/api/v1/push"]
    assert shared.connect().post("/api/v1/push", json.loads(push[push.index("-d") + 1]))[0] == 201
    status, body = shared.connect().get(pop[-1].removeprefix(url))
    assert (status, body["messages"][0]["data"]) == (200, {"total": 12})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_in_use_is_one_sentence(start_server: StartServer, database: str, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        server = start_server("--host", host, "--port", port, DATABASE_URL=database)
        assert f"Port {port} on {host} is in use by another program." in sentence(server, Exit.LISTEN)


@pytest.mark.parametrize(
    ("host", "reason"),
    [("no.such.host.invalid", "cannot be resolved"), ("192.0.2.1", "is not an address of this machine")],
)
def test_a_host_that_is_not_this_machine_is_one_sentence(start_server: StartServer, host: str, reason: str) -> None:
    said = sentence(start_server("--host", host, DATABASE_URL="postgresql://ann@127.0.0.1:1/shop"), Exit.LISTEN)
    assert host in said
    assert reason in said


def test_a_port_for_which_one_needs_more_rights_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(listening.ListenError, match=r"This user may not .* port 80 of 127\.0\.0\.1\."):
        listening.bind("127.0.0.1", 80)


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("--port", "70000", "--port is '70000'; it must be a whole number from 0 to 65535."),
        ("--workers", "0", "--workers is '0'; it must be a whole number from 1 to 256."),
        ("--database-url", "mysql://ann:S3CRET@h/d", "--database-url is 'mysql://ann:****@h/d'; it must be a URL like"),
    ],
)
def test_options_are_checked_like_settings(start_server: StartServer, option: str, text: str, problem: str) -> None:
    said = sentence(start_server(option, text), Exit.USAGE)
    assert problem in said
    assert "S3CRET" not in said


def test_options_win_over_the_environment(start_server: StartServer, database: str) -> None:
    server = start_server("--workers", "1", "--database-url", database, NUM_WORKERS="5", PG_HOST="nowhere.invalid")
    assert "  Workers   1\n" in server.wait_ready().said


async def test_a_database_that_comes_up_later_is_waited_for(start_server: StartServer, database: str) -> None:
    relay = Relay(database, free_port())
    server = start_server("--workers", "1", DATABASE_URL=relay.dsn)
    await asyncio.to_thread(eventually, lambda: server.logged("(attempt 2)"))
    assert server.log[0]["message"].startswith(f"waiting for PostgreSQL at {relay.dsn} (attempt 1): ")
    assert server.said == ""
    async with relay:
        await asyncio.to_thread(server.wait_ready)
        server.end()


async def test_a_database_that_goes_away_ends_no_worker_and_a_replacement_can_say_so(
    start_server: StartServer, database: str
) -> None:
    relay = Relay(database, free_port())
    async with relay:
        server = await asyncio.to_thread(start_server("--workers", "2", DATABASE_URL=relay.dsn).wait_ready)
        before = server.workers
    os.kill(before[0], signal.SIGKILL)
    await asyncio.to_thread(eventually, lambda: server.logged("worker 0 serves again"))
    for _ in range(2):  # one connection to each worker
        status, health = await asyncio.to_thread(lambda: server.connect().get("/health"))
        assert (status, health["database"]) == (503, "disconnected")
        assert await asyncio.to_thread(lambda: server.connect().get("/ready")[0]) == 503
    async with relay:
        for path in ("/ready", "/health"):
            await asyncio.to_thread(eventually, lambda path=path: server.connect().get(path)[0] == 200)
        server.end()
    assert not server.logged("worker 1 ")


def test_a_database_that_never_comes_up_is_one_sentence(start_server: StartServer) -> None:
    url = "postgresql://ann:hunter2@127.0.0.1:1/shop"
    server = start_server(DATABASE_URL=url, QUEEN_START_TIMEOUT_MS="700")
    said = sentence(server, Exit.UNREACHABLE)
    assert "PostgreSQL at postgresql://ann:****@127.0.0.1:1/shop cannot be reached" in said
    assert server.logged("(attempt 1)")
    assert "hunter2" not in server.complaints


async def test_a_database_with_no_connection_to_spare_is_waited_for(start_server: StartServer, database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("create role crowded login connection limit 0")
    try:
        server = start_server(DATABASE_URL=database.replace("queen@", "crowded@"), QUEEN_START_TIMEOUT_MS="700")
        said = await asyncio.to_thread(sentence, server, Exit.UNREACHABLE)
        assert 'cannot be reached: too many connections for role "crowded"' in said
        assert server.logged("(attempt 1)")
    finally:
        await connection.execute("drop role crowded")
        await connection.close()


def test_a_url_that_the_driver_cannot_read_is_not_waited_for(start_server: StartServer) -> None:
    server = start_server(DATABASE_URL="postgresql://ann@127.0.0.1:1/shop?sslmode=nonsense")
    assert "sslmode" in sentence(server, Exit.UNREACHABLE)
    assert server.log == []


async def test_a_schema_that_this_version_cannot_serve_is_one_sentence(
    start_server: StartServer, database: str
) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("insert into queen.schema_migrations values (9999, '9999_later', 'x', now(), 9999, 9999)")
    await connection.close()
    server = start_server(DATABASE_URL=database)
    said = await asyncio.to_thread(sentence, server, Exit.SCHEMA)
    assert "needs servers of schema version 9999 or newer since migration 9999_later" in said


def test_the_log_can_be_text(start_server: StartServer, database: str) -> None:
    server = start_server("--workers", "1", DATABASE_URL=database, QUEEN_LOG_FORMAT="text").wait_ready()
    assert re.fullmatch(r"\d\d:\d\d:\d\d supervisor: ready at http://127\.0\.0\.1:\d+\n", server.complaints)


def test_secrets_are_on_no_command_line(shared: Server) -> None:
    shown = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert "worker_process 0 " in shown
    (database,) = re.findall(r"Database +postgresql://\S+/(\S+?)\?", shared.said)
    servers = [line for line in shown.splitlines() if "queen" in line and "postgres" not in line]
    assert servers
    assert not any(database in line for line in servers)


def test_variables_that_are_no_settings_do_not_stop_the_start(start_server: StartServer, database: str) -> None:
    """One that may be misspelt is one warning, what Kubernetes sets for a Service is none."""
    strange = {"QUEEN_SRC": "/x", "QUEEN_SERVICE_HOST": "10.0.0.1", "QUEEN_PORT": "tcp://10.0.0.1:6632"}
    server = start_server(DATABASE_URL=database, QUEEN_PG_PORT="tcp://10.0.0.1:5432", **strange).wait_ready()
    warned = [entry["message"] for entry in server.log if entry["level"] == "warning"]
    assert [sentence.split()[0] for sentence in warned] == ["QUEEN_SRC"]
