"""Cluster-wide switches and positions: small JSON values by key, the same for every server."""

from __future__ import annotations

import json

from .. import sql
from .pool import Executor, translated

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


async def get(db: Executor, key: str) -> Json:
    """The value of a key; None when it was never set."""
    async with translated():
        value = await db.fetchval(sql.query("get_state"), key)
    return None if value is None else json.loads(value)


async def put(db: Executor, key: str, value: Json) -> None:
    async with translated():
        await db.execute(sql.query("set_state"), key, json.dumps(value))


async def swap(db: Executor, key: str, expected: Json, value: Json) -> bool:
    """Set a key only while it has the expected value (None: while it is not set); False when somebody was faster."""
    async with translated():
        wanted = None if expected is None else json.dumps(expected)
        return bool(await db.fetchval(sql.query("swap_state"), key, wanted, json.dumps(value)))
