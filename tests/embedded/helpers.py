"""Waiting on conditions, looking at processes, and a load of inserts that remembers what was acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg

from queenmq.embedded import processes

# The driver reports a shutdown that meets a statement on its way as an internal error.
CUT = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def uid_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def gone(cluster: Path) -> Callable[[], bool]:
    """Whether no process of the cluster is left."""
    return lambda: not processes.of_cluster(cluster)


async def fetch(dsn: str, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()


def query(dsn: str, sql: str) -> list[asyncpg.Record]:
    return asyncio.run(fetch(dsn, sql))


def value(dsn: str, sql: str) -> object:
    return query(dsn, sql)[0][0]


def insert_until_cut(dsn: str, strike: Callable[[], None], after: int = 300) -> set[int]:
    """Insert from four connections; `strike` once `after` rows are acknowledged; the rows acknowledged at the end."""
    return asyncio.run(_insert_until_cut(dsn, strike, after))


async def _insert_until_cut(dsn: str, strike: Callable[[], None], after: int) -> set[int]:
    await fetch(dsn, "CREATE TABLE IF NOT EXISTS load (id bigint PRIMARY KEY)")
    acknowledged: set[int] = set()
    numbers = itertools.count()
    enough = asyncio.Event()

    async def write() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            while True:
                number = next(numbers)
                await connection.execute("INSERT INTO load VALUES ($1)", number)
                acknowledged.add(number)
                if len(acknowledged) >= after:
                    enough.set()
        except CUT:
            connection.terminate()

    async with asyncio.timeout(60):
        writers = asyncio.gather(*(write() for _ in range(4)))
        await enough.wait()
        await asyncio.to_thread(strike)
        await writers
    return acknowledged


def stored(dsn: str) -> set[int]:
    return {row["id"] for row in query(dsn, "SELECT id FROM load")}
