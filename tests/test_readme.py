"""The README's first minute works as written: every block of commands is run, and its output compared.

Only the port is another one: on the documented port a server of the developer may be running.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import children
from tests.children import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
READY_WITHIN = 120
DOCUMENTED = "localhost:6632"


class Serving(NamedTuple):
    process: subprocess.Popen[str]
    address: str


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="queen-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield children.environment(Path(made), QUEEN_DATA_DIR=f"{made}/data", PORT="0")


@pytest.fixture
def serving(environment: dict[str, str]) -> Iterator[Serving]:
    """The server of the first block, running until the test ends."""
    language, command = BLOCKS[0]
    assert (language, command) == ("sh", "make serve\n")
    process = subprocess.Popen(
        command.split(), cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    alarm = threading.Timer(READY_WITHIN, process.terminate)
    alarm.start()
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("  Try "):
            break
    alarm.cancel()
    assert said, "make serve said nothing"
    found = re.search(r"^  URL +http://(\S+)$", "".join(said), re.MULTILINE)
    assert found is not None, "".join(said)
    yield Serving(process, found[1])
    process.terminate()
    process.communicate(timeout=READY_WITHIN)


def test_the_first_minute(serving: Serving, environment: dict[str, str]) -> None:
    shown = ""
    assert any(DOCUMENTED in text for _, text in BLOCKS)
    for language, text in BLOCKS[1:]:
        if language == "sh":
            answer = subprocess.run(
                ["sh", "-c", text.replace(DOCUMENTED, serving.address)],
                cwd=ROOT,
                env=environment,
                text=True,
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert answer.returncode == 0, answer.stderr
            shown = answer.stdout
        else:
            assert language == "text"
            assert [line.rstrip() for line in shown.strip().splitlines()] == text.strip().splitlines()
    assert serving.process.poll() is None


def test_every_link_to_a_file_leads_to_one() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
