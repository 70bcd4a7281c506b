"""Starting, stopping, and where things are put."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queenmq.embedded import EmbeddedPostgres, InvalidSettingError, processes
from tests.embedded.conftest import MakeManager
from tests.embedded.helpers import query, value


def test_data_outlives_a_stop_and_the_server_comes_back_at_the_same_place(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as first:
        query(first.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    with EmbeddedPostgres(data_dir) as second:
        assert second.dsn == first.dsn
        assert second.postmaster_pid != first.postmaster_pid
        assert value(second.dsn, "SELECT answer FROM kept") == 42


def test_a_stop_is_clean_complete_and_repeatable(made_dir: Path) -> None:
    server = EmbeddedPostgres(made_dir)
    connection = server.start()
    assert server.alive()
    server.stop()
    server.stop()
    assert not server.alive()
    assert server.wait_dead(0)
    assert processes.of_cluster(made_dir / "postgres") == []
    assert not Path(connection.host).exists()
    assert "received fast shutdown request" in server.log_path.read_text()


def test_starting_twice_gives_the_running_server(made_dir: Path, manager: MakeManager) -> None:
    server = manager(made_dir)
    assert server.start() is server.start()


def test_the_server_outlives_the_thread_that_started_it(made_dir: Path, manager: MakeManager) -> None:
    """The parent-death signal is bound to the thread that forked, which must therefore not be the caller's."""
    server = manager(made_dir)
    caller = threading.Thread(target=server.start)
    caller.start()
    caller.join()
    assert not server.wait_dead(0.5)
    assert value(server.start().dsn, "SELECT 1") == 1


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One server for the tests that only look."""
    directory = tmp_path_factory.mktemp("a place with spaces") / ("long" * 40)
    server = EmbeddedPostgres(directory, settings={"work_mem": "7MB", "autovacuum_naptime": "11s"})
    with server:
        yield server


def test_a_long_data_path_with_spaces_gets_a_short_socket_path(running: EmbeddedPostgres) -> None:
    connection = running.start()
    assert " " in str(running.data_dir)
    assert len(str(running.data_dir)) > 107
    assert len(connection.host) < 90
    assert value(connection.dsn, "SELECT current_database()") == "queen"


def test_the_cluster_and_the_socket_are_private(running: EmbeddedPostgres) -> None:
    connection = running.start()
    for private in (running.data_dir / "postgres", Path(connection.host)):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    for secret in (running.log_path, running.data_dir / "postgres" / "queen.password"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
        ("data_checksums", "on"),
        ("TimeZone", "UTC"),
        ("work_mem", "7MB"),
        ("autovacuum_naptime", "11s"),
    ],
)
def test_settings(running: EmbeddedPostgres, setting: str, expected: str) -> None:
    assert value(running.start().dsn, f"SHOW {setting}") == expected


def test_text_is_ordered_by_code_point_and_understood_as_unicode(running: EmbeddedPostgres) -> None:
    dsn = running.start().dsn
    assert value(dsn, "SELECT string_agg(x, '' ORDER BY x) FROM unnest(array['b', 'A', 'a', 'B']) x") == "ABab"
    assert value(dsn, "SELECT lower('ÄÉ')") == "äé"


def test_the_environment_of_the_server_holds_none_of_our_secrets(
    made_dir: Path, manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEEN_TEST_SECRET", "do not pass on")
    monkeypatch.setenv("PGOPTIONS", "-c nonsense=1")
    pid = manager(made_dir).start().postmaster_pid
    inherited = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"QUEEN_TEST_SECRET" not in inherited
    assert b"PGOPTIONS" not in inherited


@pytest.mark.parametrize("name", ["listen_addresses", "PORT", "unix_socket_directories"])
def test_where_the_server_listens_cannot_be_overridden(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSettingError, match=name):
        EmbeddedPostgres(tmp_path, settings={name: "1"})


def test_a_port_out_of_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="70000"):
        EmbeddedPostgres(tmp_path, port=70000)
