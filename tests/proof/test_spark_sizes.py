"""Reads of the two extreme shapes: very many small partitions, and one very large one. Both are divided evenly among
tasks, and a task's memory follows its batches, not what it reads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queenmq.domain.segments import PushItem
from queenmq.storage.store import Store
from tests.amounts import SPARK_MESSAGES as MESSAGES
from tests.amounts import SPARK_PARTITIONS as PARTITIONS
from tests.conftest import Server

TASKS = 4
MEGABYTE = 1 << 20


@pytest.fixture
async def database(embedded_server: Server) -> AsyncIterator[str]:
    """Not used again by other tests: it is large."""
    name = await embedded_server.create()
    yield embedded_server.database(name)
    await embedded_server.drop(name)


async def push(url: str, items: list[PushItem], at_once: int) -> None:
    store = await Store.open(url)
    try:
        for first in range(0, len(items), at_once):
            await store.push(items[first : first + at_once])
    finally:
        await store.close()


async def read(url: str, task: int) -> dict[str, Any]:
    """What a task does, in a process of its own."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.proof.spark_reading", url, str(TASKS), str(task)]
    done = await asyncio.to_thread(subprocess.run, command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_many_small_partitions(database: str) -> None:
    items = [PushItem(queue="wide", partition=f"p{n % PARTITIONS}", payload=b'{"n":1}') for n in range(2 * PARTITIONS)]
    await push(database, items, 2000)
    tasks = [await read(database, task) for task in range(TASKS)]
    assert [task["rows"] for task in tasks] == [2 * PARTITIONS // TASKS] * TASKS
    assert max(task["grown"] for task in tasks) < 64 * MEGABYTE


async def test_one_large_partition(database: str) -> None:
    payload = b'"' + b"x" * 3000 + b'"'  # a task that kept what it reads would grow by 150 MB
    items = [PushItem(queue="deep", partition="p", payload=payload) for _ in range(MESSAGES)]
    await push(database, items, 1000)
    tasks = [await read(database, task) for task in range(TASKS)]
    assert [task["rows"] for task in tasks] == [MESSAGES // TASKS] * TASKS
    assert {task["tasks"] for task in tasks} == {TASKS}
    whole = sum(task["bytes"] for task in tasks)
    assert whole > MESSAGES * 3000
    assert max(task["largest"] for task in tasks) < 16 * MEGABYTE
    assert max(task["grown"] for task in tasks) < 64 * MEGABYTE
