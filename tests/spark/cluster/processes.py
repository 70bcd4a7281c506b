"""A standalone Spark cluster out of the installed package: a master and two workers, each a process of its own.

They get none of the test's credentials in their environment, as machines of a cluster would not: what executors know,
the driver has told them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark

from queenmq.spark.java import java_home
from tests.server.running import eventually

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120
JOB_SECONDS = 240


def environment(**more: str) -> dict[str, str]:
    """What every process of the cluster has."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    # The workers' network is this machine's loopback, whatever its host name leads to.
    return {**kept, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1", **more}


class SparkProcess:
    """One daemon of the cluster; what it says goes to a file."""

    def __init__(self, directory: Path, name: str, role: str, *arguments: str) -> None:
        self.log = directory / f"{name}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *arguments]
        with self.log.open("w") as file:
            self._process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment(SPARK_DAEMON_MEMORY="256m"),
            )

    def wait_for(self, pattern: str) -> str:
        """The first group of the first line that matches."""

        def found() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log.read_text()
            return re.search(pattern, self.log.read_text())

        match = eventually(found, START_SECONDS)
        assert match is not None
        return match[1]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class Cluster:
    """A master and two workers with one core each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._processes = [SparkProcess(directory, "master", "master.Master", *local)]
        try:
            self.master = self._processes[0].wait_for(r"Starting Spark master at (spark://\S+)")
            for name in ("worker0", "worker1"):
                room = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / name))
                self._processes.append(SparkProcess(directory, name, "worker.Worker", *local, *room, self.master))
            for worker in self._processes[1:]:
                worker.wait_for(r"(Successfully registered with master)")
        except BaseException:
            self.end()
            raise

    @property
    def said(self) -> str:
        """Everything that the daemons and the executors wrote."""
        logs = [*self.directory.glob("*.log"), *self.directory.glob("worker*/*/*/std*")]
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def end(self) -> None:
        for process in reversed(self._processes):
            process.end()


def run(command: list[str], directory: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A driver, to its end, in an empty directory."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def python(script: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(script), *arguments]


def spark_submit(master: str, *arguments: str) -> list[str]:
    return [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, *arguments]
