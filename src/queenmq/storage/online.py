"""Migrations that take long and must not hold up traffic: a list of steps, each short or without strong locks.

The steps run after the procedures were replaced: those must work with the schema before and after, and so must the
statements of servers that run meanwhile. How many steps are done is recorded, so a migration that was interrupted goes
on where it was.

A `transaction` is tried again when it does not get its locks at once. `alone` is a statement that cannot run in a
transaction. An `index` is built beside traffic, and again when the session that built it ended. `batches` is a
statement that is repeated over the blocks of a table ($1 <= ctid < $2) until no row is due any more.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import Final

import asyncpg

from .. import sql
from . import ddl
from .errors import MigrationBusy
from .schema_state import Recorded, recorded

# Below PostgreSQL's deadlock_timeout: a step that meets traffic in the opposite order gives way first.
_LOCK_TIMEOUT_MS: Final = 500
_KEY: Final = 0x7175_6565_6F
_BLOCKS: Final = 32  # some hundred to some thousand rows
_PASSES: Final = 100
_REPORT_SECONDS: Final = 5.0


async def finish(connection: asyncpg.Connection, way: ddl.Way) -> list[str]:
    """Run what is left of the online migrations. Returns the names of those that it has completed."""
    way = replace(way, key=_KEY, lock_timeout_ms=min(way.lock_timeout_ms, _LOCK_TIMEOUT_MS))
    rows = await recorded(connection)
    if all(_done(script, rows.get(script.number)) == len(script.steps) for script in sql.migrations() if script.steps):
        return []
    async with ddl.alone(connection, way):
        return [script.name for script in sql.migrations() if script.steps and await _run(connection, script, way)]


async def _run(connection: asyncpg.Connection, script: sql.Script, way: ddl.Way) -> bool:
    """Was the last step done here?"""
    while (done := _done(script, (await recorded(connection)).get(script.number))) < len(script.steps):
        step = script.steps[done]
        what = f"{script.name}: {step.subject}"
        way.report(f"{script.name}: step {done + 1} of {len(script.steps)}: {step.kind} {step.subject}")
        try:
            if step.kind == "index":
                await _index(connection, step, way, what)
            elif step.kind == "batches":
                await _batches(connection, step, way, what)
            elif step.kind == "alone":
                await connection.execute(step.text)
        except asyncpg.UndefinedColumnError:
            # Behind PgBouncer another session may have got ahead and finished.
            if _done(script, (await recorded(connection)).get(script.number)) == done:
                raise
            continue
        recording = partial(_record, connection, script, done, way)
        if await ddl.patiently(recording, way.report, what) and done + 1 == len(script.steps):
            return True
    return False


def _done(script: sql.Script, row: Recorded | None) -> int:
    """How many steps are done."""
    if row is None:
        return 0
    return len(script.steps) if row.steps_done is None else row.steps_done


async def _record(connection: asyncpg.Connection, script: sql.Script, done: int, way: ddl.Way) -> bool:
    """Say that a step is done, in the transaction that does it if it is one. False if another session was faster."""
    step = script.steps[done]
    async with ddl.step(connection, way):
        if _done(script, (await recorded(connection)).get(script.number)) != done:
            return False
        if step.kind == "transaction":
            await connection.execute(step.text)
        steps_done = done + 1 if done + 1 < len(script.steps) else None
        record = (script.number, script.name, script.checksum, sql.VERSION, script.requires, steps_done)
        await connection.execute(sql.query("record_migration"), *record)
        return True


async def _index(connection: asyncpg.Connection, step: sql.Step, way: ddl.Way, what: str) -> None:
    for attempt in range(1, ddl.ATTEMPTS + 1):
        while (state := await connection.fetchval(sql.query("index_state"), step.subject)) == "building":
            way.report(f"{what} is being built by another session")
            await asyncio.sleep(1)
        if state == "valid":
            return
        try:
            if state == "broken":
                await connection.execute(await connection.fetchval(sql.query("drop_index"), step.subject))
            await connection.execute(step.text)
        except (asyncpg.DeadlockDetectedError, asyncpg.DuplicateTableError):
            way.report(f"{what} is built again (attempt {attempt} of {ddl.ATTEMPTS})")
    raise MigrationBusy(f"{what} could not be built in {ddl.ATTEMPTS} attempts; run `queen db migrate` again.")


async def _batches(connection: asyncpg.Connection, step: sql.Step, way: ddl.Way, what: str) -> None:
    """Pass over the table until a pass finds no row due. Rows that traffic holds are left for the next pass."""
    for number in range(1, _PASSES + 1):
        if await _pass(connection, step, way, f"{what} (pass {number})") == 0:
            return
    raise MigrationBusy(f"{what}: rows were locked in each of {_PASSES} passes; run `queen db migrate` again.")


async def _pass(connection: asyncpg.Connection, step: sql.Step, way: ddl.Way, what: str) -> int:
    """How many rows were due. A pause as long as the batch leaves half of the time to traffic."""
    blocks = await connection.fetchval(sql.query("table_blocks"), step.subject)
    total, reported = 0, time.monotonic()
    for first in range(0, blocks, _BLOCKS):
        began = time.monotonic()
        [row] = await connection.fetch(step.text, (first, 0), (first + _BLOCKS, 0))
        total += row["due"]
        now = time.monotonic()
        if now - reported >= _REPORT_SECONDS:
            way.report(f"{what}: {100 * first // blocks} %")
            reported = now
        if row["due"]:
            await asyncio.sleep(now - began)
    return total
