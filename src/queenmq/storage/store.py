"""The storage engine as one object: a pool, what the process remembers of names, and the calls by name.

The engine's hot path calls the modules directly with connections of its own; everything else goes through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import asyncpg

from .. import sql
from ..domain.ids import partition_tag
from ..domain.segments import PushItem, check
from ..wire.names import check_name
from . import ack as acks
from . import pop as pops
from . import queues
from .ack import AckItem, AckResult, Freed, Renewal
from .directory import Directory
from .pool import create_pool, translated
from .pop import QUEUE_MODE, PopRequest, PopResult
from .push import Sealer, Verdict, push
from .queue_configs import config_of
from .transactions import Committed, Transaction

SubscriptionMode = Literal["all", "new"]


class Store:
    """Typed calls on one database."""

    def __init__(self, pool: asyncpg.Pool, sealer: Sealer | None = None, directory: Directory | None = None) -> None:
        self.pool = pool
        self._sealer = sealer
        self.directory = Directory() if directory is None else directory

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        size: int = 10,
        statement_timeout_ms: int = 0,
        connect_timeout: float = 10,
        pgbouncer: bool = False,
    ) -> Store:
        pool = await create_pool(
            dsn,
            size=size,
            statement_timeout_ms=statement_timeout_ms,
            connect_timeout=connect_timeout,
            pgbouncer=pgbouncer,
        )
        return cls(pool)

    async def close(self) -> None:
        await self.pool.close()

    async def configure(
        self, queue: str, *, namespace: str | None = None, task: str | None = None, **options: object
    ) -> queues.Queue:
        """Options by their wire names, e.g. `configure("orders", leaseTime=30)`."""
        configured = await queues.configure(self.pool, queue, options, namespace=namespace, task=task)
        self.directory.configs.put(queue, config_of(configured))
        return configured

    async def delete_queue(self, queue: str) -> bool:
        try:
            return await queues.delete(self.pool, queue)
        finally:  # also when the answer was lost
            self.directory.forget_queue(queue)

    async def push(self, items: Sequence[PushItem]) -> list[Verdict]:
        """Raises InvalidValue for an item that may not be stored, and then none is."""
        check(items)
        return await push(self.pool, self.directory, items, self._sealer)

    async def pop(
        self,
        queue: str,
        group: str = QUEUE_MODE,
        *,
        batch: int = 1,
        partition: str | None = None,
        partitions: int = 1,
        auto_ack: bool = False,
        subscription_mode: SubscriptionMode = "all",
        subscription_from: datetime | Literal["now"] | None = None,
    ) -> PopResult:
        """Messages of a queue, from one partition or from any. Without a queue or messages the result is empty."""
        check_name("consumerGroup", group)
        mode, start = pops.subscription(group, subscription_mode, subscription_from)
        partition_id = tag = None
        if partition is not None:
            partition_id = await self.pool.fetchval(sql.query("find_partition"), queue, partition)
            if partition_id is None:
                return PopResult([], "empty")
            tag = partition_tag(queue, partition)
        result = PopResult([], "empty")
        for _ in range(2):
            groups = await self._groups(
                [queue], group, mode if partition is None or group == QUEUE_MODE else None, start
            )
            request = PopRequest(groups, partition_id, batch, partitions, auto_ack, start, tag=tag)
            result = (await pops.pop(self.pool, [request]))[0]
            if result.reason != "unknown_group" or not groups:
                break
            self.directory.forget_group(queue, group)  # it was deleted; register it again
        return result

    async def pop_matching(
        self,
        namespace: str | None,
        task: str | None,
        group: str = QUEUE_MODE,
        *,
        batch: int = 1,
        partitions: int = 1,
        auto_ack: bool = False,
        subscription_mode: SubscriptionMode = "all",
        subscription_from: datetime | Literal["now"] | None = None,
    ) -> PopResult:
        """Messages of any queue with this namespace and task, the most important queue first."""
        check_name("consumerGroup", group)
        mode, start = pops.subscription(group, subscription_mode, subscription_from)
        async with translated():
            rows = await self.pool.fetch(sql.query("matching_queues"), namespace, task, group)
        groups = []
        for row in rows:  # in the order of importance; what the database knows is newer than what we remember
            if row["group_id"] is None:
                self.directory.forget_group(row["name"], group)
                groups += await self._groups([row["name"]], group, mode, start)
            else:
                groups.append(row["group_id"])
        request = PopRequest(groups, None, batch, partitions, auto_ack, start)
        return (await pops.pop(self.pool, [request]))[0]

    async def _groups(self, queues: Sequence[str], group: str, mode: str | None, start: datetime | None) -> list[int]:
        """The group's ids on these queues, registered where it is new."""
        start = start if mode == "timestamp" else None
        places = [
            await pops.register(self.pool, self.directory, queue, group, mode=mode, start=start) for queue in queues
        ]
        return [place.group_id for place in places if place is not None]

    async def ack(self, items: Sequence[AckItem]) -> list[AckResult]:
        return await acks.ack(self.pool, items)

    async def renew(self, lease_id: str, seconds: int = 60) -> Renewal:
        return await acks.renew(self.pool, lease_id, seconds)

    async def release(self, lease_id: str) -> list[Freed]:
        return await acks.release(self.pool, [lease_id])

    def transaction(
        self, acks: Sequence[AckItem] = (), pushes: Sequence[PushItem] = (), required_leases: Sequence[str] = ()
    ) -> Transaction:
        check(pushes)
        return Transaction(self.directory, acks, pushes, required_leases, self._sealer)

    async def commit(self, transaction: Transaction, *, replay: bool = False) -> Committed:
        return await transaction.commit(self.pool, replay=replay)
