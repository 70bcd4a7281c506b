"""Migrations: once, together, patient with traffic, and honest about databases they were not made for."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from queenmq import sql
from queenmq.storage import ddl
from queenmq.storage.errors import (
    AccessRefused,
    DatabaseUnavailable,
    MigrationBusy,
    SchemaChanged,
    SchemaMissing,
    SchemaNewer,
    StorageError,
    UnsupportedDatabase,
)
from queenmq.storage.migrate import check, migrate, status
from queenmq.storage.schema_state import procedures, require_current
from tests.conftest import Server


@pytest.fixture
async def empty(server: Server) -> AsyncIterator[str]:
    """A database without our schema."""
    name = await server.create(template="template0")
    yield server.database(name)
    await server.drop(name)


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_an_empty_database_is_brought_up_to_date_once(empty: str) -> None:
    assert {state.state for state in await status(empty)} == {"pending"}
    first = await migrate(empty)
    assert sorted(first.applied) == [script.name for script in sql.migrations()]  # online ones come last
    assert {state.state for state in await status(empty)} == {"applied"}
    second = await migrate(empty)
    assert (second.applied, second.procedures_replaced) == ((), False)


async def test_servers_that_start_together_migrate_once(empty: str) -> None:
    reports = await asyncio.gather(*[migrate(empty) for _ in range(5)])
    assert sorted(len(report.applied) for report in reports) == [0, 0, 0, 0, len(sql.migrations())]
    assert await check(empty) == []


async def newer_procedures(dsn: str) -> None:
    """Leave the record as a server of the next version does."""
    await execute(
        dsn,
        f"update queen.schema_migrations set version = {sql.VERSION + 1}, checksum = 'x' where number = -1",
        "insert into queen.schema_migrations (number, name, checksum, version)"
        f" values (999, '0999_future', 'x', {sql.VERSION + 1})",
    )


async def refusal(dsn: str) -> str | None:
    """What /ready and the workers would hear."""
    connection = await asyncpg.connect(dsn)
    try:
        await require_current(connection)
    except StorageError as error:
        return error.message
    finally:
        await connection.close()
    return None


async def test_a_newer_schema_is_served_and_left_alone(dsn: str) -> None:
    await newer_procedures(dsn)
    report = await migrate(dsn)
    assert (report.applied, report.procedures_replaced) == ((), False)
    assert [state.name for state in await status(dsn) if state.state == "newer"] == ["0999_future", "procedures"]
    assert await refusal(dsn) is None
    assert await check(dsn) == []


async def test_a_newer_schema_that_this_version_cannot_serve_is_refused(dsn: str) -> None:
    await newer_procedures(dsn)
    await execute(dsn, f"update queen.schema_migrations set requires = {sql.VERSION + 1} where number = 999")
    words = rf"version {sql.VERSION + 1} or newer since migration 0999_future; this server has version {sql.VERSION}"
    with pytest.raises(SchemaNewer, match=words):
        await migrate(dsn)
    assert re.search(words, await refusal(dsn) or "")
    [problem] = await check(dsn)
    assert problem.detail == (
        f"is incompatible: it requires version {sql.VERSION + 1} or newer, this is version {sql.VERSION}"
    )


async def test_procedures_of_a_lower_version_are_replaced(dsn: str) -> None:
    """Servers before version 2 recorded theirs under 0, and go on finding that row as it was."""
    await execute(
        dsn,
        "delete from queen.schema_migrations where number = -1",
        "insert into queen.schema_migrations (number, name, checksum) values (0, 'procedures', 'of version 1')",
    )
    assert "older" in (await refusal(dsn) or "")
    assert (await migrate(dsn, replace_procedures=False)).procedures_replaced
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("select checksum from queen.schema_migrations where number = 0") == "of version 1"
    await connection.close()
    assert await refusal(dsn) is None


async def test_two_builds_of_one_version_do_not_replace_each_others_procedures(dsn: str) -> None:
    await execute(dsn, "update queen.schema_migrations set checksum = 'another build' where number = -1")
    reports: list[str] = []
    assert not (await migrate(dsn, replace_procedures=False, report=reports.append)).procedures_replaced
    assert "another build" in reports[-1]
    assert await refusal(dsn) is None
    [problem] = await check(dsn)
    assert (problem.subject, problem.detail.split()[0]) == ("procedures", "differs:")
    assert (await migrate(dsn, replace_procedures=True)).procedures_replaced


def test_only_a_checkout_replaces_procedures_of_its_own_version(tmp_path: Path) -> None:
    """By what lies beside the package: an installed one has no pyproject.toml there."""
    shutil.copytree(Path(sql.__file__).parents[1], tmp_path / "src" / "queenmq", ignore=shutil.ignore_patterns("*.pyc"))
    command = [sys.executable, "-c", "from queenmq import sql; print(sql.is_checkout())"]

    def answer() -> str:
        return subprocess.run(
            command, env={"PYTHONPATH": str(tmp_path / "src")}, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert answer() == "False"
    (tmp_path / "pyproject.toml").touch()
    assert answer() == "True"


async def test_a_migration_with_another_text_is_refused_and_nothing_is_changed(dsn: str) -> None:
    await execute(dsn, "update queen.schema_migrations set checksum = 'other' where number = 1")
    with pytest.raises(SchemaChanged, match="0001_schema"):
        await migrate(dsn)
    assert [problem.subject for problem in await check(dsn)] == ["0001_schema"]


async def test_changed_procedures_are_replaced_and_migrations_left_alone(dsn: str) -> None:
    await execute(
        dsn,
        "update queen.schema_migrations set checksum = 'old' where number = -1",
        "create or replace function queen.locate(pid bigint, transaction_id text) returns bigint"
        " language sql as 'select -1::bigint'",
    )
    report = await migrate(dsn)
    assert (report.applied, report.procedures_replaced) == ((), True)
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("select queen.locate(1, 'x')") is None
    await connection.close()


async def test_a_procedure_that_had_other_columns_is_replaced(dsn: str) -> None:
    """PostgreSQL refuses that unless the earlier one is dropped."""
    arguments = "bigint[], integer[], uuid[], bigint[], jsonb[], boolean"
    await execute(
        dsn,
        f"drop function queen.ack_v1({arguments})",
        f"create function queen.ack_v1({arguments}) returns table (run integer, more boolean) language sql"
        " as 'select 1, true'",
        "update queen.schema_migrations set checksum = 'earlier' where number = -1",
    )
    assert (await migrate(dsn)).procedures_replaced


async def test_code_refuses_to_work_on_a_schema_that_is_not_migrated(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    with pytest.raises(SchemaMissing, match="queen db migrate"):
        await require_current(connection)
    await connection.close()


async def test_a_migration_gives_way_to_a_transaction_and_is_tried_again(dsn: str) -> None:
    """DDL that waits for a lock blocks everybody behind it; so it waits briefly, steps aside, and comes back."""
    await execute(dsn, "update queen.schema_migrations set checksum = 'old' where number = -1")
    blocker = await asyncpg.connect(dsn)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("insert into queen.messages (queue, payload) values ('orders', '1')")
    gave_way = asyncio.Event()

    def report(line: str) -> None:
        if "waits for running transactions" in line:
            gave_way.set()

    migration = asyncio.create_task(migrate(dsn, lock_timeout_ms=50, report=report))
    await asyncio.wait_for(gave_way.wait(), 30)
    # between its attempts others get through
    await execute(dsn, "insert into queen.messages (queue, payload) values ('others', '1')")
    await transaction.commit()
    await blocker.close()
    assert (await asyncio.wait_for(migration, 60)).procedures_replaced


async def test_a_migration_that_never_gets_its_locks_says_so(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddl, "ATTEMPTS", 2)
    await execute(dsn, "update queen.schema_migrations set checksum = 'old' where number = -1")
    blocker = await asyncpg.connect(dsn)
    async with blocker.transaction():
        await blocker.execute("insert into queen.messages (queue, payload) values ('orders', '1')")
        with pytest.raises(MigrationBusy, match="pg_stat_activity"):
            await migrate(dsn, lock_timeout_ms=20)
    await blocker.close()


async def test_a_migration_that_fails_leaves_nothing_behind(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = sql.migrations()
    broken = replace(good[-1], number=9999, name="9999_broken", text="create table queen.half (); select 1/0;")
    monkeypatch.setattr(sql, "migrations", lambda: (*good, broken))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(empty)
    connection = await asyncpg.connect(empty)
    assert await connection.fetchval("select to_regclass('queen.half')") is None
    assert await connection.fetchval("select max(number) from queen.schema_migrations") < 9999
    await connection.close()


async def test_another_encoding_is_refused(server: Server) -> None:
    name = await server.create(template="template0", options="encoding 'LATIN1' locale_provider libc locale 'C'")
    try:
        with pytest.raises(UnsupportedDatabase, match=r"UTF8.*LATIN1"):
            await migrate(server.database(name))
    finally:
        await server.drop(name)


async def test_a_database_that_does_not_exist_is_named(server: Server) -> None:
    with pytest.raises(AccessRefused, match="nowhere"):
        await migrate(server.database("nowhere"))


async def test_no_server_is_unavailable() -> None:
    with pytest.raises(DatabaseUnavailable):
        await migrate("postgresql://nobody@127.0.0.1:1/none")


async def test_check_finds_a_wrong_lookup_row(dsn: str) -> None:
    await execute(
        dsn,
        "insert into queen.messages (queue, partition, payload) values ('orders', 'p', '1')",
        "update queen.partition_lookup set last_seq = 0",
    )
    assert [(problem.check, problem.subject) for problem in await check(dsn)] == [("partition_lookup", "orders/p")]


# The procedures of each release: its version and their checksum.
RELEASED = {
    1: "46677a854f60c2dff6431aa555131ef6e856c6cc97fcbf91daae7cefc8df6004",
    2: "ab7d0536185679b9877091bfb27a77f27e5a2c4de059b73dafc41c5262fc984e",
}


def test_changed_procedures_have_a_version_of_their_own() -> None:
    """Servers leave those of their own version alone: after a release, the next change raises `sql.VERSION`."""
    assert (sql.VERSION, procedures().checksum) in RELEASED.items() or max(RELEASED) + 1 == sql.VERSION


def test_migration_numbers_rise_and_queries_have_one_name() -> None:
    numbers = [script.number for script in sql.migrations()]
    assert numbers == sorted(set(numbers))
    assert sql.query("push").startswith("select")
