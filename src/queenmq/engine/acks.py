"""Acks: the requests of a flush are settled together, and each gets its own results.

A request is cut into stretches of one lease on one partition. A stretch of only completed messages of a lease that is
remembered is plain: it is just its highest sequence number, and the plain ones of all requests are one set-based call.
Everything else, and what that call refuses, goes message by message through `storage.ack`.

On one cursor (partition and group) requests take effect in the order of their arrival. So the plain call takes what
stands before the first request on that cursor that is not plain; that request and all behind it follow one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import asyncpg

from ..storage import ack as storage
from ..storage.ack import AckItem, AckResult
from ..storage.pop import QUEUE_MODE
from ..wire.requests import AckEntry
from .batcher import LANES, Batcher
from .budget import Budget
from .config import EngineConfig
from .isolation import isolated
from .leases import Held, LeaseMemory
from .links import Links
from .persistence import Unfinished, persist

_PATIENCE: Final = 0.001
_COMPLETED: Final = frozenset({None, "", "completed", "success"})


@dataclass(slots=True)
class Stretch:
    """Consecutive acks of one lease on one partition. `results` is None while all of them succeeded as one.

    `done`: it is settled, whatever becomes of the others of its flush. It must not be asked about again: by then
    another lease may have come and gone, and nobody could say any more whether this one had counted.
    """

    entries: Sequence[AckEntry]
    lease_id: str | None
    partition_uid: str
    held: Held | None = None
    upto: int = 0
    released: bool = False
    done: bool = False
    results: list[AckResult] | None = None


class AckRequest:
    __slots__ = ("_lanes", "failed_before", "future", "group", "size", "stretches", "unsure", "weight")

    def __init__(
        self, stretches: list[Stretch], group: str, size: int, weight: int, future: asyncio.Future[list[Stretch]]
    ) -> None:
        self.stretches = stretches
        self.group = group
        self.size = size
        self.weight = weight
        self.future = future
        self.unsure = False  # one was refused that an attempt before may have settled
        self._lanes = 0
        self.failed_before: dict[str | None, int] = {}  # by lease, what an attempt before has settled

    def lanes(self) -> int:
        """By partition, so that a request never overtakes an earlier one in a flush beside it."""
        if not self._lanes:
            for stretch in self.stretches:
                self._lanes |= 1 << hash(stretch.partition_uid.lower()) % LANES
        return self._lanes

    def cursor(self, stretch: Stretch) -> tuple[str, str]:
        """What the stretch is about, however the client writes the partition's uid."""
        return stretch.partition_uid.lower(), self.group


class Acks:
    """`freed` is told which partitions are free for a group and have more messages, `released` of every lease that has
    ended: its queue, its partition's uid and its group."""

    def __init__(
        self,
        config: EngineConfig,
        links: Links,
        leases: LeaseMemory,
        budget: Budget,
        *,
        freed: Callable[[str, str, str], None],
        released: Callable[[str, str, str], None],
        written: Callable[[int], None],
    ) -> None:
        self._config = config
        self._links = links
        self._leases = leases
        self._freed = freed
        self._released = released
        self._written = written
        self._loop = asyncio.get_running_loop()
        self.batcher: Batcher[AckRequest] = Batcher(
            self._flush,
            patience=_PATIENCE,
            max_items=config.max_items,
            max_flushes=max(1, config.connections // 2),
            gather=config.batch_wait,
            budget=budget,
        )

    def add(self, entries: Sequence[AckEntry], group: str | None, weight: int) -> asyncio.Future[list[Stretch]]:
        future: asyncio.Future[list[Stretch]] = self._loop.create_future()
        self.batcher.add(AckRequest(_stretches(entries), group or QUEUE_MODE, len(entries), weight, future))
        return future

    async def _flush(self, batch: list[AckRequest]) -> None:
        await isolated(batch, self._settle, self.batcher.stats)

    async def _settle(self, batch: list[AckRequest]) -> None:
        patience, stats = self._config.retry_timeout, self.batcher.stats
        await persist(self._links, partial(self._attempt, batch), patience=patience, stats=stats)
        for request in batch:
            if request.future.done():
                continue
            if request.unsure:
                request.future.set_exception(Unfinished("PostgreSQL lost the connection, and then the lease was over"))
            else:
                request.future.set_result(request.stretches)

    async def _attempt(self, batch: list[AckRequest], db: asyncpg.Connection, again: bool) -> None:
        open_ones = [each for request in batch for each in request.stretches if not each.done]
        await self._leases.read(db, [each.lease_id for each in open_ones if each.lease_id])
        if runs := self._plain(batch):
            await self._plainly(runs, db)
        rest = [
            (number, request, stretch)
            for number, request in enumerate(batch)
            for stretch in request.stretches
            if not stretch.done
        ]
        if rest:
            await self._one_by_one(rest, db, again)

    def _plain(self, batch: list[AckRequest]) -> dict[tuple[int, int], list[Stretch]]:
        """What the plain call may take: of each cursor the first requests, while they are plain and of one lease."""
        runs: dict[tuple[int, int], list[Stretch]] = {}
        closed: set[tuple[str, str]] = set()  # cursors of which a request before must be settled first
        for request in batch:
            plain = []
            for stretch in request.stretches:
                if stretch.done:
                    continue
                if self._fits(stretch, request.group):
                    plain.append(stretch)
                else:
                    closed.add(request.cursor(stretch))
            for stretch in plain:
                held = stretch.held
                if held is None or (closed and request.cursor(stretch) in closed):
                    continue
                run = runs.setdefault((held.partition_id, held.group_id), [])
                if run and run[0].lease_id != stretch.lease_id:
                    closed.add(request.cursor(stretch))
                else:
                    run.append(stretch)
        return runs

    def _fits(self, stretch: Stretch, group: str) -> bool:
        """Whether the highest sequence number says it all."""
        stretch.held = self._leases.find(stretch.lease_id, stretch.partition_uid, group)
        if stretch.held is None or any(entry.status not in _COMPLETED for entry in stretch.entries):
            return False
        upto = stretch.held.upto([entry.transaction_id for entry in stretch.entries])
        stretch.upto = upto or 0
        return upto is not None

    async def _plainly(self, runs: dict[tuple[int, int], list[Stretch]], db: asyncpg.Connection) -> None:
        """Settle runs of different cursors; the stretches of one that is refused are not done."""
        keys = list(runs)
        leases = [runs[key][0].lease_id for key in keys]
        uptos = [max([stretch.upto for stretch in runs[key]]) for key in keys]
        rows = await storage.call_plain(db, [pid for pid, _ in keys], [gid for _, gid in keys], leases, uptos)
        self._written(len(keys))
        for number, released, more in rows:
            run = runs[keys[number - 1]]
            held = run[0].held
            for stretch in run:
                stretch.released = released
                stretch.done = True
            if released and held is not None:
                self._leases.forget(leases[number - 1] or "", run[0].partition_uid)
                self._released(held.queue, run[0].partition_uid, held.group)
                if more:
                    self._freed(held.queue, held.partition, held.group)

    async def _one_by_one(
        self, parts: list[tuple[int, AckRequest, Stretch]], db: asyncpg.Connection, again: bool
    ) -> None:
        """Settle the rest, in the order of the requests' numbers."""
        items = [
            _item(entry, request, stretch, number) for number, request, stretch in parts for entry in stretch.entries
        ]
        settlement = storage.Settlement(items)
        try:
            await settlement.run(db, replay=again)
        finally:
            self._note(parts, settlement, again)

    def _note(self, parts: list[tuple[int, AckRequest, Stretch]], settlement: storage.Settlement, again: bool) -> None:
        position = 0
        freed: set[tuple[str, str, str]] = set()
        for _, request, stretch in parts:
            first, position = position, position + len(stretch.entries)
            if not settlement.settled(first, len(stretch.entries)):
                continue
            stretch.done = True
            stretch.results = settlement.results[first:position]
            failed = sum([entry.status == "failed" for entry in stretch.entries])
            request.failed_before[stretch.lease_id] = request.failed_before.get(stretch.lease_id, 0) + failed
            request.unsure |= again and any(result.passed for result in stretch.results)
            for result in stretch.results:
                if result.lease_released and result.queue is not None and result.partition is not None:
                    self._leases.forget(stretch.lease_id or "", stretch.partition_uid)
                    self._released(result.queue, stretch.partition_uid, request.group)
                    freed.add((result.queue, result.partition, request.group))
        for each in freed:
            self._freed(*each)


def _stretches(entries: Sequence[AckEntry]) -> list[Stretch]:
    stretches = []
    start, count = 0, len(entries)
    while start < count:
        lease, uid = entries[start].lease_id, entries[start].partition_id
        end = start + 1
        while end < count and entries[end].lease_id == lease and entries[end].partition_id == uid:
            end += 1
        stretches.append(Stretch(entries if end - start == count else entries[start:end], lease or None, uid))
        start = end
    return stretches


def _item(entry: AckEntry, request: AckRequest, stretch: Stretch, number: int) -> AckItem:
    return AckItem(
        entry.partition_id,
        entry.transaction_id,
        None if stretch.held is None else stretch.held.seq(entry.transaction_id),
        "completed" if entry.status in _COMPLETED else entry.status or "",
        request.group,
        stretch.lease_id,
        entry.error,
        number,
        request.failed_before.get(stretch.lease_id, 0),
    )
