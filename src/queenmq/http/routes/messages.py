"""Push, pop and ack, for the requests that the protocol does not answer by itself."""

from __future__ import annotations

from typing import Final

from ..answer import Answer
from .context import Call, Context

_POP: Final = "/api/v1/pop"


async def push(context: Context, call: Call) -> Answer:
    return await call.finished(context.handlers.push(await call.body(), call.caller))


async def pop(context: Context, call: Call) -> Answer:
    path = call.raw_path.removeprefix(_POP)
    return await call.finished_if_wanted(context.handlers.pop(path, call.query, call.caller))


async def ack(context: Context, call: Call) -> Answer:
    return await call.finished(context.handlers.ack(await call.body(), call.caller))


async def ack_batch(context: Context, call: Call) -> Answer:
    return await call.finished(context.handlers.ack_batch(await call.body(), call.caller))
