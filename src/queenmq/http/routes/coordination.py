"""What this server shares with others, and how others tell it that there are messages."""

from __future__ import annotations

import msgspec

from ..answer import Answer
from ..parse.operations import parse_notify
from .context import Call, Context


async def shared_state(context: Context, call: Call) -> Answer:
    """Of all workers together. Without other servers the tiers of this one are shown all the same."""
    shared = context.broker.shared
    together = shared.gateway is not None
    report = {
        "enabled": together,
        "running": together,
        "server_id": shared.server_id,
        **await shared.stats(),
        "maintenance_mode": False,
        "pop_maintenance_mode": False,
    }
    return Answer(200, msgspec.json.encode(report))


async def notify(context: Context, call: Call) -> Answer:
    """Wake those who wait for the queue, everywhere: something was pushed that this server could not see."""
    notified = parse_notify(await call.body(), context.limits)
    context.broker.notify(notified.queue, notified.partition)
    return Answer(200, b'{"status":"ok"}')
