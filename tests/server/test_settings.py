"""Settings are read strictly: a good environment gives typed values, a bad one gives every reason at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.server.kinds import redact_url
from queenmq.server.settings import Settings, SettingsError, default_data_dir, table, warnings

INTEGERS = [meta.name for _, meta in table() if meta.kind.name == "integer"]
NEEDS = {
    "PG_PORT": {"PG_HOST": "db"},
    "QUEEN_SYNC_HEARTBEAT_MS": {"QUEEN_SYNC_DEAD_THRESHOLD_MS": "600000"},
    "QUEEN_SYNC_DEAD_THRESHOLD_MS": {"QUEEN_SYNC_HEARTBEAT_MS": "10"},
}


def problems(environ: Mapping[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(environ)
    return caught.value.problems


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.dsn is None
    assert settings.db_pool_size == 20
    assert settings.db_statement_timeout == 30_000
    assert settings.migration_lock_timeout == 2_000
    assert settings.retention_batch_size == 10_000
    assert settings.eviction_batch_size == 100
    assert settings.partition_cleanup_days == 7
    assert settings.metrics_retention_days == 30
    assert settings.embedded_port is None


def test_names_of_settings_are_unique_and_every_row_is_documented() -> None:
    rows = [meta for _, meta in table()]
    assert len({meta.name for meta in rows}) == len(rows)
    assert all(meta.doc.endswith(".") and meta.default for meta in rows)


def test_values_come_from_the_environment(tmp_path: Path) -> None:
    settings = Settings.from_env(
        {"DB_POOL_SIZE": "7", "QUEEN_DATA_DIR": str(tmp_path), "QUEEN_PG_PORT": "5555", "PATH": "ignored"},
    )
    assert (settings.db_pool_size, settings.data_dir, settings.embedded_port) == (7, tmp_path, 5555)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings.from_env({}).db_pool_size = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "text", ["ten", "1_000", " 7", "7 ", "1e3", "7.0", "0x10", "+7", "٣", "-1", "9" * 30, "", "true"]
)
def test_an_integer_setting_takes_only_plain_digits_within_its_bounds(name: str, text: str) -> None:
    (problem,) = problems({name: text, **NEEDS.get(name, {})})
    assert problem.startswith(f"{name} is ")
    assert text == "" or f"'{text}'" in problem
    assert "empty" in problem or "a whole number from" in problem


@pytest.mark.parametrize("name", [meta.name for _, meta in table()])
def test_an_empty_value_is_refused_and_not_taken_for_the_default(name: str) -> None:
    assert f"{name} is set but empty; give it a value or unset it." in problems({name: ""})


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_setting_includes_both_of_its_bounds(name: str) -> None:
    field, meta = next((field, meta) for field, meta in table() if meta.name == name)
    low, high = meta.kind.allowed.split(" to ")
    others = NEEDS.get(name, {})
    assert getattr(Settings.from_env({name: low, **others}), field) == int(low)
    assert getattr(Settings.from_env({name: high, **others}), field) == int(high)
    assert problems({name: str(int(low) - 1), **others})
    assert problems({name: str(int(high) + 1), **others})


def test_every_fault_is_reported_at_once() -> None:
    found = problems({"DB_POOL_SIZE": "0", "EVICTION_BATCH_SIZE": "x", "PG_PORT": "1"})
    assert [sentence.split()[0] for sentence in found] == ["DB_POOL_SIZE", "EVICTION_BATCH_SIZE", "PG_PORT"]


def test_settings_of_clients_are_left_alone() -> None:
    given = {"QUEEN_URL": "http://queen:6632", "QUEEN_TOKEN": "t", "QUEEN_SPARK_JAVA": "bundled"}
    given |= {"QUEEN_CLIENT_LOG": "1", "QUEEN_SDK_POP_AUTOPILOT": "off"}
    assert Settings.from_env(given, strict=True) == Settings.from_env({})
    assert warnings(given) == []


def test_settings_of_other_programs_are_left_alone() -> None:
    given = {"PGHOST": "x", "QUEENSLAND": "x"}
    assert Settings.from_env(given, strict=True) == Settings.from_env({})
    assert warnings(given) == []


def test_two_ways_to_name_the_database_are_refused_and_it_says_which_to_drop() -> None:
    assert problems({"DATABASE_URL": "postgresql://h/d", "PG_HOST": "h", "PG_USER": "u"}) == [
        "DATABASE_URL and PG_HOST and PG_USER are both set; drop PG_HOST and PG_USER, or drop DATABASE_URL.",
    ]


def test_a_part_of_the_address_without_the_host_is_refused() -> None:
    (problem,) = problems({"PG_PASSWORD": "hunter2"})
    assert problem.startswith("PG_PASSWORD is set without PG_HOST; set PG_HOST")
    assert "hunter2" not in problem


@pytest.mark.parametrize("outside", [{"DATABASE_URL": "postgresql://h/d"}, {"PG_HOST": "h"}])
def test_a_setting_of_the_embedded_postgresql_beside_a_configured_one_is_refused(outside: dict[str, str]) -> None:
    (problem,) = problems({**outside, "QUEEN_PG_PORT": "5555"})
    assert problem.startswith("QUEEN_PG_PORT is for the embedded PostgreSQL")


def test_the_data_directory_may_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (problem,) = problems({"QUEEN_DATA_DIR": str(tmp_path / "file")})
    assert "must be a directory, but a file is there" in problem


def test_the_binaries_directory_must_exist(tmp_path: Path) -> None:
    (problem,) = problems({"QUEEN_PG_BIN": str(tmp_path / "missing")})
    assert problem == f"QUEEN_PG_BIN is '{tmp_path}/missing'; it must be a directory that exists."


def test_a_relative_data_directory_is_made_absolute() -> None:
    assert Settings.from_env({"QUEEN_DATA_DIR": "here"}).data_dir == Path.cwd() / "here"


@pytest.mark.parametrize(
    ("environ", "platform", "uid", "expected"),
    [
        ({"HOME": "/home/ann"}, "linux", 1000, "/home/ann/.local/state/queenmq"),
        ({"HOME": "/home/ann", "XDG_STATE_HOME": "/state"}, "linux", 1000, "/state/queenmq"),
        ({"HOME": "/home/ann", "XDG_STATE_HOME": "state"}, "linux", 1000, "/home/ann/.local/state/queenmq"),
        ({"HOME": "/Users/ann"}, "darwin", 501, "/Users/ann/Library/Application Support/queenmq"),
        ({"HOME": "/root"}, "linux", 0, "/var/lib/queenmq"),
    ],
)
def test_the_default_data_directory_suits_the_platform(
    environ: dict[str, str], platform: str, uid: int, expected: str
) -> None:
    assert default_data_dir(environ, platform=platform, uid=uid) == Path(expected)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d",
        "postgres://u:p@h:5432/d?sslmode=require",
        "postgresql://u@[::1]:5432/d",
        "postgresql://u@a:1,b:2/d",
        "postgresql://u@/d?host=/run/postgresql",
        "postgresql://u@/d?host=/run/postgresql&port=5433&user=ann@work&",
        "postgresql://h/d?ssl=true&target_session_attrs=read-write&channel_binding=require&connect_timeout=10",
        "postgresql://h/d?gssencmode=prefer&options=-c%20search_path%3Dshop&application_name=shop",
    ],
)
def test_a_database_url_is_passed_on_as_it_is(url: str) -> None:
    assert Settings.from_env({"DATABASE_URL": url}).dsn == url


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:S3CRET@h/d",
        "host=h password=S3CRET",
        "host=h password='S3CRET S3CRET'",
        "u:S3CRET@h/d",
        "postgresql://u:S3CRET@h:99999/d",
        "postgresql://u:S3CRET@h:port/d",
        "postgresql://u:S3#CRET@h/d",
        "postgresql://u:S3CRET@S3CRET@:x/d",
        "postgresql:///d?password=S3CRET",
        "postgresql:///u:S3CRET@h/d",
        "postgresql://u:S3CRET/S3CRET@[h/d",
        "postgresql://u:S3 CRET@h/d",
        "postgresql://u:5432?S3=CRET&S3=CRET@h/d",
        "postgresql://h/d?password=S3&CRET",
        "postgresql://h/d?password=S3&CRET&sslpassword=S3CRET",
        "postgresql://h/d?password=S3CRET&schema=public",
    ],
)
def test_a_bad_database_url_is_refused_without_showing_its_password(url: str) -> None:
    (problem,) = problems({"DATABASE_URL": url})
    assert problem.startswith("DATABASE_URL is '")
    assert "it must be a URL like postgresql://user:password@host:5432/database" in problem
    assert "S3" not in problem
    assert "CRET" not in problem


def test_a_bad_character_in_a_password_comes_with_its_escape() -> None:
    (problem,) = problems({"DATABASE_URL": "postgresql://u:S3#CRET@h/d"})
    assert problem.endswith("where a # in the user or password is written %23.")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("schema=public", "its parameter 'schema' is not one that is known here; leave it out."),
        (
            "sslmode=require&pgbouncer=true",
            "its parameter 'pgbouncer' is not one that is known here; set QUEEN_PGBOUNCER instead.",
        ),
        ("statement_timeout=5", "its parameter 'statement_timeout' is not one that is known here; leave it out."),
        ("require_auth=scram-sha-256", "its parameter 'require_auth' is not one that is known here; leave it out."),
        ("ssl=maybe", "its parameter 'ssl' is not one that is known here; leave it out."),
        ("gssencmode=require", "its parameter 'gssencmode' cannot be require: GSSAPI encryption is not supported."),
        ("target_session_attrs=x", "can be any, primary, standby, read-write, read-only, prefer-standby."),
        ("port=x", "its port must be 1 to 65535."),
        ("port=5432,", "its port must be 1 to 65535."),
        ("sslmode", "its parameters cannot be read."),
    ],
)
def test_a_parameter_that_cannot_be_followed_is_named(parameters: str, said: str) -> None:
    (problem,) = problems({"DATABASE_URL": f"postgresql://u:S3CRET@h/d?{parameters}"})
    assert problem.endswith(said)
    assert "S3CRET" not in problem


@given(
    password=st.text(st.characters(min_codepoint=33, max_codepoint=0x24F, exclude_characters="#?&=%"), min_size=4),
    user=st.from_regex(r"[a-z]{1,8}", fullmatch=True),
)
def test_no_password_of_a_url_survives_redaction(password: str, user: str) -> None:
    hidden = redact_url(f"postgresql://{user}:{password}@host:5432/db")
    assert hidden == f"postgresql://{user}:****@host:5432/db"


@pytest.mark.parametrize("url", ["postgresql://h:5432/d", "postgresql://u@/d?host=/run", "postgresql://u@h:1,i:2/d"])
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert redact_url(url) == url


@given(
    user=st.text(st.characters(min_codepoint=33, exclude_categories=["Cs"]), min_size=1),
    password=st.text(st.characters(min_codepoint=33, exclude_categories=["Cs"]), min_size=1),
)
def test_the_parts_of_the_address_survive_the_url(user: str, password: str) -> None:
    dsn = Settings.from_env({"PG_HOST": "db.example", "PG_USER": user, "PG_PASSWORD": password, "PG_DB": "d"}).dsn
    assert dsn is not None
    parts = urlsplit(dsn)
    assert (parts.hostname, parts.port, parts.path) == ("db.example", 5432, "/d")
    assert (unquote(parts.username or ""), unquote(parts.password or "")) == (user, password)


def test_a_socket_directory_as_host_becomes_a_query() -> None:
    dsn = Settings.from_env({"PG_HOST": "/run/pg sql", "PG_PORT": "5433"}).dsn
    assert dsn == "postgresql://postgres@/postgres?host=/run/pg%20sql&port=5433"


def test_a_printed_settings_object_holds_no_secret() -> None:
    shown = repr(Settings.from_env({"PG_HOST": "h", "PG_PASSWORD": "hunter2"}))
    assert "hunter2" not in shown
    assert "hunter2" not in repr(Settings.from_env({"DATABASE_URL": "postgresql://u:hunter2@h/d"}))
