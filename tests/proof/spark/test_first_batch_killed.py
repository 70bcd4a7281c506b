"""A stream is killed after Spark has written down its first batch and before that batch is committed.

Started again, it reads that very batch and then all others, although it would begin behind the batch by now.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from queenmq.spark.connecting import call
from tests.proof.spark.processes import killable
from tests.server.running import eventually

PATIENCE = 200
_PUSH = "insert into queen.messages (queue, partition, payload) values ('orders', 'p', '{}')"
_LAST = "select last_seq from queen.partition_lookup"


def streaming(out: Path, database: str, starting: str, *more: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.proof.spark.streaming", str(out), database, starting, *more]
    return killable(command, out / "log")


@contextmanager
def pushing(database: str) -> Iterator[None]:
    over = threading.Event()

    async def push(connection: object) -> None:
        while not over.is_set():
            await connection.execute(_PUSH)  # type: ignore[attr-defined]

    pusher = threading.Thread(target=lambda: call(database, push))
    pusher.start()
    try:
        yield
    finally:
        over.set()
        pusher.join()


@pytest.mark.timeout(3 * PATIENCE)
@pytest.mark.parametrize(
    "given", [("latest",), ("earliest", "once")], ids=["from the latest on", "what is available now"]
)
def test_the_first_batch_survives_a_kill(database: str, tmp_path: Path, given: tuple[str, ...]) -> None:
    first = tmp_path / "0.json"
    with pushing(database), streaming(tmp_path, database, *given, "hang") as process:
        eventually(lambda: first.exists() or process.poll() is not None, PATIENCE)
    batch = json.loads(first.read_text())
    assert batch, "nothing was pushed between the two looks of the stream"
    assert [path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")] == ["0"]
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    first.unlink()
    last = call(database, lambda db: db.fetchval(_LAST))
    with streaming(tmp_path, database, "latest", "once") as process:
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    assert json.loads(first.read_text()) == batch
    read = [seq for path in tmp_path.glob("*.json") for seq in json.loads(path.read_text())]
    assert sorted(read) == list(range(batch[0], last + 1))
