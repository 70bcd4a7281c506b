"""`queen serve` stops in good order when told to, at once when told twice, and leaves nothing behind if killed."""

from __future__ import annotations

import os
import signal

import pytest

from queenmq.cli.exits import Exit
from tests.server.conftest import StartServer
from tests.server.running import Client, Server, alive, eventually

PARK = "/api/v1/pop/queue/orders?wait=true&timeout=60000"
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
    assert server.logged("worker 1 has not finished in time; killing it"), server.complaints
    assert not server.logged("worker 0 has not finished in time")
    assert not alive(stuck)


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
