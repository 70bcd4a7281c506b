"""How much was pushed, over time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import msgspec

from ...storage.analytics import pushed
from ..answer import Answer
from ..errors import failure
from ..parse.analytics import parse_analytics
from .context import Call, Context
from .times import milliseconds

PATIENCE: Final = 20.0
"""Seconds that one question may keep the database busy."""


async def analytics(context: Context, call: Call) -> Answer:
    """Messages pushed per minute, hour or day."""
    ask = parse_analytics(call.query, context.limits, datetime.now(UTC))
    try:
        async with asyncio.timeout(PATIENCE):
            points = await pushed(context.broker.store.pool, ask.interval, ask.since, ask.until, ask.which)
    except TimeoutError:
        message = (
            f"Counting the messages of this range took longer than {PATIENCE:g} s; ask for one queue, a shorter range "
            "or a longer interval, or let the pipeline rollup sum up metrics."
        )
        return failure(503, message, "too_expensive")
    report = {
        "dataPoints": [{"timestamp": milliseconds(point.at), "messages": point.messages} for point in points],
        "interval": ask.interval,
        "from": milliseconds(ask.since),
        "to": milliseconds(ask.until),
    }
    return Answer(200, msgspec.json.encode(report))
