"""How the schema of a database stands to this code: what is applied, missing, newer, or beyond it.

The code has a version (`sql.VERSION`). A schema that newer code has migrated serves older code too, unless one of its
migrations says that it requires a later version. Procedures have the version of their code, which only rises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from .. import sql
from .errors import SchemaChanged, SchemaMissing, SchemaNewer
from .pool import Executor

State = Literal["applied", "pending", "changed", "newer", "incompatible", "differs"]

PROCEDURES: Final = -1
"""The number under which the procedures are recorded."""
_PROCEDURES_OF_VERSION_1: Final = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row of queen.schema_migrations."""

    name: str
    checksum: str
    applied_at: datetime
    version: int
    requires: int | None
    steps_done: int | None


@dataclass(frozen=True, slots=True)
class MigrationState:
    """`newer`: applied by newer code, and this code can work with it. `incompatible`: it cannot. `changed`: another
    text under the same number. `differs`: the procedures are those of another build of this version."""

    number: int
    name: str
    state: State
    applied_at: datetime | None = None
    version: int = sql.VERSION
    requires: int | None = None
    steps: tuple[int, int] | None = None
    """Of an online migration that is pending: how many steps are done, and how many there are."""

    @property
    def needed(self) -> bool:
        """Must it be applied before this code can work? An online migration may follow while it works."""
        return self.state == "pending" and self.steps is None


async def recorded(connection: Executor) -> dict[int, Recorded]:
    if not await connection.fetchval(sql.query("has_migrations_table")):
        return {}
    rows = await connection.fetch(sql.query("recorded_migrations"))
    return {row["number"]: Recorded(*list(row.values())[1:]) for row in rows}


def states(rows: dict[int, Recorded]) -> list[MigrationState]:
    """Every migration known here or applied there, and the procedures."""
    known = {script.number for script in sql.migrations()} | {PROCEDURES, _PROCEDURES_OF_VERSION_1}
    return [
        *(_known(script, rows.get(script.number)) for script in sql.migrations()),
        *(_unknown(number, row) for number, row in sorted(rows.items()) if number not in known),
        _procedures(rows.get(PROCEDURES)),
    ]


async def require_current(connection: Executor) -> None:
    """Refuse to work on a schema that this code was not written for."""
    found = states(await recorded(connection))
    refuse_incompatible(found)
    if any(state.needed for state in found):
        raise SchemaMissing("The database schema is older than this version; run `queen db migrate`.")


def refuse_incompatible(found: Iterable[MigrationState]) -> None:
    for state in found:
        if state.state == "incompatible":
            raise SchemaNewer(
                f"The database needs servers of schema version {state.requires} or newer since migration {state.name}; "
                f"this server has version {sql.VERSION}. Start a newer one, or restore a backup.",
                detail=state.name,
            )


def refuse_changed(found: Iterable[MigrationState]) -> None:
    for state in found:
        if state.state == "changed":
            raise SchemaChanged(
                f"Migration {state.name} was applied with another text than this version ships. The database "
                "was migrated by a different build; nothing was changed.",
                detail=state.name,
            )


def procedures() -> sql.Script:
    """All procedures as one script."""
    return sql.Script(PROCEDURES, "procedures", "\n".join(script.text for script in sql.procedures()))


def _known(script: sql.Script, row: Recorded | None) -> MigrationState:
    steps = (row.steps_done or 0 if row else 0, len(script.steps)) if script.steps else None
    if row is None:
        return MigrationState(script.number, script.name, "pending", steps=steps)
    if row.checksum != script.checksum:
        return MigrationState(script.number, script.name, "changed", row.applied_at, row.version)
    if row.steps_done is not None:
        return MigrationState(script.number, script.name, "pending", steps=steps)
    return MigrationState(script.number, script.name, "applied", row.applied_at, row.version)


def _unknown(number: int, row: Recorded) -> MigrationState:
    state: State = "newer" if (row.requires or 0) <= sql.VERSION else "incompatible"
    return MigrationState(number, row.name, state, row.applied_at, row.version, row.requires)


def _procedures(row: Recorded | None) -> MigrationState:
    if row is None:
        return MigrationState(PROCEDURES, "procedures", "pending")
    state: State = "applied" if row.checksum == procedures().checksum else "differs"
    if row.version != sql.VERSION:
        state = "newer" if row.version > sql.VERSION else "pending"
    return MigrationState(PROCEDURES, "procedures", state, row.applied_at, row.version)
