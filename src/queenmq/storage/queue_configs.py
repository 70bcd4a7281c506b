"""Queue configurations as the database has them, in the form in which servers remember them and tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import sql
from ..domain.queue_config import QueueConfig
from .pool import Executor, translated
from .queues import Queue

_FIELDS = QueueConfig.__struct_fields__


async def load_config(db: Executor, queue: str) -> QueueConfig | None:
    return (await load_configs_of(db, [queue])).get(queue)


async def load_configs(db: Executor) -> dict[str, QueueConfig]:
    """Every queue there is."""
    async with translated():
        return _by_name(await db.fetch(sql.query("queue_configs")))


async def load_configs_of(db: Executor, queues: Sequence[str]) -> dict[str, QueueConfig]:
    """Those of these queues that exist, in one statement."""
    async with translated():
        return _by_name(await db.fetch(sql.query("queue_configs_of"), queues))


def config_of(queue: Queue) -> QueueConfig:
    return QueueConfig(**{name: getattr(queue, name) for name in _FIELDS})


def _by_name(rows: list[Any]) -> dict[str, QueueConfig]:
    return {row["name"]: QueueConfig(**{name: row[name] for name in _FIELDS}) for row in rows}
