"""A manager in a process of its own: this file is both that process's program and its handle in the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from queenmq.embedded import EmbeddedPostgres, launch


class ManagerProcess:
    """Started and ready when made; `kill` is kill -9."""

    def __init__(
        self,
        data_dir: Path,
        *,
        tether: str = "",
        fork_child: str = "",
        python: str = sys.executable,
        user: int | None = None,
        bin_dir: str = "",
        library: str = "",
        program: str = __file__,
    ) -> None:
        options = {"data_dir": str(data_dir), "tether": tether, "fork_child": fork_child, "bin_dir": bin_dir}
        environment = dict(os.environ) | ({"PYTHONPATH": library, "HOME": "/nonexistent"} if library else {})
        self.process = subprocess.Popen(
            [python, "-W", "ignore", program, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            cwd="/",
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, "the manager process ended before its server was ready"
        answer = json.loads(said)
        self.dsn: str = answer["dsn"]
        self.postmaster: int = answer["postmaster"]
        self.child: int = answer["child"]
        self.child_attached: bool = answer["child_attached"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Let it stop its server, if it still lives."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def fork_child(server: EmbeddedPostgres) -> tuple[int, bool]:
    """A child without exec that uses the manager it inherited, then stays; its pid, and whether it came to attach."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        server.stop()
        os.write(tell, b"attached" if server.start().attached else b"owner")
        threading.Event().wait()
    os.close(tell)
    with os.fdopen(told, "rb", buffering=0) as answer:
        return child, answer.read(8) == b"attached"


def main(options: dict[str, str]) -> None:
    if options["tether"]:
        vars(launch)["TETHER"] = options["tether"]
    bin_dir = Path(options["bin_dir"]) if options["bin_dir"] else None
    server = EmbeddedPostgres(
        Path(options["data_dir"]), bin_dir=bin_dir, report=lambda said: print(said, file=sys.stderr)
    )
    connection = server.start()
    child, child_attached = fork_child(server) if options["fork_child"] else (0, False)
    answer = {
        "dsn": connection.dsn,
        "postmaster": connection.postmaster_pid,
        "child": child,
        "child_attached": child_attached,
    }
    print(json.dumps(answer), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
