"""Ack: say what became of delivered messages.

Items are gathered into runs, one per request and (partition, group, lease). A run of only completed messages is just
its highest sequence number and is settled with all others in one statement; a run with failures is settled message by
message. Runs of one cursor are settled one after another, in the order in which their requests arrived.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args

from .. import sql
from ..domain.ids import is_uuid
from ..domain.segments import array
from .pool import Executor, translated, undisturbed
from .pop import QUEUE_MODE

AckStatus = Literal["completed", "failed", "retry", "dlq"]
STATUSES: Final = frozenset(get_args(AckStatus))

NOT_FOUND: Final = "Message not found"
BAD_LEASE: Final = "Invalid or expired lease"


@dataclass(slots=True)
class AckItem:
    """One message: by its transactionId, or by its seq when the caller remembers it. No lease means no fencing."""

    partition_uid: str
    transaction_id: str | None = None
    seq: int | None = None
    status: str = "completed"
    group: str = QUEUE_MODE
    lease_id: str | None = None
    error: str | None = None
    request: int = 0  # requests of one cursor take effect in the order of these numbers
    failed_before: int = 0  # messages of its lease that an earlier attempt of its request has failed


@dataclass(slots=True)
class AckResult:
    index: int
    transaction_id: str | None
    success: bool = False
    error: str | None = None
    queue: str | None = None
    partition: str | None = None
    lease_released: bool = False
    dlq: bool = False
    passed: bool = False  # refused, and settled all the same: by another lease, or by this one in an attempt before


@dataclass(slots=True, eq=False)
class Run:
    """What one request says of one lease on one (partition, group), in the order of the messages."""

    partition_id: int
    group_id: int
    lease_id: str | None
    items: list[tuple[int, int, AckItem]]  # (seq, index, item)
    one_by_one: bool = False
    crowd: int = 0  # messages that the request fails under this lease, on all partitions

    def upto(self) -> int:
        return self.items[-1][0]

    def completes(self) -> bool:
        return all(item.status == "completed" for _, _, item in self.items)

    def verdicts(self) -> str | None:
        """The items as `queen.settle` takes them; None when the highest sequence number says it all."""
        if not self.one_by_one and self.completes():
            return None
        return json.dumps([[seq, item.status, item.error, self.crowd] for seq, _, item in self.items])


@dataclass(frozen=True, slots=True)
class Renewal:
    """How many partitions a lease holds now, and until when the first of them; `error` says why it holds none."""

    renewed: int
    expires_at: datetime | None
    error: Literal["Lease not found", "Lease expired"] | None


class Freed(NamedTuple):
    """A partition that nobody holds for the group any more."""

    queue: str
    partition: str
    group: str


async def ack(db: Executor, items: Sequence[AckItem], *, replay: bool = False) -> list[AckResult]:
    """Settle messages; one result per item, in the order given. A bad item does not touch the others.

    `replay` says that the same items may have been settled by an attempt whose answer was lost.
    """
    settlement = Settlement(items)
    await settlement.run(db, replay=replay)
    return settlement.results


class Settlement:
    """Acks on their way. When `run` fails, a part of them may be settled already, and `settled` knows which."""

    def __init__(self, items: Sequence[AckItem]) -> None:
        self._items = items
        self._open = set(range(len(items)))
        self.results: list[AckResult] = []

    def settled(self, first: int, count: int) -> bool:
        """Are the results of these items final?"""
        return self._open.isdisjoint(range(first, first + count))

    async def run(self, db: Executor, *, replay: bool) -> None:
        self.results, runs = await resolve(db, self._items)
        self._open = {index for run in runs for _, index, _ in run.items}
        for batch in disjoint(runs):
            refused = await _settle(db, batch, self.results, replay)
            self._close([run for run in batch if run not in refused])
            if refused:
                await _settle(db, refused, self.results, replay)
                self._close(refused)
        await _name_holders(db, self._items, self.results)

    def _close(self, runs: Sequence[Run]) -> None:
        self._open.difference_update(index for run in runs for _, index, _ in run.items)


async def _settle(db: Executor, batch: list[Run], results: list[AckResult], replay: bool) -> list[Run]:
    """Settle runs that touch different cursors; returns those to be settled again, one by one."""
    verdicts = [run.verdicts() for run in batch]
    rows = await call(
        db,
        [run.partition_id for run in batch],
        [run.group_id for run in batch],
        [run.lease_id for run in batch],
        [run.upto() for run in batch],
        verdicts,
        replay=replay,
    )
    refused = []
    for row in rows:
        run = batch[row["run"] - 1]
        if not report(run, row["result"], row["released"], results) and verdicts[row["run"] - 1] is None:
            run.one_by_one = True
            refused.append(run)
    return refused


async def call_plain(
    db: Executor, pids: list[int], gids: list[int], leases: Sequence[str | None], uptos: list[int]
) -> list[Any]:
    """Settle runs of only completed messages under live leases; a run without a row is not one of them."""
    arguments = (array(pids), array(gids), array(leases), array(uptos))
    async with translated():
        return await undisturbed(partial(db.fetch, sql.query("ack_plain"), *arguments))


async def call(
    db: Executor,
    pids: list[int],
    gids: list[int],
    leases: Sequence[str | None],
    uptos: list[int],
    verdicts: Sequence[str | None],
    *,
    replay: bool,
) -> list[Any]:
    """Settle runs that touch different cursors, as `queen.ack_v2` describes them; one row per run."""
    statement = sql.query("ack")
    async with translated():
        arguments = (array(pids), array(gids), array(leases), array(uptos), verdicts if any(verdicts) else None, replay)
        return await undisturbed(partial(db.fetch, statement, *arguments))


async def resolve(db: Executor, items: Sequence[AckItem]) -> tuple[list[AckResult], list[Run]]:
    """Find the messages. Items that name none get their result here; the others are gathered into runs."""
    results = [AckResult(index, item.transaction_id) for index, item in enumerate(items)]
    usable = [index for index, item in enumerate(items) if _usable(item, results[index])]
    if not usable:
        return results, []
    chosen = [items[index] for index in usable]
    async with translated():
        rows = await db.fetch(
            sql.query("resolve_acks"),
            [item.partition_uid for item in chosen],
            [item.group for item in chosen],
            [item.transaction_id for item in chosen],
            [item.seq for item in chosen],
        )
    runs: dict[tuple[int, int, int, str | None], Run] = {}
    for row in rows:
        index = usable[row["ord"] - 1]
        item, result = items[index], results[index]
        result.queue, result.partition = row["queue_name"], row["partition_name"]
        if row["seq"] is None:
            continue
        group_id = row["group_id"]
        if group_id is None and not item.lease_id:
            # nobody popped for this group yet, but an ack without a lease is allowed to be its first act
            group_id = await db.fetchval(sql.query("register_group_id"), row["queue_name"], item.group)
        if group_id is None:
            result.error = BAD_LEASE
            continue
        lease = item.lease_id.lower() if item.lease_id else None
        key = (item.request, row["partition_id"], group_id, lease)
        runs.setdefault(key, Run(*key[1:], [])).items.append((row["seq"], index, item))
    _count_crowds(runs)
    return results, _joined(runs.values())


def _count_crowds(runs: dict[tuple[int, int, int, str | None], Run]) -> None:
    """How many messages each request fails under each lease: none of several is taken for the culprit."""
    failed: dict[tuple[int, str | None], set[tuple[int, int]]] = {}
    for (request, pid, _, lease), run in runs.items():
        messages = {(pid, seq) for seq, _, item in run.items if item.status == "failed"}
        failed.setdefault((request, lease), set()).update(messages)
    for (request, _, _, lease), run in runs.items():
        run.crowd = len(failed[request, lease]) + run.items[0][2].failed_before


def _joined(runs: Iterable[Run]) -> list[Run]:
    """Runs of one lease that follow each other and only complete messages are one: their order makes no difference."""
    joined: list[Run] = []
    last: dict[tuple[int, int], Run] = {}
    for run in runs:
        before = last.get((run.partition_id, run.group_id))
        if before is not None and before.lease_id == run.lease_id and before.completes() and run.completes():
            before.items += run.items
            continue
        last[run.partition_id, run.group_id] = run
        joined.append(run)
    for run in joined:
        run.items.sort(key=lambda entry: entry[:2])
    return joined


async def _name_holders(db: Executor, items: Sequence[AckItem], results: Sequence[AckResult]) -> None:
    """Where a lease was refused because it is that of another group, say so: the group is what the client forgot."""
    refused = [n for n, result in enumerate(results) if result.error == BAD_LEASE and is_uuid(items[n].lease_id or "")]
    if refused:
        holders = await lease_holders(db, [items[n].lease_id or "" for n in refused])
        for n in refused:
            lease = (items[n].lease_id or "").lower()
            results[n].error = not_holder(holders.get((lease, items[n].partition_uid.lower())), items[n].group)


async def lease_holders(db: Executor, lease_ids: Sequence[str]) -> dict[tuple[str, str], str]:
    """The groups that hold these leases now, by lease and uid of the partition."""
    async with translated():
        rows = await db.fetch(sql.query("lease_holders"), lease_ids)
    return {(str(row["lease_id"]), str(row["uid"])): row["name"] for row in rows}


def not_holder(holder: str | None, group: str) -> str:
    """Why an ack of this group is refused, given the group that holds its lease."""
    if holder is None or holder == group:
        return BAD_LEASE
    given = "names no consumerGroup" if group == QUEUE_MODE else f"is for consumerGroup {group!r}"
    return f"{BAD_LEASE}: consumerGroup {holder!r} holds it, and this ack {given}"


def report(run: Run, answer: str, released: bool, results: list[AckResult]) -> bool:
    """Write the answer for a run into the results of its items; False when it was refused as a whole."""
    settled: dict[str, Any] = json.loads(answer)
    unknown = [{"ok": False, "error": BAD_LEASE}] * len(run.items)
    verdicts: list[dict[str, Any]] = settled.get("items", unknown)
    if len(verdicts) < len(run.items):  # one verdict on the highest message stands for all
        if not verdicts[0]["ok"]:
            return False
        verdicts = verdicts * len(run.items)
    for verdict, (_, index, _) in zip(verdicts, run.items, strict=True):
        result = results[index]
        result.success, result.error, result.dlq = verdict["ok"], verdict.get("error"), verdict.get("dlq", False)
        result.lease_released = released and result.success
        result.passed = not result.success and verdict.get("seq", math.inf) <= settled.get("acked", -1)
    return True


async def renew(db: Executor, lease_id: str, seconds: int) -> Renewal:
    """Hold a lease for at least this many seconds from now, never shorter than it already does."""
    return (await renew_many(db, [(lease_id, seconds)]))[0]


async def renew_many(db: Executor, wanted: Sequence[tuple[str, int]]) -> list[Renewal]:
    """Renew many leases in one statement; one answer for each, in the order given."""
    known = [(lease.lower(), seconds) for lease, seconds in wanted if is_uuid(lease)]
    async with translated():
        rows = await undisturbed(
            partial(db.fetch, sql.query("renew"), [lease for lease, _ in known], [seconds for _, seconds in known])
        )
    answers = {str(row["lease"]): row for row in rows}
    return [_renewal(answers.get(lease.lower())) for lease, _ in wanted]


def _renewal(row: Any) -> Renewal:
    if row is None:
        return Renewal(0, None, "Lease not found")
    if row["renewed"]:
        return Renewal(row["renewed"], row["expires_at"], None)
    return Renewal(0, None, "Lease expired" if row["known"] else "Lease not found")


async def release(db: Executor, lease_ids: Sequence[str], partition_id: int | None = None) -> list[Freed]:
    """Give leases back unused: nothing is counted, the messages are available at once. Says what this has freed."""
    async with translated():
        rows = await undisturbed(partial(db.fetch, sql.query("release"), lease_ids, partition_id))
    return [Freed(*row) for row in rows]


def _usable(item: AckItem, result: AckResult) -> bool:
    if item.status not in STATUSES:
        result.error = f"status must be one of {', '.join(sorted(STATUSES))}, not {item.status!r}"
    elif not is_uuid(item.partition_uid):
        result.error = f"partitionId must be a UUID, not {item.partition_uid!r}"
    elif item.lease_id and not is_uuid(item.lease_id):
        result.error = BAD_LEASE
    else:
        result.error = NOT_FOUND
        return True
    return False


def disjoint(runs: Sequence[Run]) -> list[list[Run]]:
    """Batches in which each (partition, group) stands once; almost always there is one."""
    batches: list[dict[tuple[int, int], Run]] = []
    for run in runs:
        key = (run.partition_id, run.group_id)
        target = next((batch for batch in batches if key not in batch), None)
        if target is None:
            target = {}
            batches.append(target)
        target[key] = run
    return [list(batch.values()) for batch in batches]
