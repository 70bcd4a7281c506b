"""Create, change and delete queues. What changes is told to everybody who remembers queues."""

from __future__ import annotations

from typing import Any

import msgspec

from ...domain.options import OPTIONS
from ...storage.pool import translated
from ...storage.queue_configs import config_of
from ...storage.queues import Queue, configure, delete
from ...wire.names import check_name
from ..answer import Answer
from ..parse.operations import parse_configure
from .context import Call, Context

_WHEN_NOT_SET = {"ttl": 0, "dead_letter_queue": True, "dlq_after_max_retries": True}


async def configure_queue(context: Context, call: Call) -> Answer:
    """Options that are not sent keep their values; the answer shows all of them."""
    wanted = parse_configure(await call.body(), context.limits)
    store, shared = context.broker.store, context.broker.shared
    queue = await configure(store.pool, wanted.queue, wanted.options, namespace=wanted.namespace, task=wanted.task)
    shared.config_changed(queue.name, config_of(queue))
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


async def delete_queue(context: Context, call: Call) -> Answer:
    """200 also when there is none, as clients expect; `existed` tells."""
    name = call.param("queue")
    check_name("queue", name, longest=context.limits.max_name_length)
    try:
        existed = await delete(context.broker.store.pool, name)
    finally:  # also when the answer was lost
        context.broker.shared.queue_deleted(name)
    return Answer(200, msgspec.json.encode({"deleted": True, "queue": name, "existed": existed}))


def options(queue: Queue) -> dict[str, Any]:
    """Every option by its wire name, with the value that is in effect."""
    values = {option.name: (option.column, getattr(queue, option.column)) for option in OPTIONS}
    return {name: _WHEN_NOT_SET[column] if value is None else value for name, (column, value) in values.items()}
