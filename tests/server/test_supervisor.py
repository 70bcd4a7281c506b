"""`queen serve` keeps its workers: connections are spread over them, and those that end are replaced."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from queenmq.server.filelimit import raise_file_limit
from tests.server.conftest import StartServer
from tests.server.running import Client, Server, eventually

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are seen and set on Linux only")
REQUEST = b"GET /health HTTP/1.1\r\nHost: queen\r\n\r\n"


def served_by(server: Server, within: float) -> int | None:
    """The worker that answers a fresh connection; None when nobody does in that time."""
    client = server.connect()
    client.timeout = within
    try:
        return client.worker
    except TimeoutError:
        return None
    finally:
        client.close()


def is_avoided(server: Server, worker: int, kept: list[Client]) -> bool:
    """Whether several connections in a row go elsewhere although that worker has fewer; they stay open, in `kept`."""
    clients = [server.connect() for _ in range(5)]
    kept += clients
    for client in clients:
        client.timeout = 0.2
        try:
            if client.worker == worker:
                return False
        except TimeoutError:
            return False
    return True


def one_on_each(server: Server) -> dict[int, Client]:
    clients = [server.connect(), server.connect()]
    by_worker = {client.worker: client for client in clients}
    assert set(by_worker) == {0, 1}
    return by_worker


def test_sixteen_connections_on_two_workers_are_eight_on_each(shared: Server) -> None:
    clients = [shared.connect() for _ in range(16)]
    assert Counter(client.worker for client in clients) == {0: 8, 1: 8}
    shared.disconnect()


def test_connections_go_where_there_are_fewest(shared: Server) -> None:
    clients = [shared.connect() for _ in range(12)]
    leaving = [client for client in clients if client.worker == 0]
    for client in leaving:
        client.close()

    def the_next_six_go_to_worker_0() -> bool:
        fresh = [shared.connect() for _ in range(6)]
        workers = [client.worker for client in fresh]
        for client in fresh:
            client.close()
        return workers == [0] * 6

    # The supervisor hears of closed connections a moment later.
    eventually(the_next_six_go_to_worker_0)
    shared.disconnect()


def test_a_killed_worker_is_replaced_and_the_clients_of_the_other_do_not_notice(running: Server) -> None:
    clients = one_on_each(running)
    before = running.workers
    os.kill(before[0], signal.SIGKILL)
    # Whoever connects meanwhile is served by the other one.
    assert running.connect().get("/health")[0] == 200

    eventually(lambda: running.logged("worker 0 serves again"))
    assert running.logged("worker 0 was killed by SIGKILL")
    assert clients[1].worker == 1
    assert running.workers[1] == before[1]
    assert running.workers[0] != before[0]
    with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as the kernel likes
        clients[0].get("/health")
    eventually(lambda: served_by(running, 5) == 0)


def test_when_every_worker_is_killed_clients_wait_and_are_served(running: Server) -> None:
    for pid in running.workers.values():
        os.kill(pid, signal.SIGKILL)
    assert [running.connect().get("/health")[0] for _ in range(5)] == [200] * 5


def test_a_worker_told_to_end_finishes_and_is_replaced_at_once(running: Server) -> None:
    clients = one_on_each(running)
    before = running.workers
    os.kill(before[0], signal.SIGTERM)
    eventually(lambda: running.logged("worker 0 serves again"))
    assert running.logged("worker 0 ended with code 0")
    assert not running.logged("in a row")
    assert clients[1].worker == 1


def test_workers_that_keep_dying_are_replaced_with_growing_pauses(start_server: StartServer, database: str) -> None:
    server = start_server("--workers", "1", DATABASE_URL=database).wait_ready()
    seen: set[int] = set()
    while not server.logged("worker 0 has ended 3 times in a row; next try in 1 s"):
        pid = eventually(lambda: next((pid for pid in server.workers.values() if pid not in seen), 0))
        os.kill(pid, signal.SIGKILL)
        seen.add(pid)
        eventually(lambda: sum("was killed" in entry["message"] for entry in server.log) == len(seen))
        assert len(seen) < 6, server.complaints
    assert server.logged("worker 0 has ended 2 times in a row; next try in 0.5 s")
    assert server.connect().get("/health")[0] == 200


def test_a_stuck_worker_holds_up_nobody_and_is_left_alone(running: Server) -> None:
    stuck = running.workers[0]
    os.kill(stuck, signal.SIGSTOP)
    waiting = [running.connect() for _ in range(4)]
    for client in waiting:
        client.request("GET", "/health")
    waiting_elsewhere: list[Client] = []
    eventually(lambda: is_avoided(running, 0, waiting_elsewhere))
    assert [client.worker for client in [running.connect() for _ in range(200)]] == [1] * 200
    assert running.workers[0] == stuck

    os.kill(stuck, signal.SIGCONT)
    assert Counter(client.answer()[1]["worker_id"] for client in waiting) == {0: 2, 1: 2}


def test_connections_that_a_worker_never_looked_at_go_to_another_when_it_dies(running: Server) -> None:
    stuck = running.workers[0]
    os.kill(stuck, signal.SIGSTOP)
    clients = [running.connect() for _ in range(20)]
    for client in clients:
        client.request("GET", "/health")
    eventually(lambda: served_by(running, 0.2) == 1)
    os.kill(stuck, signal.SIGKILL)
    assert [client.answer()[0] for client in clients] == [200] * 20


def answered_by(connection: socket.socket) -> bytes:
    """The number of the worker, out of the answer to REQUEST."""
    answer = b""
    while (found := re.search(rb'"worker_id":(\d+),', answer)) is None:
        part = connection.recv(4096)
        assert part, f"closed after {answer!r}"
        answer += part
    return found[1]


@contextmanager
def burst(port: int, count: int) -> Iterator[list[socket.socket]]:
    """That many connections, all asked for at the same time, each with a request."""
    assert raise_file_limit() > count + 200, "this machine lets a test open too few files"
    opened = [socket.socket() for _ in range(count)]
    try:
        for each in opened:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(("127.0.0.1", port))
        for each in opened:
            each.settimeout(30)
            each.sendall(REQUEST)
        yield opened
    finally:
        for each in opened:
            each.close()


def test_a_burst_of_connections_is_served_to_the_last_one(shared: Server) -> None:
    with burst(shared.port, 2000) as connections:
        workers = Counter(answered_by(each) for each in connections)
    assert sum(workers.values()) == 2000
    assert min(workers.values()) > 800, workers


@LINUX
def test_the_limit_of_open_files_is_raised_as_far_as_allowed(start_server: StartServer, database: str) -> None:
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 5_000)
    server = start_server(before=f"ulimit -S -n 256; ulimit -H -n {hard};", DATABASE_URL=database).wait_ready()
    for pid in [server.process.pid, *server.workers.values()]:
        (line,) = [each for each in Path(f"/proc/{pid}/limits").read_text().splitlines() if "open files" in each]
        assert line.split()[3:5] == [str(hard), str(hard)]


@LINUX
def test_without_files_to_open_connections_wait(start_server: StartServer, database: str) -> None:
    server = start_server("--workers", "1", DATABASE_URL=database).wait_ready()
    worker = server.workers[0]
    os.kill(worker, signal.SIGSTOP)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (40, 40))
    with burst(server.port, 60) as connections:
        eventually(lambda: server.logged("connections have to wait: Too many open files"))
        os.kill(worker, signal.SIGCONT)
        assert {answered_by(each) for each in connections} == {b"0"}
    assert len(server.log) == 2


def test_localhost_and_every_ipv6_and_ipv4_network_can_be_listened_on(start_server: StartServer, database: str) -> None:
    server = start_server("--host", "::", "--workers", "1", DATABASE_URL=database).wait_ready()
    assert "http://[::1]:" in server.said
    assert [server.connect(host).get("/health")[0] for host in ("::1", "127.0.0.1")] == [200, 200]
