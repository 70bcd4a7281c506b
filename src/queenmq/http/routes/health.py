"""Is this worker alive, is it ready for work, and what has it been doing?"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import asyncpg
import msgspec

from ... import __version__
from ...storage.errors import DatabaseUnavailable, StorageError
from ...storage.pool import translated
from ...storage.schema_state import require_current
from ..answer import Answer
from ..errors import failure
from .context import Call, Context

PATIENCE: Final = 1.0
"""Seconds in which a database must answer to count as reachable."""


async def health(context: Context, call: Call) -> Answer:
    """200 while PostgreSQL answers this worker, else 503, as clients of Queen MQ expect. It asks PostgreSQL itself, so
    that a worker without traffic knows it too."""
    connected = await context.broker.probe.answers()
    report = {
        "status": "healthy" if connected else "unhealthy",
        "database": "connected" if connected else "disconnected",
        "server": socket.gethostname(),
        "worker_id": context.worker_id,
        "version": __version__,
        "queen": {"worker_id": context.worker_id, "status": "stopping" if context.draining() else "active"},
    }
    if not connected:
        return failure(503, "The database does not answer this worker.", DatabaseUnavailable.code, more=report)
    return Answer(200, msgspec.json.encode(report))


async def ready(context: Context, call: Call) -> Answer:
    """200 when requests can be served, else 503 with everything that is in the way."""
    reasons = ["the server is stopping"] if context.draining() else []
    problem = await _database_problem(context)
    if problem is not None:
        reasons.append(problem)
    report: dict[str, Any] = {"ready": not reasons, "reasons": reasons}
    if reasons:
        return failure(503, f"This server is not ready: {'; '.join(reasons)}", "not_ready", more=report)
    return Answer(200, msgspec.json.encode(report))


async def engine_stats(context: Context, call: Call) -> Answer:
    report = {
        "workerId": context.worker_id,
        "engine": context.broker.stats(),
        "http": context.endpoint_stats(),
    }
    return Answer(200, msgspec.json.encode(report))


async def _database_problem(context: Context) -> str | None:
    """All who ask at the same time share the question. It is left alone when it takes too long: to give up a connection
    on which nothing comes back takes even longer."""
    if context.asking is None or context.asking.done():
        context.asking = asyncio.create_task(_ask(context))
    done, _ = await asyncio.wait([asking := context.asking], timeout=PATIENCE)
    return asking.result() if done else f"the database did not answer within {PATIENCE:g} s"


async def _ask(context: Context) -> str | None:
    try:
        async with translated():
            await require_current(context.broker.store.pool)
    except DatabaseUnavailable:
        return "the database cannot be reached"
    except StorageError as error:
        return error.message
    except asyncpg.PostgresError as error:
        return f"the database refuses: {error.args[0]}"
    return None
