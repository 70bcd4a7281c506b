"""Pops: many requests advance together through the states of `pop_states`, a few statements for all of them.

A flush of many requests is spread over connections. A pop that finds nothing and may wait is parked; one whose client
has left takes no message, and a lease it has won meanwhile is given back at once. With autoAck the lease is
acknowledged when the answer is delivered (`deliveries`); a pop that may not wait and finds nothing looks again for a
moment when such an acknowledgement is under way on another worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import asyncpg

from .. import sql
from ..cluster.shared_state import SharedState
from ..domain.cipher import Cipher
from ..domain.segments import SEPARATOR
from ..storage import pop as storage
from ..storage.ack import release
from ..storage.directory import Directory, GroupPlace
from ..storage.pool import translated
from ..storage.pop import PopResult, SegmentRow
from .acks import Acks
from .batcher import Batcher, fail
from .config import EngineConfig
from .deliveries import AUTO_LEASE, Deliveries
from .errors import Stopping
from .isolation import isolated
from .leases import LeaseMemory
from .links import Links
from .persistence import persist
from .pop_jobs import PopJob
from .pop_states import State, Tally
from .requests import PopAsk
from .returns import Returns
from .waiters import Waiters

_log = logging.getLogger(__name__)

_PATIENCE: Final = 0.001  # a consumer waits: a second flush starts beside one that takes longer than this
_LEAST_PER_LINK: Final = 64
_LEAST_BYTES: Final = 65_536
_OVERTIME: Final = 0.025  # seconds: who waits with little patience still gets what is there
_ATTEMPTS_TO_RESOLVE: Final = 2
_FIRST_LOOK_AGAIN: Final = 0.002  # seconds, doubled each time,
_LOOKS_AGAIN: Final = 6  # so often: together about an eighth of a second


class Pops:
    """The pops of one worker."""

    def __init__(
        self,
        config: EngineConfig,
        links: Links,
        directory: Directory,
        leases: LeaseMemory,
        cipher: Cipher | None,
        acks: Acks,
        *,
        written: Callable[[int], None],
        freed: Callable[[str, str, str], None],
        shared: SharedState,
    ) -> None:
        self._config = config
        self._links = links
        self._directory = directory
        self._leases = leases
        self._cipher = cipher
        self._written = written
        self._freed = freed
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._unreadable: set[str] = set()
        self.tally = Tally()
        self.waiters: Waiters[PopJob] = Waiters(config, self._again, shared)
        self.batcher: Batcher[PopJob] = Batcher(
            self._flush,
            patience=_PATIENCE,
            max_items=10_000,
            max_flushes=max(1, config.connections // 2),
            gather=config.batch_wait,
        )
        self.returns = Returns(config, links, self.batcher.stats, freed)
        self.deliveries = Deliveries(acks, leases, self.returns)

    def add(self, ask: PopAsk) -> asyncio.Future[PopResult]:
        future: asyncio.Future[PopResult] = self._loop.create_future()
        job = PopJob(ask, future, self.tally.begin(), self._loop.time())
        if ask.wait > 0:
            if self._stopping:
                raise Stopping("the server is stopping; connect again")
            job.deadline = self._loop.time() + ask.wait
            job.ticket = self.waiters.ticket()
            job.timer = self._loop.call_at(job.deadline, self._expired, job)
            future.add_done_callback(partial(self._done, job))
            if not self.waiters.enter(job, wait=ask.wait):
                self.tally.move(job.progress, State.EMPTY)
                job.parked = True
                return future
        elif ask.queue is not None and ask.partition is not None:
            self._shared.asked(ask.queue)
        acks = self.deliveries.before(ask)
        if acks:
            self.deliveries.after(acks, partial(self.batcher.add, job))
        else:
            self.batcher.add(job)
        return future

    def _again(self, job: PopJob) -> None:
        job.parked = False
        self.tally.move(job.progress, State.PENDING)
        self.batcher.add(job)

    def _expired(self, job: PopJob) -> None:
        """Its time is up. While it is on its way, the answer it comes back with counts a moment longer; what comes
        after that is given back."""
        if job.future.done():
            return
        late = self._loop.time() > job.deadline + _OVERTIME / 2
        if job.parked or late:
            job.future.set_result(PopResult([], "empty"))
        elif not late:
            job.timer = self._loop.call_at(job.deadline + _OVERTIME, self._expired, job)

    def _done(self, job: PopJob, _: object) -> None:
        """It was answered, or its client has left."""
        if job.timer is not None:
            job.timer.cancel()
        if job.parked:
            job.parked = False
            job.gone = True
            self.waiters.remove(job)

    def stop_waiting(self) -> None:
        """Answer everybody who is parked with nothing, and let nobody park any more."""
        self._stopping = True
        for job in self.waiters.all():
            if not job.future.done():
                job.future.set_result(PopResult([], "empty"))

    async def idle(self) -> None:
        await self.batcher.idle()
        await self.returns.finish()

    async def _flush(self, jobs: list[PopJob]) -> None:
        jobs = self._without_hope(jobs)
        if not jobs:
            return
        chunks = self._spread(jobs)
        stats = self.batcher.stats
        if len(chunks) == 1:
            await isolated(jobs, self._advance, stats, self._failed)
        else:
            await asyncio.gather(*[isolated(chunk, self._advance, stats, self._failed) for chunk in chunks])

    def _without_hope(self, jobs: list[PopJob]) -> list[PopJob]:
        """Answer those whose partition is leased, as far as we have heard; the others are left."""
        left = []
        for job in jobs:
            queue, partition = job.ask.queue, job.ask.partition
            if (
                queue is None
                or partition is None
                or job.future.done()
                or not self._shared.likely_leased(queue, partition, job.ask.group)
            ):
                left.append(job)
            else:
                self.tally.move(job.progress, State.RESOLVING)
                self._nothing(job, PopResult([], "empty"))
        return left

    def _failed(self, jobs: list[PopJob], error: Exception) -> None:
        fail(jobs, error)
        doubtful = [job.lease_id for job in jobs if job.asked]
        self.returns.add(doubtful)
        self.returns.doubt(doubtful)
        for job in jobs:
            self.tally.move(job.progress, State.FAILED)
            if job.ask.wait > 0:
                self.waiters.failed(job)

    def _spread(self, jobs: list[PopJob]) -> list[list[PopJob]]:
        """Few requests go together; many are dealt out to several connections."""
        parts = max(1, min(len(jobs) // _LEAST_PER_LINK, self._config.connections // 4))
        return [jobs[part::parts] for part in range(parts)]

    async def _advance(self, jobs: list[PopJob]) -> None:
        patience, stats = self._config.retry_timeout, self.batcher.stats
        results = await persist(self._links, partial(self._attempt, jobs), patience=patience, stats=stats)
        for job, result in zip(jobs, results, strict=True):
            self._settle(job, result)

    async def _attempt(self, jobs: list[PopJob], db: asyncpg.Connection, again: bool) -> list[PopResult]:
        await self._disown(db, [job for job in jobs if job.asked], lost=again)
        results: dict[int, PopResult] = {}
        open_jobs = [job for job in jobs if not job.future.done()]
        for _ in range(_ATTEMPTS_TO_RESOLVE):
            for job in open_jobs:
                if job.progress.state is not State.RESOLVING:
                    self.tally.move(job.progress, State.RESOLVING)
            await self._date(db, [job for job in open_jobs if job.undated and job.ask.queue and not self._known(job)])
            await self._resolve(db, open_jobs)
            await self._note(db, [job for job in open_jobs if job.early and not self._decided(job)])
            asked = [job for job in open_jobs if job.groups]
            for job in asked:
                self.tally.move(job.progress, State.LEASING)
                job.asked = True
            won = await self._lease(db, asked) if asked else []
            open_jobs = []
            for job, result in zip(asked, won, strict=True):
                results[id(job)] = result
                if result.reason in ("unknown_group", "unknown_partition"):  # not what we remember; look it up again
                    self._forget(job, result)
                    self.tally.move(job.progress, State.RESOLVING)
                    open_jobs.append(job)
            if not open_jobs:
                break
        found = [results.get(id(job)) or PopResult([], "empty") for job in jobs]
        empty = [(job, one) for job, one in zip(jobs, found, strict=True) if not one.claims and not job.future.done()]
        await self._date(db, [job for job, _ in empty if job.undated and job.ask.wait > 0])
        await self._look_behind(db, empty)
        return found

    async def _date(self, db: asyncpg.Connection, jobs: list[PopJob]) -> None:
        """Find out when these have arrived by the database's clock, before it is too late to tell."""
        if jobs:
            asked = self._loop.time()
            clock = await storage.clock(db)
            for job in jobs:
                job.date(clock, asked)

    async def _note(self, db: asyncpg.Connection, jobs: list[PopJob]) -> None:
        """Their groups start now, on what is not there yet, whichever pop finds it."""
        if jobs:
            now = self._loop.time()
            await storage.await_subscriptions(db, [job.awaited(now) for job in jobs])
            for job in jobs:
                job.noted = True

    async def _look_behind(self, db: asyncpg.Connection, empty: list[tuple[PopJob, PopResult]]) -> None:
        """Of the pops that may not wait: did they find nothing only because others are just being acknowledged?"""
        for job, result in empty:
            soon = result.ready_in is not None and result.ready_in <= AUTO_LEASE
            job.held = (
                soon and job.ask.wait <= 0 and await storage.held_by_auto_acks(db, list(job.groups), job.partition_id)
            )

    async def _lease(self, db: asyncpg.Connection, jobs: list[PopJob]) -> list[PopResult]:
        """What they get comes in one answer and is held in memory together, so they share the room for it."""
        share = max(_LEAST_BYTES, self._config.max_pop_bytes // len(jobs))
        now = self._loop.time()
        return await storage.pop(db, [job.request(now) for job in jobs], share)

    async def _disown(self, db: asyncpg.Connection, jobs: list[PopJob], *, lost: bool) -> None:
        """What the attempt before this one may have won for these would be held until its leases ran out."""
        if not jobs:
            return
        leases = [job.lease_id for job in jobs]
        if lost:
            self.returns.doubt(leases)
        for freed in await release(db, leases):
            self._freed(*freed)
        for job in jobs:
            job.new_lease()
            job.asked = False

    def _forget(self, job: PopJob, result: PopResult) -> None:
        ask = job.ask
        if ask.queue is not None and ask.partition is not None:  # with the group, its queue and partition may be gone
            self._directory.forget_partitions([(ask.queue, ask.partition)])
        if result.reason == "unknown_group":
            for queue in job.groups.values():
                self._directory.forget_group(queue, ask.group)
        job.groups = {}

    async def _resolve(self, db: asyncpg.Connection, jobs: Sequence[PopJob]) -> None:
        """Ids for the names. What is not remembered is asked for, for all jobs at once as far as it goes."""
        named = {(job.ask.queue or "", job.ask.partition) for job in jobs if job.ask.partition is not None}
        places = await self._directory.find(db, list(named)) if named else {}
        new = [job for job in jobs if job.ask.queue is not None and self._known(job) is None]
        existing = await self._existing(db, new) if len(new) > 1 else {job.ask.queue for job in new}
        for job in jobs:
            ask = job.ask
            job.groups = {}
            if ask.queue is None:
                job.groups = await self._matching(db, job)
                continue
            if ask.partition is not None:
                place = places.get((ask.queue, ask.partition))
                if place is None:
                    continue
                job.partition_id = place.partition_id
            known = self._known(job)
            if known is None and ask.queue in existing:
                known = await self._register(db, job, ask.queue)
            if known is not None:
                job.groups = {known.group_id: ask.queue}

    def _known(self, job: PopJob) -> GroupPlace | None:
        """The group as far as it is remembered and says enough for this pop."""
        known = self._directory.group(job.ask.queue or "", job.ask.group)
        return None if known is None or (not known.decided and job.mode is not None) else known

    def _decided(self, job: PopJob) -> bool:
        """As far as is remembered, the group has a start for every partition of its queue that is made later."""
        known = self._directory.group(job.ask.queue or "", job.ask.group)
        return job.ask.partition is not None and known is not None and known.decided

    async def _existing(self, db: asyncpg.Connection, jobs: Sequence[PopJob]) -> set[str | None]:
        async with translated():
            rows = await db.fetch(sql.query("existing_queues"), list({job.ask.queue for job in jobs}))
        return {row["name"] for row in rows}

    async def _register(self, db: asyncpg.Connection, job: PopJob, queue: str) -> GroupPlace | None:
        start = job.since if job.mode == "new" else job.start if job.mode == "timestamp" else None
        return await storage.register(db, self._directory, queue, job.ask.group, mode=job.mode, start=start)

    async def _matching(self, db: asyncpg.Connection, job: PopJob) -> dict[int, str]:
        """The group on every queue of a namespace and task, the most important queue first."""
        ask = job.ask
        async with translated():
            rows = await db.fetch(sql.query("matching_queues"), ask.namespace, ask.task, ask.group)
        groups: dict[int, str] = {}
        for row in rows:  # what the database knows is newer than what we remember
            group_id = row["group_id"]
            if group_id is None:
                self._directory.forget_group(row["name"], ask.group)
                await self._date(db, [job] if job.undated else [])
                known = await self._register(db, job, row["name"])
                group_id = None if known is None else known.group_id
            if group_id is not None:
                groups[group_id] = row["name"]
        return groups

    def _settle(self, job: PopJob, result: PopResult) -> None:
        if job.asked and job.ask.queue is not None and job.ask.partition is not None:
            leased = not result.claims and (result.ready_in or 0) > 0
            self._shared.looked(job.ask.queue, job.ask.partition, job.ask.group, leased=leased)
        job.asked = False
        if job.progress.state is State.PENDING:  # its client had left before anything was asked
            self.tally.move(job.progress, State.RESOLVING)
        if not result.claims:
            self._nothing(job, result)
            return
        self.tally.move(job.progress, State.FETCHING)
        self._written(len(result.claims))
        if job.future.done():
            self.returns.count += 1
            self.returns.add([job.lease_id])
            self.tally.move(job.progress, State.FAILED)
            if job.ask.wait > 0:
                self.waiters.left(job)
            return
        self._fetch(job, result)
        job.future.set_result(result)
        if not job.ask.confirmed:
            self.deliveries.delivered(job.ask, result)
        self.tally.move(job.progress, State.COMPLETED)
        if job.ask.wait > 0:
            self.waiters.found(job)

    def _nothing(self, job: PopJob, result: PopResult) -> None:
        ask = job.ask
        self.tally.move(job.progress, State.EMPTY)
        if job.future.done():
            if ask.wait > 0:
                self.waiters.left(job)
        elif ask.wait > 0 and not self._stopping and self._loop.time() < job.deadline:
            job.parked = True
            self.waiters.park(job, result.ready_in, job.groups.values())
        elif job.held and job.looks < _LOOKS_AGAIN and not self._stopping:
            self._loop.call_later(_FIRST_LOOK_AGAIN * 2.0**job.looks, self._again, job)
            job.looks += 1
        else:
            job.future.set_result(result)
            if ask.wait > 0:
                self.waiters.left(job)

    def _fetch(self, job: PopJob, result: PopResult) -> None:
        claims = result.claims
        for claim in claims:
            claim.queue = job.groups[claim.group_id]
            if any(row.enc for row in claim.segments):
                claim.segments = [self._decrypted(claim.queue, row) for row in claim.segments]
        self._leases.remember(job.lease_id, job.ask.group, claims)
        if job.ask.auto_ack:
            result.lease_id = job.lease_id
        for claim in claims:
            if job.ask.auto_ack:
                claim.lease_id = claim.lease_expires_at = None
            else:
                self._shared.lease_acquired(claim.queue, claim.partition_uid, job.ask.group)

    def _decrypted(self, queue: str, row: SegmentRow) -> SegmentRow:
        """What cannot be read is delivered as it is stored: refusing it would lose it, or hold up the partition."""
        if not row.enc or "1" not in row.enc:
            return row
        payloads = row.data.split(SEPARATOR)
        sealed = [position for position, mark in enumerate(row.enc) if mark == "1"]
        opened = (
            self._cipher.open([payloads[position] for position in sealed]) if self._cipher else [None] * len(sealed)
        )
        for position, payload in zip(sealed, opened, strict=True):
            if payload is not None:
                payloads[position] = payload
        if None in opened and queue not in self._unreadable:
            self._unreadable.add(queue)
            _log.warning("messages of queue %s cannot be decrypted with this server's key; delivered as stored", queue)
        return row._replace(data=SEPARATOR.join(payloads), enc=None)
