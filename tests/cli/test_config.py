"""`queen config` shows what is in effect, never a secret, and the documentation says the same."""

from __future__ import annotations

import json
from pathlib import Path

from queenmq.cli.exits import Exit
from queenmq.server.settings import table
from tests.cli.conftest import Queen

DOCS = Path(__file__).parents[2] / "docs"


def test_every_setting_is_shown_with_its_source(queen: Queen) -> None:
    answer = queen("config", DB_POOL_SIZE="7")
    assert answer.returncode == Exit.OK
    lines = {line.split()[0]: line.split() for line in answer.stdout.splitlines()}
    assert set(lines) == {"Setting", *(meta.name for _, meta in table())}
    assert lines["DB_POOL_SIZE"] == ["DB_POOL_SIZE", "7", "connections", "env"]
    assert lines["JWT_ENABLED"] == ["JWT_ENABLED", "false", "default"]
    assert lines["EVICTION_BATCH_SIZE"] == ["EVICTION_BATCH_SIZE", "100", "messages", "default"]


def test_json_is_for_programs(queen: Queen) -> None:
    answer = queen("config", "--json", DB_POOL_SIZE="7", PG_HOST="db", PG_PASSWORD="hunter2")
    entries = {entry["name"]: entry for entry in json.loads(answer.stdout)}
    assert entries["DB_POOL_SIZE"] == {"name": "DB_POOL_SIZE", "value": 7, "unit": "connections", "source": "env"}
    assert entries["PG_HOST"]["value"] == "db"
    assert entries["DATABASE_URL"]["value"] is None
    assert "hunter2" not in answer.stdout


def test_secrets_are_masked(queen: Queen) -> None:
    by_url = queen("config", DATABASE_URL="postgresql://ann:hunter2@db:5433/shop")
    assert "postgresql://ann:****@db:5433/shop" in by_url.stdout
    by_parts = queen("config", PG_HOST="db", PG_PASSWORD="hunter2")
    assert "hunter2" not in by_url.stdout + by_parts.stdout


def test_every_bad_setting_is_one_sentence_and_the_start_stops(queen: Queen) -> None:
    for command in (["config"], ["serve"], ["db", "status"]):
        answer = queen(*command, DB_POOL_SIZE="many", QUEEN_DATADIR="/x", DATABASE_URL="mysql://u:hunter2@h/d")
        assert answer.returncode == Exit.USAGE
        assert answer.stdout == ""
        lines = answer.stderr.splitlines()
        assert [line.split()[1] for line in lines] == ["warning:", "DATABASE_URL", "DB_POOL_SIZE"]
        assert all(line.startswith("queen: ") for line in lines)
        assert "hunter2" not in answer.stderr


OF_KUBERNETES = {"QUEEN_SERVICE_HOST": "10.0.0.1", "QUEEN_PORT": "tcp://10.0.0.1:6632"}
STRANGE = {"QUEEN_SRC": "/x", "DB_IDLE_TIMEOUT": "1", **OF_KUBERNETES}
UNKNOWN = "QUEEN_SRC is not a setting of this version; `queen config --markdown` lists the settings there are."
USELESS = "DB_IDLE_TIMEOUT has no effect on this server: connections to PostgreSQL stay open."


def test_a_variable_that_is_not_known_is_one_warning(queen: Queen) -> None:
    answer = queen("config", "--json", **STRANGE)
    assert answer.returncode == Exit.OK
    assert answer.stderr.splitlines() == [f"queen: warning: {UNKNOWN}", f"queen: warning: {USELESS}"]
    assert json.loads(answer.stdout)


def test_strict_fails_for_a_variable_that_is_not_known(queen: Queen) -> None:
    answer = queen("config", "--strict", **STRANGE)
    assert (answer.returncode, answer.stdout) == (Exit.USAGE, "")
    assert answer.stderr.splitlines() == [f"queen: warning: {USELESS}", f"queen: {UNKNOWN}"]


def test_strict_says_everything_that_is_wrong(queen: Queen) -> None:
    answer = queen("config", "--strict", QUEEN_SRC="/x", DB_POOL_SIZE="many")
    assert answer.returncode == Exit.USAGE
    assert [line.split()[1] for line in answer.stderr.splitlines()] == ["DB_POOL_SIZE", "QUEEN_SRC"]


def test_strict_passes_when_all_is_well(queen: Queen) -> None:
    answer = queen("config", "--strict", QUEEN_SERVICE_HOST="10.0.0.1", DB_POOL_SIZE="7")
    assert (answer.returncode, answer.stderr) == (Exit.OK, "")
    assert "DB_POOL_SIZE" in answer.stdout


def test_a_setting_that_was_given_by_another_name_is_shown_as_set(queen: Queen) -> None:
    answer = queen("config", "--json", POP_WAIT_BASE_INTERVAL_MS="77")
    (shown,) = [each for each in json.loads(answer.stdout) if each["name"] == "POP_WAIT_INITIAL_INTERVAL_MS"]
    assert (shown["value"], shown["source"]) == (77, "env")


def test_the_documentation_is_the_one_made_from_the_settings(queen: Queen) -> None:
    made = queen("config", "--markdown").stdout
    assert (DOCS / "configuration.md").read_text() == made, "run: queen config --markdown > docs/configuration.md"
