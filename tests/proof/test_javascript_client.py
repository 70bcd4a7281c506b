"""The official JavaScript client works with this server: `queen-mq` from npm, in a folder of its own for each version.

Skipped, with the reason, when there is no Node.js that is new enough, or no npm, or when the registry cannot be reached
or does not have the package; any other failure to install it is a failure. OFFICIAL_JS_CLIENT names a folder or an
archive that is installed instead. Nothing of the client is kept in the repository, and no address of a registry.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.children import ROOT
from tests.proof.conftest import Serve, Serving

VERSIONS = ["0.15.0", "1.0.6"]
GIVEN = os.environ.get("OFFICIAL_JS_CLIENT", "")
PAGE = ROOT / "docs" / "clients.md"
PROGRAM = ROOT / "tests" / "clients" / "javascript" / "official_client.mjs"
CACHE = Path(sys.prefix) / "clients" / "javascript"
"""Beside the packages of Python, so that a second run installs nothing and `make clean` removes it."""
PATIENCE = 120
STEPS = 9
WRONG = re.compile(r"code (ETARGET|EINTEGRITY|ERESOLVE|EUSAGE|EINVALIDPACKAGENAME)")
"""What npm says of a package that it has, or of how it was called. Otherwise the registry cannot be reached."""
UNKNOWN = re.compile(r"code E404")
DEAD = "select consumer_group, partition_name, error_message from queen.dead_letter_queue"


class Unavailable(Exception):
    """The client cannot be had here; the message says why."""


def install(version: str) -> Path:
    """The folder whose node_modules has the client."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Unavailable("there is no Node.js with npm on this machine")
    wanted = GIVEN or f"queen-mq@{version}"
    folder = CACHE / (hashlib.sha256(GIVEN.encode()).hexdigest()[:12] if GIVEN else version)
    installed = folder / "node_modules" / "queen-mq" / "package.json"
    if not installed.exists():
        folder.mkdir(parents=True, exist_ok=True)
        flags = ["--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
        command = [npm, "install", "--prefix", str(folder), *flags, wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"the package registry is unreachable: npm said nothing for {PATIENCE} s") from error
        if done.returncode != 0:
            raise _explained(wanted, done.stdout + done.stderr)
    package = json.loads(installed.read_text())
    assert GIVEN or package["version"] == version, package["version"]
    _require_node(package.get("engines", {}).get("node", ""))
    return folder


def _require_node(wanted: str) -> None:
    """A client for a newer Node.js than the one of this machine cannot be had here."""
    least = re.search(r">=\s*v?(\d+)", wanted)
    found = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    if least is not None and int(found.strip().lstrip("v").partition(".")[0]) < int(least[1]):
        raise Unavailable(f"the client needs Node.js {wanted}; this machine has {found.strip()}")


def _explained(wanted: str, said: str) -> Exception:
    if WRONG.search(said):
        return AssertionError(f"npm cannot install {wanted}:\n{said[-3000:]}")
    if UNKNOWN.search(said):
        return Unavailable(f"the package registry does not have {wanted}")
    return Unavailable(f"the package registry is unreachable: {said[-1000:]}")


@pytest.mark.parametrize("version", VERSIONS[:1] if GIVEN else VERSIONS)
async def test_the_javascript_client_finds_what_it_expects(version: str, serve: Serve, database: str) -> None:
    try:
        folder = await asyncio.to_thread(install, version)
    except Unavailable as error:
        print(error)
        pytest.skip(str(error))
    serving = serve(2)
    said = await run(PROGRAM.read_text(), folder, serving)
    assert said.count("done: ") == STEPS
    connection = await asyncpg.connect(database)
    (letter,) = await connection.fetch(DEAD)
    await connection.close()
    assert tuple(letter) == ("__QUEUE_MODE__", "Default", "no stock")
    (example,) = re.findall(r"^```javascript\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    await run(example.replace("http://localhost:6632", serving.url), folder, serving)


async def run(program: str, folder: Path, serving: Serving) -> str:
    """What a program says, which lies beside the client: modules are looked for there."""
    file = folder / "program.mjs"
    file.write_text(program)
    process = await asyncio.create_subprocess_exec(
        *("node", file, serving.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"{said.decode()}\n{serving.log.read_text()[-2000:]}"
    return said.decode()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("npm error code ENOTFOUND\nnpm error syscall getaddrinfo", Unavailable),
        ("npm error code UNABLE_TO_GET_ISSUER_CERT_LOCALLY", Unavailable),
        ("npm error code E404\nnpm error 404 Not Found - GET queen-mq", Unavailable),
        ("npm error code ETARGET\nnpm error notarget No matching version found", AssertionError),
        ("npm error code EINTEGRITY", AssertionError),
    ],
)
def test_only_a_client_that_cannot_be_had_is_skipped(said: str, kind: type[Exception]) -> None:
    assert type(_explained("queen-mq@1.0.6", said)) is kind


def test_a_client_for_a_newer_node_cannot_be_had() -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no Node.js on this machine")
    _require_node(">=1.0.0")
    _require_node("")
    with pytest.raises(Unavailable, match=r"needs Node\.js >=999"):
        _require_node(">=999.0.0")
