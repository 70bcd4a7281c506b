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
        assert len(lines) == 3
        assert all(line.startswith("queen: ") for line in lines)
        assert "hunter2" not in answer.stderr


def test_the_documentation_is_the_one_made_from_the_settings(queen: Queen) -> None:
    made = queen("config", "--markdown").stdout
    assert (DOCS / "configuration.md").read_text() == made, "run: queen config --markdown > docs/configuration.md"
