"""Servers as their users run them: processes of their own, on a database of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.conftest import EMBEDDED
from tests.conftest import Server as DatabaseServer
from tests.server.running import Server


class StartServer(Protocol):
    """Starts `queen serve` with arguments; keywords are environment variables, `before` is shell code."""

    def __call__(self, *arguments: str, before: str = "", **environment: str) -> Server: ...


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    started: list[Server] = []

    def start(*arguments: str, before: str = "", **environment: str) -> Server:
        directory = tmp_path / f"server{len(started)}"
        directory.mkdir()
        started.append(Server(directory, *arguments, before=before, **environment))
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="module")
def shared(servers: dict[str, DatabaseServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A ready server with two workers, for the tests of a module that leave it as it was."""
    name, schema = asyncio.run(servers[EMBEDDED].lend())
    server = Server(tmp_path_factory.mktemp("shared"), DATABASE_URL=servers[EMBEDDED].database(name)).wait_ready()
    yield server
    server.end()
    asyncio.run(servers[EMBEDDED].take_back(name, schema))


@pytest.fixture
def running(start_server: StartServer, database: str) -> Server:
    """A ready server with two workers."""
    return start_server(DATABASE_URL=database).wait_ready()
