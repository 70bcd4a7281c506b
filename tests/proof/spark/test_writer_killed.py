"""A stream into a queue is killed between its pushes and Spark's note that the batch is done. Every row is stored once.

Nothing in the product helps to aim: the database shows when rows of a batch arrive, the checkpoint that it is not noted
yet, and then the processes get SIGKILL, some at the first rows of a batch and some at the last. Normally that is one
kill of the driver; with PROOF_SCALE above 1 it is ten, and ten more of executors and their Python workers, whose tasks
Spark repeats. All of it is done to a stream that writes into PostgreSQL and to one that writes to a server, and the
server is killed in the middle of its pushes, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from benchmarks.processes import tree
from tests.amounts import SCALE
from tests.proof.spark.processes import KilledServer, executor, kill
from tests.proof.spark.writing import FILES_PER_BATCH, QUEUE

PATIENCE = 180.0
KILLS = 1 if SCALE <= 1 else 10
MASTERS = ["local[2]"] if SCALE <= 1 else ["local[2]", "local-cluster[2,1,1024]"]
BATCHES = 3 * KILLS + 3
ROWS = (60, 80)  # of the files of a batch: of different size, so that Spark gives them to its tasks in one order only
PER_BATCH = sum(ROWS)
STORED = "select coalesce(sum(n), 0)::int from queen.segments"
MESSAGES = "select partition, payload::text from queen.messages where queue = $1 order by partition, seq"


class Stream:
    """The program, its processes, and what can be seen of it from outside."""

    def __init__(self, master: str, url: str, folder: Path) -> None:
        self._arguments = [master, url, str(folder / "in"), str(folder / "checkpoint")]
        self._commits = folder / "checkpoint" / "commits"
        self._log = folder / "log"
        self._sessions: list[int] = []
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.proof.spark.writing", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._sessions.append(self.process.pid)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-5000:]

    @property
    def noted(self) -> int:
        """How many batches Spark knows to be done."""
        return len([name for name in os.listdir(self._commits) if name.isdigit()]) if self._commits.exists() else 0

    def ended(self) -> bool:
        """Whether it has come to its end; it must not have failed."""
        code = self.process.poll()
        assert code in (None, 0), self.log
        return code == 0

    def leftovers(self) -> list[int]:
        """What is still there of it and of its earlier lives, also of those whose parent was killed."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if _session(pid) in self._sessions]

    def end(self) -> None:
        for pid in self.leftovers():
            kill(pid)
        self.process.wait()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    """Lines of JSON, by the name of their file, which is also the name of their partition."""
    (tmp_path / "in").mkdir()
    found = {}
    for number in range(BATCHES * FILES_PER_BATCH):
        name = f"{number:03}"
        found[name] = [json.dumps({"n": n, "file": name}) for n in range(ROWS[number % FILES_PER_BATCH])]
        path = tmp_path / "in" / name
        path.write_text("\n".join(found[name]))
        os.utime(path, (number, number))  # the order in which a stream takes files
    return found


@pytest.fixture
def server(database: str, tmp_path: Path) -> Iterator[KilledServer]:
    started = KilledServer(tmp_path, database)
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture(params=["postgresql", "http"])
def url(request: pytest.FixtureRequest, database: str) -> str:
    return database if request.param == "postgresql" else request.getfixturevalue("server").url


@pytest.fixture(params=MASTERS)
def stream(request: pytest.FixtureRequest, url: str, tmp_path: Path, files: dict[str, list[str]]) -> Iterator[Stream]:
    started = Stream(request.param, url, tmp_path)
    yield started
    started.end()


@pytest.fixture
async def look(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def until_pushing(stream: Stream, look: asyncpg.Connection, beyond: int, at_the_end: bool) -> int:
    """Until more than `beyond` messages are stored and the last ones are of a batch that is not noted; how many are."""
    async with asyncio.timeout(PATIENCE):
        while not stream.ended():
            stored = await look.fetchval(STORED)
            least = stream.noted * PER_BATCH + (PER_BATCH if at_the_end else 1)
            if stored > beyond and stored >= least:
                return int(stored)
            await asyncio.sleep(0.002)
    raise AssertionError(f"it came to its end before it was killed often enough\n{stream.log}")


def targets(stream: Stream, number: int) -> list[int]:
    """Whom to kill: an executor, or the Python workers of one, or the driver with its JVM."""
    return executor(stream.process.pid, number) or tree(stream.process.pid)


@pytest.mark.timeout(3600)
async def test_every_row_is_stored_once(stream: Stream, look: asyncpg.Connection, files: dict[str, list[str]]) -> None:
    hits = attempts = stored = 0
    while hits < KILLS:
        attempts += 1
        await until_pushing(stream, look, stored, False)  # it is at work: now its processes are known
        pids = targets(stream, attempts)
        stored = await until_pushing(stream, look, stored, attempts % 2 == 0)
        noted = stream.noted
        for pid in pids:
            kill(pid)
        hits += stream.noted == noted and stored > noted * PER_BATCH  # else it was quicker, and this one proves nothing
        if stream.process.pid in pids:
            stream.process.wait()
            stored = await look.fetchval(STORED)
            stream.start()
    await check_end(stream, look, files)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("url", ["http"], indirect=True)
@pytest.mark.parametrize("stream", ["local[2]"], indirect=True)
async def test_a_server_that_is_killed_has_stored_every_row_once(
    stream: Stream, server: KilledServer, look: asyncpg.Connection, files: dict[str, list[str]]
) -> None:
    """The tasks repeat what they do not know to be stored, and the next server finds what the last one had stored."""
    hits = stored = 0
    while hits < KILLS:
        await until_pushing(stream, look, stored, False)
        await asyncio.to_thread(server.kill)
        stored = await look.fetchval(STORED)
        hits += stored % PER_BATCH > 0  # else a batch was complete, and nobody noticed
        await asyncio.to_thread(server.start)
    await check_end(stream, look, files)


async def check_end(stream: Stream, look: asyncpg.Connection, files: dict[str, list[str]]) -> None:
    """It comes to its end, and the queue holds every row once, in the order of its file."""
    await asyncio.to_thread(stream.process.wait, PATIENCE)
    assert stream.ended()
    found: dict[str, list[str]] = {}
    for partition, payload in await look.fetch(MESSAGES, QUEUE):
        found.setdefault(partition, []).append(payload)
    assert {name: [json.loads(text)["n"] for text in texts] for name, texts in found.items()} == {
        name: list(range(len(lines))) for name, lines in files.items()
    }
    assert stream.noted == BATCHES
