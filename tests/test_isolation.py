"""Tests pass beside a running server, in a background job and in a copy of the tree: they use no fixed port, inherit no
signal state, and run the code that lies beside them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import children
from tests.children import ROOT

FIXED_PORT = re.compile(
    r"""--port["'],\s*["'][1-9]"""
    r"""|\bPORT["']?\s*[=:]\s*["'][1-9]"""
    r"""|\b(?:bind|connect|listen|create_server|start_server|create_connection)\(\(?["'][^"']*["'],\s*[1-9]"""
    r"""|(?:localhost|127\.0\.0\.1|\[::1\]):[1-9]\d\d"""
)
# How many ports in a file belong to no server: they are parsed, refused, or replaced by that of a server.
READ_ONLY = {
    "tests/cli/test_clients_page.py": 1,  # the address that the page documents
    "tests/proof/test_javascript_client.py": 1,  # the address that the page documents
    "tests/server/test_environment.py": 1,  # what Kubernetes sets
    "tests/server/test_settings.py": 1,
    "tests/server/test_supervisor_start.py": 2,  # one is out of range, and one needs more rights
    "tests/spark/test_options.py": 1,
    "tests/test_isolation.py": 6,  # what this test must find
    "tests/test_readme.py": 1,  # the address that the page documents
}
# A background job that gets all three signals, and a child of it that says which of them it ignores.
JOB = """
import os, signal, subprocess, sys
from tests import children

signals = [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP]
children.isolate()
for number in signals:
    os.kill(os.getpid(), number)
print("the job goes on", flush=True)
child = f"import signal; print([signal.getsignal(each) is signal.SIG_IGN for each in {[*map(int, signals)]}])"
subprocess.run([sys.executable, "-c", child], check=True)
"""
PLANTED = "0.0.0+planted"
PROBE = f'''
from __future__ import annotations

import json
import urllib.request

from benchmarks.lab import open_lab
from tests.cli.conftest import Queen, environment, queen
from tests.proof.conftest import Serve, serve
from tests.server.conftest import StartServer, running, start_server
from tests.server.running import Server


def version(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{{port}}/health") as answer:
        return json.load(answer)["version"]


def test_servers_and_commands_run_the_copy(queen: Queen, serve: Serve, running: Server) -> None:
    assert queen("--version").stdout == "queen {PLANTED}\\n"
    assert version(serve(1).port) == "{PLANTED}"
    assert version(running.port) == "{PLANTED}"


def test_benchmarks_run_the_copy() -> None:
    with open_lab() as (lab, _), lab.server(1) as server:
        assert version(server.port) == "{PLANTED}"
'''


def outside(directory: Path) -> dict[str, str]:
    """What a developer's shell has: nothing of what the tests set for their children."""
    return {"PATH": os.environ["PATH"], "HOME": str(directory)}


@pytest.mark.parametrize(
    "line",
    [
        'start_queen("serve", "--port", "6632")',
        'queen("serve", PORT="6632")',
        'environment = {"PORT": "8080"}',
        'socket.create_server(("127.0.0.1", 6632))',
        'probe.bind(("", 6632))',
        'urlopen("http://localhost:6632/health")',
    ],
)
def test_a_fixed_port_is_found(line: str) -> None:
    assert FIXED_PORT.search(line) is not None


def test_no_test_uses_a_fixed_port() -> None:
    files = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): len(FIXED_PORT.findall(path.read_text())) for path in files}
    assert {name: count for name, count in found.items() if count} == READ_ONLY, "let the system choose a free port"


def test_children_of_a_background_job_hear_signals_and_the_job_ignores_them(tmp_path: Path) -> None:
    """As in a script: `nohup make test &`."""
    shell = 'trap "" INT QUIT HUP; exec "$0" -c "$1"'
    environment = children.environment(tmp_path, PYTHONPATH=f"{children.SOURCE}{os.pathsep}{ROOT}")
    command = ["sh", "-c", shell, sys.executable, JOB]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the job goes on\n[False, False, False]\n"


def test_a_test_that_sends_a_signal_passes_in_a_background_job(tmp_path: Path) -> None:
    test = "tests/cli/test_exits.py::test_ctrl_c_ends_a_command_without_a_traceback"
    shell = f'trap "" INT QUIT HUP; exec "$0" -m pytest -p no:cacheprovider {test}'
    command = ["sh", "-c", shell, sys.executable]
    done = subprocess.run(
        command, cwd=ROOT, env=outside(tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_changed_copy_of_the_tree_tests_itself(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for folder in ("src", "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    package = copy / "src" / "queenmq" / "__init__.py"
    package.write_text(package.read_text().replace('version("queenmq")', f'"{PLANTED}"'))
    (copy / "tests" / "test_probe.py").write_text(PROBE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_probe.py"]
    done = subprocess.run(
        command, cwd=copy, env=outside(tmp_path), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout
