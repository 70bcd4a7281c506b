"""The README's first minute works as written: every block of commands is run, and its output compared."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
READY_WITHIN = 120


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="queen-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield {"PATH": os.environ["PATH"], "HOME": made, "QUEEN_DATA_DIR": f"{made}/data"}


@pytest.fixture
def serving(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
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
        if "is ready" in line:
            break
    alarm.cancel()
    assert said, "make serve said nothing"
    assert "is ready" in said[-1], "".join(said)
    yield process
    process.terminate()
    process.communicate(timeout=READY_WITHIN)


def test_the_first_minute(serving: subprocess.Popen[str], environment: dict[str, str]) -> None:
    shown = ""
    for language, text in BLOCKS[1:]:
        if language == "sh":
            answer = subprocess.run(
                ["sh", "-c", text], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=60, check=False
            )
            assert answer.returncode == 0, answer.stderr
            shown = answer.stdout
        else:
            assert language == "text"
            assert [line.rstrip() for line in shown.strip().splitlines()] == text.strip().splitlines()
    assert serving.poll() is None


def test_every_link_to_a_file_leads_to_one() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
