"""The storage engine against its model: random histories, the same answers, the same state after every step.

Hypothesis invents histories of pushes, pops, acks, expiries, seeks, deletions and transactions, and shrinks the first
where PostgreSQL and `model.Model` disagree. At the end of each, everything left is drained and must be exactly what the
model still has. PROOF_SCALE=20 makes the run that many times longer.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from queenmq.domain.ids import new_id
from queenmq.domain.segments import PushItem
from queenmq.storage.ack import BAD_LEASE, NOT_FOUND, AckItem, AckResult, not_holder
from queenmq.storage.errors import AckRefused, LeaseNotHeld
from queenmq.storage.pop import QUEUE_MODE, Claim, PopResult
from queenmq.storage.store import Store
from queenmq.storage.transactions import Committed
from tests.amounts import ENGINE_HISTORIES, HISTORIES
from tests.conftest import Server
from tests.storage.engine_store import EngineStore
from tests.storage.machine import CURSORS, PARTITIONS, Handle, Machine, World
from tests.storage.model import Ack, Cursor, Death, Group, Moment, Queue, Start, Verdict

HOLDER = "lease_id = $1::uuid and partition_id = (select partition_id from queen.partitions where uid = $2::uuid)"


@dataclass(frozen=True)
class Answer:
    """An ack to make: of a recent delivery, a message in or near it, its fate, and under which lease."""

    back: int
    offset: int
    status: str
    lease: Literal["own", "none", "unknown", "other"]
    by_transaction_id: bool


queue_names = st.sampled_from(["a", "b"])
partition_names = st.sampled_from(["p", "q", "r"])
group_names = st.sampled_from([QUEUE_MODE, "fresh", "since"])
recent = st.integers(0, 5)
transaction_ids = st.sampled_from([None, None, None, "t", "u", "v"])
pushes = st.lists(st.tuples(queue_names, partition_names, transaction_ids), min_size=1, max_size=5)
statuses = st.sampled_from(["completed", "completed", "failed", "failed", "retry", "dlq"])
leases = st.sampled_from(["own", "own", "own", "own", "none", "unknown", "other"])
answers = st.builds(Answer, recent, st.integers(0, 4), statuses, leases, st.booleans())

Run = list[tuple[int, Ack]]
"""The acks of one (partition, group, lease), each with its place in the call."""
Crowds = Counter[str | None]
Chosen = tuple[Handle, Ack, AckItem]


class StorageMachine(Machine):
    @rule(items=pushes)
    def push(self, items: list[tuple[str, str, str | None]]) -> None:
        planned = self.plan(items)
        self.pushed(planned, self.run(self.store.push([item for _, item in planned])))

    # -- pop

    @rule(
        name=queue_names,
        group=group_names,
        batch=st.integers(1, 4),
        partitions=st.integers(1, 3),
        only=st.one_of(st.none(), st.none(), partition_names),
        auto_ack=st.sampled_from([False, False, False, True]),
        back=recent,
    )
    def pop(
        self, name: str, group: str, batch: int, partitions: int, only: str | None, auto_ack: bool, back: int
    ) -> None:
        queue = self.queue(name)
        since = self.moments[-1 - back % len(self.moments)]
        start: Start = "all" if group == QUEUE_MODE else "new" if group == "fresh" else since
        result = self.run(
            self.store.pop(
                *(queue.name, group),
                batch=batch,
                partition=only,
                partitions=partitions,
                auto_ack=auto_ack,
                subscription_mode="new" if start == "new" else "all",
                subscription_from=start.at if isinstance(start, Moment) else None,
            )
        )
        if only is not None and only not in queue.partitions:
            assert not result.claims
            return
        known = self.model.register(queue, group, start if only is None or group == QUEUE_MODE else None)
        self.popped(result, queue, known, start, batch, 1 if only else partitions, only)

    def popped(
        self, result: PopResult, queue: Queue, group: Group, start: Start, batch: int, limit: int, only: str | None
    ) -> None:
        """Every claim is what the model delivers there, the least recently served first, and none is passed over."""
        open_ = [c for c in group.cursors.values() if only in (None, c.partition.name)]
        open_ = [c for c in open_ if c.due or (only and c.unresolved)]
        assert len(result.claims) <= limit
        for claim in result.claims:
            cursor = next(c for c in open_ if c.partition.name == claim.partition)
            open_.remove(cursor)
            earlier = [c for c in open_ if (c.ready or 0) < (cursor.ready or 0)]
            assert not any(self.model.would_deliver(queue, group, c, start) for c in earlier), "served out of turn"
            first = self.delivered(claim, queue, group, cursor, start, batch)
            batch -= len(list(claim.messages()))
            self.handles.append(Handle(queue, cursor.partition, group.name, claim.lease_id, first))
            if claim.lease_id is not None and self.model.comes_alone(queue, cursor):
                assert claim is result.claims[-1], "something came with a message that must come alone"
                batch = 0
        leased = [claim for claim in result.claims if claim.lease_id is not None]
        stopped = bool(leased) and any(self.model.comes_alone(queue, cursor) for cursor in open_)
        full = batch == 0 or len(result.claims) == limit or stopped
        drained = self.drained(queue, group) if full else {cursor.partition.name for cursor in open_}
        for cursor in open_:
            if self.model.would_deliver(queue, group, cursor, start):
                assert full, f"{cursor} was not delivered"
            elif cursor.partition.name in drained:  # a pop that is full may have looked at it before, or not
                self.model.visit(queue, group, cursor, 1, None, start)

    def delivered(self, claim: Claim, queue: Queue, group: Group, cursor: Cursor, start: Start, batch: int) -> int:
        expected = self.model.visit(queue, group, cursor, batch, claim.lease_id, start)
        messages = list(claim.messages())
        assert [(m.seq, int(m.payload)) for m in messages] == [(seq, m.payload) for seq, m in expected]
        for message, (seq, stored) in zip(messages, expected, strict=True):
            assert message.id == self.ids[cursor.partition, seq]
            assert message.transaction_id == (stored.transaction_id or message.id)
        if claim.lease_id is not None:
            assert claim.attempt == cursor.retries.get(expected[0][0], 0) + 1
        return expected[0][0]

    def drained(self, queue: Queue, group: Group) -> set[str]:
        rows = self.sql(CURSORS, self.prefix + "%")
        return {
            row["partition"]
            for row in rows
            if row["drained"] and (row["queue"], row["group"]) == (queue.name, group.name)
        }

    # -- ack

    @precondition(lambda self: self.handles)
    @rule(items=st.lists(answers, min_size=1, max_size=5))
    def ack(self, items: list[Answer]) -> None:
        chosen = [self.ack_item(item) for item in items]
        results = self.run(self.store.ack([item for _, _, item in chosen]))
        self.model.tick()  # what one call settles becomes ready together
        self.acked(chosen, results)

    def acked(self, chosen: list[Chosen], results: list[AckResult], *, alone: bool = True) -> None:
        """The results are those of the model. `alone`: no other request has shared the flush, so that the end of the
        lease can only be the doing of this one."""
        runs = self.runs(chosen)
        groups = {handle: self.registered(handle) for handle in runs}
        crowds = self.crowds({h: run for h, run in runs.items() if groups[h] or (h.lease is None and not h.is_gone())})
        expected: dict[int, tuple[Verdict, bool]] = {}
        for handle, run in runs.items():
            group = groups[handle]
            if group is None and handle.lease is None and not handle.is_gone():
                group = self.model.register(handle.queue, handle.group, "all")  # an ack may be a group's first act
            if group is None:
                refused = Verdict(False, NOT_FOUND if handle.is_gone() else BAD_LEASE, False)
                expected |= {n: (refused, False) for n, _ in run}
                continue
            verdicts, deaths = self.settle(handle, group.cursors[handle.partition], run, crowds)
            self.bury(handle.queue, deaths)
            free = group.cursors[handle.partition].lease is None
            expected |= {n: (verdict, verdict.ok and free) for (n, _), verdict in zip(run, verdicts, strict=True)}
        for n, result in enumerate(results):
            verdict, released = expected[n]
            error = verdict.error if verdict.error != BAD_LEASE else self.refusal(chosen[n][0])
            assert (result.success, result.error, result.dlq) == (verdict.ok, error, verdict.dead)
            assert result.lease_released == released or not alone

    def ack_item(self, answer: Answer) -> Chosen:
        handle = self.recent(answer.back)
        seq = min(handle.first + answer.offset, handle.partition.last)
        if answer.lease != "own":
            other = self.recent(answer.back + 1).lease
            handle = handle._replace(lease={"none": None, "unknown": new_id(), "other": other}[answer.lease])
        ack = Ack(seq, answer.status, f"error {seq}" if answer.offset % 2 else None)
        named = handle.partition.messages[seq - 1].transaction_id or self.ids[handle.partition, seq]
        item = AckItem(handle.partition.uid, named, None, ack.status, handle.group, handle.lease, ack.error)
        if not answer.by_transaction_id:
            item.transaction_id, item.seq = None, seq
        return handle, ack, item

    def runs(self, chosen: list[Chosen]) -> dict[Handle, Run]:
        """What is settled together, in the order of the messages; the handle says where and under which lease."""
        runs: dict[Handle, Run] = {}
        for n, (handle, ack, _) in enumerate(chosen):
            runs.setdefault(handle._replace(first=0), []).append((n, ack))
        return {handle: sorted(run, key=lambda entry: (entry[1].seq, entry[0])) for handle, run in runs.items()}

    def registered(self, handle: Handle) -> Group | None:
        group = None if handle.is_gone() else handle.queue.groups.get(handle.group)
        return group if group is not None and group.registered else None

    def refusal(self, handle: Handle) -> str:
        """A lease that another group holds is refused with the name of that group."""
        for group in handle.queue.groups.values():
            cursor = group.cursors.get(handle.partition)
            if cursor is not None and handle.lease is not None and cursor.lease == handle.lease and not cursor.expired:
                return not_holder(group.name, handle.group)
        return BAD_LEASE

    def crowds(self, runs: dict[Handle, Run]) -> Crowds:
        """How many messages a call fails under each lease."""
        failed = {
            (h.lease, h.partition, ack.seq) for h, run in runs.items() for _, ack in run if ack.status == "failed"
        }
        return Counter(lease for lease, _, _ in failed)

    def settle(
        self, handle: Handle, cursor: Cursor, run: Run, crowds: Crowds, fence: str | None = None
    ) -> tuple[list[Verdict], list[Death]]:
        """`fence`: the lease that counts for acks without one."""
        group = handle.queue.groups[handle.group]
        lease = handle.lease or fence
        return self.model.settle(handle.queue, group, cursor, lease, [ack for _, ack in run], crowds[handle.lease])

    def bury(self, queue: Queue, deaths: list[Death]) -> None:
        for death in deaths:
            self.model.bury(queue, death)

    # -- transactions

    @precondition(lambda self: self.handles)
    @rule(items=st.lists(answers, max_size=3), new=pushes, required=st.lists(st.integers(-1, 5), max_size=2))
    def transaction(self, items: list[Answer], new: list[tuple[str, str, str | None]], required: list[int]) -> None:
        chosen = [c for c in map(self.ack_item, items) if c[0].lease or c[0].is_gone() or self.registered(c[0])]
        needed = [self.recent(back).lease or new_id() if back >= 0 else new_id() for back in required]
        planned = self.plan(new)
        self.model.tick()
        changes = self.trial(self.runs(chosen), needed)
        acks, items_ = [item for _, _, item in chosen], [item for _, item in planned]
        commit = self.commit(acks, items_, needed)
        if changes is None:
            with pytest.raises((AckRefused, LeaseNotHeld)):
                self.run(commit)
            self.find_partitions()
            return
        done = self.run(commit)
        assert all(result.success for result in done.acks)
        for group, cursor, queue, deaths in changes:
            group.cursors[cursor.partition] = cursor
            self.bury(queue, deaths)
        self.pushed(planned, done.pushes)

    def commit(self, acks: list[AckItem], pushes: list[PushItem], needed: list[str]) -> Coroutine[Any, Any, Committed]:
        return self.store.commit(self.store.transaction(acks, pushes, needed))

    def find_partitions(self) -> None:
        """Partitions are made before a transaction begins; one that is refused then leaves them behind, empty."""
        for row in self.sql(PARTITIONS, self.prefix + "%"):
            self.model.ensure_partition(self.model.queues[row["queue"]], row["partition"])

    def trial(
        self, runs: dict[Handle, Run], needed: list[str]
    ) -> list[tuple[Group, Cursor, Queue, list[Death]]] | None:
        """The cursors as they would be, or None when something is refused."""
        held = {
            c.lease
            for q in self.model.queues.values()
            for g in q.groups.values()
            for c in g.cursors.values()
            if not c.expired
        }
        if not held.issuperset(needed) or any(self.registered(handle) is None for handle in runs):
            return None
        trials: dict[int, tuple[Group, Cursor, Queue, list[Death]]] = {}
        crowds = self.crowds(runs)
        for handle, run in runs.items():
            group = handle.queue.groups[handle.group]
            original = group.cursors[handle.partition]
            change = trials.setdefault(id(original), (group, copy.copy(original), handle.queue, []))
            fence = None
            if handle.lease is None and needed:
                fence = next((lease for lease in (original.lease, original.last_lease) if lease in needed), new_id())
            verdicts, deaths = self.settle(handle, change[1], run, crowds, fence)
            change[3].extend(deaths)
            if not all(verdict.ok for verdict in verdicts):
                return None
        return list(trials.values())

    # -- time, leases, groups, queues

    @precondition(lambda self: self.handles)
    @rule(back=recent)
    def expire(self, back: int) -> None:
        handle = self.recent(back)
        group = self.registered(handle)
        if group is not None and handle.lease is not None and group.cursors[handle.partition].lease == handle.lease:
            cursor = group.cursors[handle.partition]
            cursor.expired, cursor.ready = True, self.model.tick()
            self.sql(
                "update queen.partition_consumers set lease_expires_at = clock_timestamp(),"
                f" ready_at = clock_timestamp() where {HOLDER}",
                handle.lease,
                handle.partition.uid,
            )

    @rule()
    def pass_retry_delays(self) -> None:
        now = self.model.tick()
        for cursor in self.cursors():
            if cursor.waiting:
                cursor.waiting, cursor.ready = False, now
        self.sql(
            "update queen.partition_consumers set ready_at = clock_timestamp() where ready_at > clock_timestamp()"
            " and lease_id is null and queue_id in (select queue_id from queen.queues where name like $1)",
            self.prefix + "%",
        )

    @precondition(lambda self: self.handles)
    @rule(back=recent)
    def renew(self, back: int) -> None:
        lease = self.recent(back).lease or new_id()
        holders = self.holders(lease)
        renewal = self.run(self.store.renew(lease, 1000))
        assert renewal.renewed == sum(not cursor.expired for cursor in holders)
        if not renewal.renewed:
            assert renewal.error == ("Lease expired" if holders else "Lease not found")

    @precondition(lambda self: self.handles)
    @rule(back=recent)
    def release(self, back: int) -> None:
        lease = self.recent(back).lease or new_id()
        holders = self.holders(lease)
        assert len(self.run(self.store.release(lease))) == len(holders)
        now = self.model.tick()
        for cursor in holders:
            cursor.give_back()
            cursor.ready = now

    def holders(self, lease: str) -> list[Cursor]:
        return [cursor for cursor in self.cursors() if cursor.lease == lease]

    def cursors(self) -> list[Cursor]:
        groups = [group for queue in self.model.queues.values() for group in queue.groups.values()]
        return [cursor for group in groups for cursor in group.cursors.values()]

    @rule()
    def remember_moment(self) -> None:
        self.moments.append(self.moment())

    @rule(
        name=queue_names,
        group=group_names,
        only=st.one_of(st.none(), partition_names),
        to=st.one_of(st.sampled_from(["end", "beginning"]), recent),
    )
    def seek(self, name: str, group: str, only: str | None, to: Literal["end", "beginning"] | int) -> None:
        where = self.moments[-1 - to % len(self.moments)] if isinstance(to, int) else to
        moved = self.model.seek(self.queue(name), group, where, only)
        place = ("timestamp", where.at) if isinstance(where, Moment) else (where, None)
        row = self.sql("select queen.seek_v1($1, $2, $3, $4, $5) as n", self.queue(name).name, group, only, *place)[0]
        assert row["n"] == moved

    @rule(name=queue_names, group=group_names, forget=st.booleans(), sure=st.sampled_from([False, False, True]))
    def delete_group(self, name: str, group: str, forget: bool, sure: bool) -> None:
        if sure:
            removed = self.model.delete_group(self.queue(name), group, forget=forget)
            row = self.sql("select queen.delete_group_v1($1, $2, $3) as n", group, self.queue(name).name, forget)[0]
            assert row["n"] == removed

    @rule(name=queue_names, sure=st.sampled_from([False, False, False, True]))
    def delete_queue(self, name: str, sure: bool) -> None:
        if sure:
            queue = self.queue(name)
            self.model.delete_queue(queue)
            assert self.run(self.store.delete_queue(queue.name))
            self.create(queue)

    # -- the end

    def teardown(self) -> None:
        """Drain what is left of every group; then everything is acknowledged."""
        if sys.exc_info()[0] is not None or not hasattr(self, "model"):
            return  # the history has failed already, or never began
        self.check_storage()
        self.pass_retry_delays()
        for back in range(len(self.handles)):
            self.expire(back)
        for queue in self.model.queues.values():
            for group in [group for group in queue.groups.values() if group.registered]:
                self.drain(queue, group)
                assert all(cursor.acked == cursor.partition.last for cursor in group.cursors.values())
        for name in self.model.queues:
            self.run(self.store.delete_queue(name))

    def drain(self, queue: Queue, group: Group) -> None:
        name = queue.name.removeprefix(self.prefix)
        while any(cursor.due for cursor in group.cursors.values()):
            self.pop(name, group.name, 100, 10, None, True, 0)
            self.cursors_are_as_in_the_model()


class EngineMachine(StorageMachine):
    """The same through the engine: its own statements, several workers, and acks that share a flush."""

    def commit(self, acks: list[AckItem], pushes: list[PushItem], needed: list[str]) -> Coroutine[Any, Any, Committed]:
        return self.engine.transact(acks, pushes, needed)

    @property
    def engine(self) -> EngineStore:
        assert isinstance(self.store, EngineStore)
        return self.store

    @precondition(lambda self: self.handles)
    @rule(requests=st.lists(st.lists(answers, min_size=1, max_size=4), min_size=2, max_size=4))
    def acks_at_once(self, requests: list[list[Answer]]) -> None:
        """They take effect one after another, in the order in which they arrived."""
        chosen = [[self.ack_item(item) for item in items] for items in requests]
        results = self.run(self.engine.acks([[item for _, _, item in each] for each in chosen]))
        for request, answers_ in zip(chosen, results, strict=True):
            self.model.tick()
            self.acked(request, answers_, alone=False)


def check(machine: type[StorageMachine], opening: Coroutine[Any, Any, Store], histories: int) -> None:
    machine.world = World(opening)
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            machine,
            settings=settings(
                max_examples=histories,
                stateful_step_count=40,
                deadline=None,
                database=None,
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        machine.world.close()


def test_every_history_is_as_in_the_model(embedded_server: Server) -> None:
    name = asyncio.run(embedded_server.create())
    check(StorageMachine, Store.open(embedded_server.database(name), size=1), HISTORIES)
    asyncio.run(embedded_server.drop(name))


def test_every_history_through_the_engine_is_as_in_the_model(embedded_server: Server) -> None:
    name = asyncio.run(embedded_server.create())
    check(EngineMachine, EngineStore.through(embedded_server.database(name), workers=2), ENGINE_HISTORIES)
    asyncio.run(embedded_server.drop(name))
