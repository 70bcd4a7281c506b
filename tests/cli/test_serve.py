"""`queen serve` brings its embedded database up, keeps it up, and stops it in good order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from queenmq.cli.exits import Exit
from tests.cli.conftest import DEADLINE, Queen, StartQueen

PUSH = "INSERT INTO queen.messages (queue, partition, payload) VALUES ('orders', 'ann', '{\"total\": 12}')"
READ = "SELECT queue, partition, seq, payload FROM queen.messages ORDER BY seq"


def wait_until_said(process: subprocess.Popen[str], words: str) -> str:
    """Read the process's answers up to the line with these words, and return that text."""
    assert process.stdout is not None
    alarm = threading.Timer(DEADLINE, process.kill)
    alarm.start()
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            break
    alarm.cancel()
    assert said, process.stderr.read() if process.stderr else ""
    assert words in said[-1]
    return "".join(said)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_a_shell(command: str) -> str:
    """What a command prints in a shell without any settings."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(["sh", "-c", command], env=bare, capture_output=True, text=True, timeout=DEADLINE, check=True)
    return done.stdout


def postmaster(data_dir: Path) -> int:
    (pidfile,) = data_dir.rglob("postmaster.pid")
    return int(pidfile.read_text().splitlines()[0])


def test_it_keeps_what_it_was_given_until_it_is_started_again(
    queen: Queen, start_queen: StartQueen, data_dir: Path
) -> None:
    local = {"QUEEN_DATA_DIR": str(data_dir)}
    server = start_queen("serve", "--port", "0", **local)
    said = wait_until_said(server, "  Try ")
    assert "is ready" in said
    assert str(data_dir) in said
    assert queen("db", "psql", "-c", PUSH, **local).returncode == Exit.OK
    pid = postmaster(data_dir)

    server.terminate()
    server.communicate(timeout=DEADLINE)
    assert server.returncode == Exit.OK
    assert not running(pid)

    again = start_queen("serve", "--port", "0", **local)
    wait_until_said(again, "is ready")
    assert queen("db", "psql", "-Atc", READ, **local).stdout == 'orders|ann|1|{"total": 12}\n'


def test_it_goes_on_when_nobody_reads_what_it_says(start_queen: StartQueen, data_dir: Path) -> None:
    server = start_queen("serve", "--port", "0", "--data-dir", str(data_dir))
    assert server.stdout is not None
    assert server.stderr is not None
    server.stdout.close()
    url = next(json.loads(line)["url"] for line in server.stderr if '"ready at' in line)
    with urllib.request.urlopen(f"{url}/health", timeout=DEADLINE) as answer:
        assert answer.status == 200
    server.terminate()
    _, rest = server.communicate(timeout=DEADLINE)
    assert server.returncode == Exit.OK
    assert [json.loads(line)["message"] for line in rest.splitlines()] == ["stopping", "stopping PostgreSQL", "stopped"]


def test_a_postgresql_that_dies_is_started_again(queen: Queen, start_queen: StartQueen, data_dir: Path) -> None:
    local = {"QUEEN_DATA_DIR": str(data_dir)}
    server = start_queen("serve", "--port", "0", **local)
    url = wait_until_said(server, "  URL ").split()[-1]
    assert queen("db", "psql", "-c", PUSH, **local).returncode == Exit.OK
    before = postmaster(data_dir)

    os.kill(before, signal.SIGKILL)
    assert server.stderr is not None
    assert any("starting it again" in line for line in server.stderr)
    # psql attaches once the new server is up, and waits for it until then.
    assert queen("db", "psql", "-Atc", READ, **local).stdout == 'orders|ann|1|{"total": 12}\n'
    assert postmaster(data_dir) != before
    # The workers have waited for it: the first one that is asked has its connections back.
    with urllib.request.urlopen(f"{url}/api/v1/pop/queue/orders?autoAck=true", timeout=DEADLINE) as answer:
        assert json.load(answer)["messages"][0]["data"] == {"total": 12}

    os.kill(postmaster(data_dir), signal.SIGKILL)
    assert any("starting it again" in line for line in server.stderr)
    server.terminate()
    _, rest = server.communicate(timeout=DEADLINE)
    assert server.returncode == Exit.OK, rest
    assert '"stopped"' in rest
    assert "worker" not in rest


def test_a_second_server_shares_the_database_and_takes_it_over(start_queen: StartQueen, data_dir: Path) -> None:
    local = {"QUEEN_DATA_DIR": str(data_dir)}
    first = start_queen("serve", "--port", "0", **local)
    wait_until_said(first, "is ready")
    before = postmaster(data_dir)
    second = start_queen("serve", "--port", "0", **local)
    wait_until_said(second, "is ready")
    assert postmaster(data_dir) == before

    first.terminate()
    first.communicate(timeout=DEADLINE)
    assert second.stderr is not None
    assert any("starting it again" in line for line in second.stderr)
    second.terminate()
    second.communicate(timeout=DEADLINE)
    assert (first.returncode, second.returncode) == (Exit.OK, Exit.OK)


def test_it_says_how_another_terminal_reaches_its_database(
    queen: Queen, start_queen: StartQueen, data_dir: Path, free_port: int
) -> None:
    """A command line of its own knows neither the options nor the settings of the server."""
    home = data_dir.parent / "it's home"
    server = start_queen("serve", "--port", "0", "--data-dir", str(home), QUEEN_PG_PORT=str(free_port))
    said = wait_until_said(server, "  Try ")
    assert queen("db", "psql", "-c", PUSH, QUEEN_DATA_DIR=str(home)).returncode == Exit.OK
    (psql,) = [line for line in said.splitlines() if line.startswith("  SQL ")]
    assert in_a_shell(f"{psql.removeprefix('  SQL ')} -Atc '{READ}'") == 'orders|ann|1|{"total": 12}\n'

    url = in_a_shell(said.partition("(`")[2].partition("`")[0]).strip()
    outside = start_queen("serve", "--port", "0", DATABASE_URL=url)
    said = wait_until_said(outside, "  Try ")
    password = str(urlsplit(url).password)
    assert password not in said
    (psql,) = [line for line in said.splitlines() if line.startswith("  SQL ")]
    command = psql.removeprefix("  SQL ").replace("****", password)
    assert in_a_shell(f"{command} -Atc '{READ}'") == 'orders|ann|1|{"total": 12}\n'


def test_on_tcp_it_asks_for_the_password_and_never_shows_it_unasked(
    queen: Queen, start_queen: StartQueen, data_dir: Path, free_port: int
) -> None:
    local = {"QUEEN_DATA_DIR": str(data_dir), "QUEEN_PG_PORT": str(free_port)}
    server = start_queen("serve", "--port", "0", **local)
    said = wait_until_said(server, "  Try ")
    assert f"postgresql://queen:****@127.0.0.1:{free_port}/queen" in said

    url = queen("db", "url", **local).stdout.strip()
    assert url not in said
    assert queen("db", "check", DATABASE_URL=url).stdout == "ok\n"
    look = r"\! tr '\0' ' ' < /proc/$PPID/cmdline || ps -o args= -p $PPID"
    seen = queen("db", "psql", "-c", look, DATABASE_URL=url)
    assert f"postgresql://queen@127.0.0.1:{free_port}/queen" in seen.stdout
    assert str(urlsplit(url).password) not in seen.stdout
    role = """CREATE ROLE ann SUPERUSER LOGIN PASSWORD 'p+&="w %d'"""
    assert queen("db", "psql", "-c", role, DATABASE_URL=url).returncode == Exit.OK
    as_parameter = f"postgresql://ann@127.0.0.1:{free_port}/queen?password=p+%26%3D%22w%20%25d&connect_timeout=10"
    assert queen("db", "check", DATABASE_URL=as_parameter).stdout == "ok\n"
    seen = queen("db", "psql", "-c", look, DATABASE_URL=as_parameter)
    assert f"postgresql://ann@127.0.0.1:{free_port}/queen?connect_timeout=10 " in seen.stdout
    assert "password" not in seen.stdout
    refused = queen("db", "check", DATABASE_URL=f"postgresql://queen:wrong-one@127.0.0.1:{free_port}/queen")
    assert refused.returncode == Exit.UNREACHABLE
    (sentence,) = refused.stderr.splitlines()
    assert "refuses access: password authentication failed" in sentence
    assert "wrong-one" not in sentence
    stranger = queen("serve", "--port", "0", DATABASE_URL=url.replace(str(urlsplit(url).password), "wrong-one"))
    assert stranger.returncode == Exit.UNREACHABLE
    (sentence,) = stranger.stderr.splitlines()
    assert "refuses access: password authentication failed" in sentence
    assert "wrong-one" not in sentence
    assert queen("db", "psql", "-c", "SELECT 1", DATABASE_URL=url.replace("queen:", "nobody:")).returncode == (
        Exit.UNREACHABLE
    )
