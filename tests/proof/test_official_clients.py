"""The `queen-mq` clients that are out there work with this server: several versions from PyPI, each in its own venv.

Skipped only when the registry cannot be reached; any other failure to install one is a failure.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from tests.proof.conftest import Serve

VERSIONS = ["0.12.0", "0.15.0", "1.0.0", "2.6.0"]
PROGRAM = Path(__file__).with_name("official_client.py")
PATIENCE = 120
UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError|Connection refused"
    r"|Network is unreachable|Temporary failure in name resolution|No route to host"
)
DEAD = "select consumer_group, partition_name, error_message from queen.dead_letter_queue"


class Unreachable(Exception):
    """The registry does not answer."""


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Path]]]:
    """For each version the Python that has it, as soon as it is installed."""
    directory = tmp_path_factory.mktemp("clients")
    with ThreadPoolExecutor(2) as pool:
        yield {version: pool.submit(install, version, directory / version) for version in VERSIONS}


def install(version: str, directory: Path) -> Path:
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    command = [*pip, "install", "--retries", "1", "--timeout", "15", "--only-binary", ":all:", f"queen-mq=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode != 0:
        said = done.stdout + done.stderr
        if UNREACHABLE.search(said):
            raise Unreachable(f"queen-mq {version} cannot be fetched:\n{said[-1000:]}")
        raise AssertionError(f"pip cannot install queen-mq {version}:\n{said[-3000:]}")
    return python


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_official_client_finds_what_it_expects(
    version: str, environments: dict[str, Future[Path]], serve: Serve, database: str
) -> None:
    try:
        python = await asyncio.wrap_future(environments[version])
    except Unreachable as error:
        print(error)
        pytest.skip(f"the package registry is unreachable: {error}")
    serving = serve(2)
    program = await asyncio.create_subprocess_exec(
        *(python, "-I", PROGRAM, serving.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": os.environ["PATH"]},
    )
    said, _ = await asyncio.wait_for(program.communicate(), PATIENCE)
    assert program.returncode == 0, f"{said.decode()}\n{serving.log.read_text()[-2000:]}"
    connection = await asyncpg.connect(database)
    (letter,) = await connection.fetch(DEAD)
    await connection.close()
    assert tuple(letter) == ("__QUEUE_MODE__", "Default", "no stock")
