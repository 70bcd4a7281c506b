"""Create and change queues."""

from __future__ import annotations

from typing import Any

import msgspec

from ...domain.options import OPTIONS
from ...storage.pool import translated
from ...storage.queues import Queue, configure
from ..answer import Answer
from ..parse.operations import parse_configure
from .context import Call, Context

_WHEN_NOT_SET = {"ttl": 0, "dead_letter_queue": True, "dlq_after_max_retries": True}


async def configure_queue(context: Context, call: Call) -> Answer:
    """Options that are not sent keep their values; the answer shows all of them."""
    wanted = parse_configure(await call.body(), context.limits)
    store = context.broker.store
    queue = await configure(store.pool, wanted.queue, wanted.options, namespace=wanted.namespace, task=wanted.task)
    name = (queue.name, "Default")
    store.directory.forget_partitions([name])  # what is remembered may be of a queue that was deleted elsewhere
    async with translated():
        (default,) = await store.directory.partitions(store.pool, [name])
    result = {
        "configured": True,
        "queueId": str(queue.uid),
        "partitionId": default.uid,
        "queue": queue.name,
        "namespace": queue.namespace,
        "task": queue.task,
        "options": options(queue),
    }
    return Answer(200, msgspec.json.encode(result))


def options(queue: Queue) -> dict[str, Any]:
    """Every option by its wire name, with the value that is in effect."""
    values = {option.name: (option.column, getattr(queue, option.column)) for option in OPTIONS}
    return {name: _WHEN_NOT_SET[column] if value is None else value for name, (column, value) in values.items()}
