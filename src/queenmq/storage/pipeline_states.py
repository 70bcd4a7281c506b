"""What running pipelines say of themselves: one row of the system state each, under `pipeline:<id>`.

A runner writes its row every few seconds, so a row that has not changed for a while tells of a runner that is gone, and
another may take its place; `process` lets a runner on the same machine know that at once. A wish to stop is written
into the row, from any machine; the runner learns of it from the answer to what it writes next.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from .. import sql
from .pool import Executor, translated
from .system_state import Json

State = Literal["running", "stopping", "finished", "stopped", "failed"]
ALIVE: Final = ("running", "stopping")
GONE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class PipelineState:
    """One run. `id` is the pipeline's name, or `name:label`; `run` tells it from every other run under that id."""

    id: str
    pipeline: str
    run: str
    started_at: str
    updated_at: str
    state: State = "running"
    host: str = ""
    pid: int = 0
    process: str | None = None
    master: str = ""
    rows: int = 0
    rows_per_second: float | None = None
    lag: int | None = None
    batch: int | None = None
    restarts: int = 0
    last_error: str | None = None
    arguments: dict[str, Json] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"pipeline:{self.id}"

    def to_json(self) -> dict[str, Json]:
        """What is shown: all but what only another runner needs."""
        return {_camel(name): value for name, value in asdict(self).items() if name != "process"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A state as it was read, and how many seconds ago it was written."""

    state: PipelineState
    age: float

    @property
    def alive(self) -> bool:
        return self.state.state in ALIVE and self.age < GONE_SECONDS


async def listed(db: Executor) -> list[Seen]:
    """All of them, by id."""
    async with translated():
        rows = await db.fetch(sql.query("pipeline_states"))
    return [Seen(_state(row["id"], json.loads(row["value"])), row["age"]) for row in rows]


async def claim(
    db: Executor, state: PipelineState, gone_seconds: float = GONE_SECONDS, *, dead: str | None = None
) -> bool:
    """Begin a run under its id; False while another is alive there. `dead`: a run that is known to have died."""
    async with translated():
        return bool(await db.fetchval(sql.query("claim_pipeline"), state.key, _text(state), gone_seconds, dead))


async def tell(db: Executor, state: PipelineState) -> State | None:
    """Write how far the run is. Returns its state, `stopping` when somebody wants that; None when another run has its
    place by now."""
    async with translated():
        answer: State | None = await db.fetchval(sql.query("tell_pipeline"), state.key, state.run, _text(state))
    return answer


async def ask_to_stop(db: Executor, id: str) -> bool:
    """False when it does not say that it runs."""
    async with translated():
        return bool(await db.fetchval(sql.query("stop_pipeline"), f"pipeline:{id}"))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(state: PipelineState) -> str:
    return json.dumps({**state.to_json(), "process": state.process})


def _state(id: str, value: Any) -> PipelineState:
    """Fields that another version wrote and this one does not know are left out."""
    known = PipelineState.__dataclass_fields__
    return PipelineState(**{**{name: value[_camel(name)] for name in known if _camel(name) in value}, "id": id})


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
