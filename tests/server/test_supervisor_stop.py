"""`queen serve` stops in good order when told to, at once when told twice, and leaves nothing behind if killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import asyncpg
import pytest

from queenmq.cli.exits import Exit
from tests.server.conftest import StartServer
from tests.server.running import DEADLINE, Client, Server, alive, eventually

PARK = "/api/v1/pop/queue/orders?wait=true&timeout=60000"
BLOCKED = "select exists (select from pg_locks where not granted)"
PUSH = {"items": [{"queue": "orders", "payload": {"total": 12}}]}


def park(server: Server, count: int = 1) -> list[Client]:
    """Clients whose pops wait for a message. The health request before makes sure that a worker has the connection."""
    clients = [server.connect() for _ in range(count)]
    for client in clients:
        assert client.get("/health")[0] == 200
        client.request("GET", PARK)
    return clients


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_stops_in_good_order(running: Server, number: signal.Signals) -> None:
    parked = park(running, 4)
    idle = running.connect()
    assert idle.get("/health")[0] == 200
    workers = running.workers
    running.signal(number)
    assert running.wait_end(10) == Exit.OK
    assert [client.answer()[0] for client in parked] == [204] * 4
    assert not any(alive(pid) for pid in workers.values())
    assert [entry["message"] for entry in running.log][-2:] == ["stopping", "stopped"]
    with pytest.raises(ConnectionRefusedError):
        running.connect().get("/health")


def test_a_background_job_of_a_script_hears_sigint(start_server: StartServer, database: str) -> None:
    """Such a job inherits SIGINT as ignored. A server installs its own handlers, as servers do."""
    server = start_server(before="trap '' INT;", DATABASE_URL=database).wait_ready()
    server.signal(signal.SIGINT)
    assert server.wait_end(10) == Exit.OK


def test_parts_of_requests_do_not_hold_it_up(start_server: StartServer, database: str) -> None:
    server = start_server(DATABASE_URL=database, QUEEN_DRAIN_TIMEOUT_MS="3600000").wait_ready()
    head = b"POST /api/v1/push HTTP/1.1\r\nHost: queen\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    of_heads, of_bodies = [server.connect() for _ in range(3)], [server.connect() for _ in range(3)]
    for client in of_heads + of_bodies:
        assert client.get("/health")[0] == 200
    for client in of_heads:
        client.sock.sendall(head[:30])
    for client in of_bodies:
        client.sock.sendall(head)
        assert client.sock.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sock.sendall(b"{")
    server.signal(signal.SIGTERM)
    for client in of_bodies:
        assert client.sock.recv(100).startswith(b"HTTP/1.1 503 ")
    assert server.wait_end(10) == Exit.OK
    assert [entry["message"] for entry in server.log][-2:] == ["stopping", "stopped"]


def test_under_nohup_a_closed_terminal_does_not_stop_it(start_server: StartServer, database: str) -> None:
    server = start_server("--workers", "1", before="trap '' HUP;", DATABASE_URL=database).wait_ready()
    server.signal(signal.SIGHUP)
    assert server.connect().get("/health")[0] == 200
    server.signal(signal.SIGTERM)
    assert server.wait_end() == Exit.OK
    assert not server.logged("at once")


def test_a_worker_that_does_not_finish_is_killed_when_its_time_is_over(
    start_server: StartServer, database: str
) -> None:
    server = start_server(DATABASE_URL=database, QUEEN_DRAIN_TIMEOUT_MS="300").wait_ready()
    stuck = server.workers[1]
    os.kill(stuck, signal.SIGSTOP)
    server.signal(signal.SIGTERM)
    assert server.wait_end() == Exit.OK
    killed = "worker 1 has not finished in time; killing it"
    assert [entry["message"] for entry in server.log].count(killed) == 1, server.complaints
    assert not server.logged("worker 0 has not finished in time")
    assert not alive(stuck)


def test_so_is_one_whose_client_does_not_read_its_answer(start_server: StartServer, database: str) -> None:
    server = start_server("--workers", "1", DATABASE_URL=database, QUEEN_DRAIN_TIMEOUT_MS="300").wait_ready()
    client = server.connect()
    for _ in range(3):
        assert client.post("/api/v1/push", {"items": [{"queue": "big", "payload": "x" * 10_000_000}]})[0] == 201
    client.request("GET", "/api/v1/pop/queue/big?batch=10")
    assert client.sock.recv(1) == b"H"
    server.signal(signal.SIGTERM)
    assert server.wait_end() == Exit.OK
    said = [entry["message"] for entry in server.log]
    assert said.count("worker 0 has not finished in time; killing it") == 1, server.complaints


async def test_a_worker_whose_commit_hangs_is_killed_when_its_time_is_over(
    start_server: StartServer, database: str
) -> None:
    server = start_server("--workers", "1", DATABASE_URL=database, QUEEN_DRAIN_TIMEOUT_MS="300").wait_ready()
    client = server.connect()
    assert client.post("/api/v1/push", PUSH)[0] == 201
    connection = await asyncpg.connect(database)
    async with connection.transaction():
        await connection.execute("select from queen.partition_lookup for update")
        client.request("POST", "/api/v1/push", json.dumps(PUSH))
        async with asyncio.timeout(DEADLINE):
            while not await connection.fetchval(BLOCKED):  # noqa: ASYNC110  nobody signals it
                await asyncio.sleep(0.01)
        server.signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait_end) == Exit.OK
    await connection.close()
    said = [entry["message"] for entry in server.log]
    assert said.count("worker 0 has not finished in time; killing it") == 1, server.complaints


def test_a_second_signal_ends_it_at_once(start_server: StartServer, database: str) -> None:
    server = start_server(DATABASE_URL=database, QUEEN_DRAIN_TIMEOUT_MS="3600000").wait_ready()
    workers = server.workers
    for pid in workers.values():
        os.kill(pid, signal.SIGSTOP)
    server.signal(signal.SIGTERM)
    eventually(lambda: server.logged("stopping"))
    server.signal(signal.SIGTERM)
    assert server.wait_end() == Exit.OK
    assert not any(alive(pid) for pid in workers.values())


@pytest.mark.parametrize("stuck", [False, True])
def test_when_the_supervisor_is_killed_its_workers_end_too(running: Server, stuck: bool) -> None:
    parked = park(running, 2)
    workers = running.workers
    if stuck:
        for pid in workers.values():
            os.kill(pid, signal.SIGSTOP)
    running.process.kill()
    running.process.wait()
    eventually(lambda: not any(alive(pid) for pid in workers.values()))
    for client in parked:
        with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as the kernel likes
            client.answer()


def test_it_can_be_stopped_while_it_starts(start_server: StartServer) -> None:
    server = start_server(DATABASE_URL="postgresql://ann@127.0.0.1:1/shop")
    eventually(lambda: server.logged("waiting for PostgreSQL"))
    server.signal(signal.SIGTERM)
    assert server.wait_end() == Exit.OK
    assert server.said == ""
