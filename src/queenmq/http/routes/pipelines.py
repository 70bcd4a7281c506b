"""What the pipelines on Spark are doing, as their runners say."""

from __future__ import annotations

import msgspec

from ...storage.pipeline_states import ALIVE, listed
from ..answer import Answer
from .context import Call, Context


async def states(context: Context, call: Call) -> Answer:
    """`stale`: it says that it runs, but has not said so for a while."""
    seen = await listed(context.broker.store.pool)
    report = [{**each.state.to_json(), "stale": each.state.state in ALIVE and not each.alive} for each in seen]
    return Answer(200, msgspec.json.encode({"pipelines": report}))
