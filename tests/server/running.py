"""A server under test: `queen serve` as a process, with its workers and everything it says."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests import children
from tests.children import QUEEN

DEADLINE = 30.0
T = TypeVar("T")


def eventually(look: Callable[[], T], within: float = DEADLINE) -> T:
    """What `look` returns, once that is something true."""
    until = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < until, f"not so within {within} s"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """A process that has ended but that nobody has waited for does not count."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


class Server:
    """Both outputs go to files, so that no full pipe ever holds the server up."""

    def __init__(self, directory: Path, *arguments: str, before: str = "", **environment: str) -> None:
        self._stdout, self._stderr = directory / "stdout", directory / "stderr"
        self._clients: list[Client] = []
        command = f'{before} exec "$0" "$@"'
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", command, str(QUEEN), "serve", "--port", "0", *arguments],
                env=children.environment(directory, **environment),
                stdout=out,
                stderr=err,
            )

    @property
    def said(self) -> str:
        return self._stdout.read_text()

    @property
    def complaints(self) -> str:
        return self._stderr.read_text()

    @property
    def log(self) -> list[dict[str, Any]]:
        """The complete lines of the log, each one an object."""
        lines = self.complaints.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n") and not line.startswith("queen:")]

    def logged(self, words: str) -> bool:
        return any(words in entry["message"] for entry in self.log)

    def wait_ready(self) -> Server:
        def ready() -> bool:
            assert self.process.poll() is None, self.complaints
            return "\n  Try " in self.said

        eventually(ready)
        return self

    def wait_end(self, within: float = DEADLINE) -> int:
        return self.process.wait(within)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def port(self) -> int:
        found = re.search(r"URL +http://\S+:(\d+)", self.said)
        assert found is not None, self.said
        return int(found[1])

    @property
    def workers(self) -> dict[int, int]:
        """The process id of each worker, by its number."""
        # -ww: whatever COLUMNS says, command lines are whole.
        command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.findall(r"^ *(\d+) +(\d+) .*worker_process (\d+) ", listed, re.MULTILINE)
        return {int(number): int(pid) for pid, parent, number in found if int(parent) == self.process.pid}

    def connect(self, host: str = "127.0.0.1") -> Client:
        self._clients.append(Client(host, self.port))
        return self._clients[-1]

    def disconnect(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def end(self) -> None:
        """Leave nothing of it behind."""
        self.disconnect()
        self.process.kill()
        self.process.wait()


class Client(http.client.HTTPConnection):
    """One keep-alive connection."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port, timeout=DEADLINE)
        self.headers: dict[str, str] = {}

    def get(self, path: str) -> tuple[int, Any]:
        self.request("GET", path, headers=self.headers)
        return self.answer()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        self.request("POST", path, json.dumps(body), {"content-type": "application/json", **self.headers})
        return self.answer()

    def answer(self) -> tuple[int, Any]:
        response = self.getresponse()
        body = response.read()
        return response.status, json.loads(body) if body else None

    @property
    def worker(self) -> int:
        """The number of the worker that serves this connection."""
        _, body = self.get("/health")
        return int(body["worker_id"])
