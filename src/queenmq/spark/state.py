"""Keeps the row in which a run tells how far it is, for `queen pipeline status`, the API and whoever wants to stop it.

A thread writes it every two seconds on a connection of its own: Spark may be busy for minutes with one call, and a run
whose row is not renewed counts as gone. The database may go away meanwhile. That ends nothing here; what matters is
checked when it is back: another run may have taken this one's place, and then this one has to give way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

import asyncpg

from ..storage import pipeline_states
from ..storage.errors import SchemaMissing, StorageError
from ..storage.pipeline_states import PipelineState, Seen, now
from ..storage.system_state import Json
from .connecting import call, connected
from .errors import NotReady, PipelineBusy
from .processes import has_ended

WRITE_SECONDS: Final = 2.0
_JOIN_SECONDS: Final = 30.0


class Keeper:
    """A context in which the run is known to others. Entering it is refused while the same run is alive elsewhere."""

    def __init__(self, url: str, state: PipelineState, on_stop: Callable[[], None], *, streams: bool) -> None:
        self._url = url
        self._streams = streams
        self._state = state
        self._on_stop = on_stop
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"state of {state.id}", daemon=True)
        self.displaced = False

    def __enter__(self) -> Keeper:
        call(self._url, self._claimed)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN_SECONDS)

    def change(self, **changes: Any) -> None:
        """Fields of the state, to be written soon."""
        with self._lock:
            self._state = replace(self._state, **changes)

    async def _claimed(self, connection: asyncpg.Connection) -> None:
        try:
            await self._claim(connection)
        except SchemaMissing as error:
            raise NotReady(f"the database is not ready ({error.message}); run: queen db migrate") from error

    async def _claim(self, connection: asyncpg.Connection) -> None:
        dead = None
        for seen in await pipeline_states.listed(connection):
            if has_ended(seen.state.process):
                dead = seen.state.run if seen.state.id == self._state.id else dead
            elif seen.alive and self._streams and _place(seen.state) == _place(self._state):
                raise _refusal(seen)
        if not await pipeline_states.claim(connection, self._state, dead=dead):
            alive = [seen for seen in await pipeline_states.listed(connection) if seen.state.id == self._state.id]
            raise _refusal(alive[0])

    def _keep(self) -> None:
        asyncio.run(self._keeping())

    async def _keeping(self) -> None:
        while True:
            over = self._over.is_set()
            try:
                async with connected(self._url) as connection:
                    over = await self._writing(connection)
            except (StorageError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                pass  # told again when the database is back; a last word that cannot be said is lost
            if over or await self._waited():
                return

    async def _writing(self, connection: asyncpg.Connection) -> bool:
        """Until it is over, or the run is not ours any more."""
        while True:
            over = self._over.is_set()
            with self._lock:
                state = replace(self._state, updated_at=now())
            answer = await pipeline_states.tell(connection, state)
            if answer is None:
                self.displaced = True
            if answer in (None, "stopping"):
                self._on_stop()
            if over or answer is None:
                return True
            await self._waited()

    async def _waited(self) -> bool:
        return await asyncio.to_thread(self._over.wait, WRITE_SECONDS)


def _place(state: PipelineState) -> tuple[Json, ...]:
    """Where a stream remembers how far it is. Without a checkpoint of its own it has one for its queue in its lake."""
    given = state.arguments
    return (given["checkpoint"],) if "checkpoint" in given else (state.pipeline, given.get("lake"), given.get("queue"))


def _refusal(seen: Seen) -> PipelineBusy:
    other = seen.state
    return PipelineBusy(
        f"pipeline {other.id} is running already, on {other.host} as process {other.pid}; stop it with"
        f" 'queen pipeline stop {other.id}', or give this one another --label and --checkpoint"
    )
