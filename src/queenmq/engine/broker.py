"""One worker's engine: every operation a client can ask for, as a future of its answer.

The sidecar of a worker: a buffer per operation, connections of its own for the hot ones, what it remembers of names and
leases, and the parked pops. Everything else (queues, status, traces) goes through `store` and its pool.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import asyncpg

from ..cluster.shared_state import SharedState
from ..cluster.siblings import Siblings
from ..domain.cipher import Cipher
from ..domain.segments import DEFAULT_PARTITION, PushItem, Receipt, Segment
from ..storage.ack import AckItem, Renewal
from ..storage.directory import Directory
from ..storage.errors import StorageError
from ..storage.pool import connect, create_pool
from ..storage.pop import QUEUE_MODE, PopResult
from ..storage.store import Store
from ..storage.tidy import Tidier
from ..storage.transactions import Committed
from ..wire.requests import AckEntry, PushEntry
from .acks import Acks, Stretch
from .budget import ITEM_BYTES, Budget
from .config import EngineConfig
from .errors import Stopping
from .leases import LeaseMemory
from .links import Links
from .pops import Pops
from .probe import PATIENCE, Probe
from .pushes import Pushes
from .refreshing import Refresher
from .renewals import Renewals
from .requests import PopAsk, TransactionAsk
from .transactions import Transactions

_log = logging.getLogger(__name__)


class Broker:
    """Futures end with the answer, with a StorageError, an EngineError, a CipherError or an InvalidValue.

    Cancelling the future of a pop says that the client has left: it takes no message any more, and a lease it has won
    is given back.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: asyncpg.Pool,
        cipher: Cipher | None = None,
        share: Callable[[Directory], SharedState] | None = None,
    ) -> None:
        directory = Directory(config.max_partitions, config.partition_ttl, enabled=config.remember)
        self.store = Store(pool, cipher, directory)
        self.shared = (share or _alone)(directory)
        half = max(1, config.connections // 2)
        self._links = Links(partial(_connect, config), half)
        # A lease that a crash of PostgreSQL loses is a delivery that happens again, which it may: no wait for the disk.
        self._pop_links = Links(partial(_connect, config, lazy_commit=True), half)
        self.probe = Probe(partial(_connect, config, connect_timeout=PATIENCE))
        self.leases = LeaseMemory()
        self.budget = Budget(config.max_pending_bytes)
        self._tidier = Tidier()
        self._tidying: asyncio.Task[None] | None = None
        self._stopping = False
        released = self.shared.lease_released
        self.acks = Acks(
            config,
            self._links,
            self.leases,
            self.budget,
            freed=self._freed,
            released=released,
            written=self._written,
        )
        self.pops = Pops(
            config,
            self._pop_links,
            directory,
            self.leases,
            cipher,
            self.acks,
            written=self._written,
            freed=self._freed,
            shared=self.shared,
        )
        self.pushes = Pushes(config, self._links, directory, cipher, self.budget, pushed=self._pushed)
        self.transactions = Transactions(
            config,
            self._links,
            directory,
            cipher,
            self.budget,
            pushed=self._pushed,
            freed=self._freed,
            released=released,
        )
        self.renewals = Renewals(config, self._links)
        self._refresher = Refresher(self.store, self.shared, config.refresh_every)
        self.shared.listen(self.pops.waiters, self._refresher.soon, self._refresher.learn)

    @classmethod
    async def open(
        cls,
        config: EngineConfig,
        cipher: Cipher | None = None,
        share: Callable[[Directory], SharedState] | None = None,
    ) -> Broker:
        """Connections are opened when they are needed, so PostgreSQL may be away meanwhile. `share` makes what this
        worker shares with others; without it, it is alone."""
        pool = await create_pool(
            config.dsn,
            size=config.admin_connections,
            statement_timeout_ms=config.statement_timeout_ms,
            connect_timeout=config.connect_timeout,
            pgbouncer=config.pgbouncer,
        )
        return cls(config, pool, cipher, share)

    async def drain(self) -> None:
        """Take nothing new, answer parked pops with nothing, finish what is under way."""
        self._stopping = True
        self.pops.stop_waiting()
        for batcher in (self.pushes.batcher, self.acks.batcher, self.transactions.batcher, self.renewals.batcher):
            await batcher.idle()
        await self.pops.idle()

    async def close(self) -> None:
        """What was delivered with autoAck is acknowledged before, and what was not delivered is given back."""
        await self.pops.deliveries.idle()
        if self._stopping:
            await self.pops.returns.finish()
        if self._tidying is not None:
            self._tidying.cancel()
        self._refresher.close()
        self.shared.close()
        await self.probe.close()
        await self._links.close()
        await self._pop_links.close()
        await self.store.close()

    @property
    def healthy(self) -> bool:
        """Whether PostgreSQL answered when it was last asked."""
        return self._links.healthy and self._pop_links.healthy

    def push(self, items: Sequence[PushEntry], producer_sub: str | None = None, size: int = 0) -> Future[Receipt]:
        """`size`: the bytes of the request, for the limit on what waits."""
        self._check_open()
        return self.pushes.add(items, producer_sub, size or len(items) * ITEM_BYTES)

    def pop(self, ask: PopAsk) -> Future[PopResult]:
        self._check_open()
        return self.pops.add(ask)

    def delivered(self, ask: PopAsk, result: PopResult) -> None:
        """The answer to a pop was handed to its client."""
        if ask.auto_ack:
            self.pops.deliveries.delivered(ask, result)

    def undelivered(self, result: PopResult) -> None:
        """The client has left before it got the answer: the messages are for the next pop."""
        self.pops.deliveries.undelivered(result)

    def ack(self, items: Sequence[AckEntry], group: str | None = None, size: int = 0) -> Future[list[Stretch]]:
        self._check_open()
        return self.acks.add(items, group, size or len(items) * ITEM_BYTES)

    def transaction(self, ask: TransactionAsk) -> Future[Committed]:
        """Pushes and acks in the order of the operations, each kind by itself. Fails with LeaseNotHeld, AckRefused or
        QueueFull when it cannot be done, and then nothing was done."""
        pushes: list[PushItem] = []
        acks: list[AckItem] = []
        for operation in ask.operations:
            if isinstance(operation, AckEntry):
                acks.append(_ack(operation))
            else:
                pushes += [_item(entry, ask.producer_sub) for entry in operation]
        self._check_open()
        return self.transactions.add(acks, pushes, ask.required_leases)

    def renew(self, lease_id: str, seconds: int) -> Future[Renewal]:
        self._check_open()
        return self.renewals.add(lease_id, seconds)

    def notify(self, queue: str, partition: str | None) -> None:
        """Somebody says that there are messages: let all who wait for them look, here and elsewhere."""
        self.pops.waiters.announced(queue, partition)
        self.shared.message_available([(queue, partition or DEFAULT_PARTITION)])

    def _check_open(self) -> None:
        if self._stopping:
            raise Stopping("the server is stopping; connect again")

    def _pushed(self, segments: Sequence[Segment]) -> None:
        self._written(len(segments))
        waiters = self.pops.waiters
        if waiters.lines:
            for segment in segments:
                if segment.last_seq:
                    waiters.pushed(segment.queue, segment.partition)
        self.shared.message_available([(each.queue, each.partition) for each in segments if each.last_seq])

    def _freed(self, queue: str, partition: str, group: str) -> None:
        self.pops.waiters.freed(queue, partition, group)
        self.shared.partition_free(queue, partition, group)

    def _written(self, cursors: int) -> None:
        """So many cursors were written: now and then their table wants tidying."""
        self._tidier.note(cursors)
        if self._tidier.due and self._tidying is None and not self._stopping:
            self._tidying = asyncio.get_running_loop().create_task(self._tidy())

    async def _tidy(self) -> None:
        try:
            await self._tidier.run(self.store.pool)
        except (StorageError, asyncpg.PostgresError) as error:
            _log.warning("the cursor table could not be tidied: %s", error)
        finally:
            self._tidying = None

    def stats(self) -> dict[str, Any]:
        """Counters and timings of this worker's engine, fit for JSON."""
        waiters = self.pops.waiters
        return {
            "operations": {
                "push": self.pushes.batcher.stats.shown(),
                "pop": self.pops.batcher.stats.shown(),
                "ack": self.acks.batcher.stats.shown(),
                "transaction": self.transactions.batcher.stats.shown(),
                "renew": self.renewals.batcher.stats.shown(),
            },
            "pop_states": self.pops.tally.shown(),
            "waiting": {"parked": waiters.parked, "keys": waiters.lines},
            "leases": {"remembered": len(self.leases), "given_back": self.pops.returns.count},
            "connections": {"open": self._links.open + self._pop_links.open, "healthy": self.healthy},
            "pending_bytes": self.budget.used,
        } | ({"siblings": self.shared.siblings.stats()} if self.shared.siblings.numbers else {})


def _alone(directory: Directory) -> SharedState:
    return SharedState(Siblings(0, None, {}), directory)


async def _connect(
    config: EngineConfig, *, lazy_commit: bool = False, connect_timeout: float | None = None
) -> asyncpg.Connection:
    return await connect(
        config.dsn,
        connect_timeout=connect_timeout or config.connect_timeout,
        statement_timeout_ms=config.statement_timeout_ms,
        pgbouncer=config.pgbouncer,
        lazy_commit=lazy_commit,
    )


def _item(entry: PushEntry, producer_sub: str | None) -> PushItem:
    return PushItem(
        entry.queue, bytes(entry.payload), entry.partition, entry.transaction_id, entry.trace_id, producer_sub
    )


def _ack(entry: AckEntry) -> AckItem:
    return AckItem(
        entry.partition_id,
        entry.transaction_id,
        status=entry.status or "completed",
        group=entry.consumer_group or QUEUE_MODE,
        lease_id=entry.lease_id or None,
        error=entry.error,
    )
