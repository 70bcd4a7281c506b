"""Transactions: acks and pushes that happen together or not at all.

A push whose transactionId is already stored is a verdict, not an abort: as with a plain push, the statement is run
again without it. After a lost answer the same transaction may be run again with `replay`: its acks and pushes are
recognised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import asyncpg

from .. import sql
from ..domain.ids import is_uuid
from ..domain.segments import Parcel, PushItem, Segment, Verdict
from .ack import BAD_LEASE, AckItem, AckResult, Run, lease_holders, not_holder, report, resolve
from .directory import Directory
from .errors import AckRefused, LeaseNotHeld, PartitionGone, QueueFull, StaleConfig, StorageError, translate
from .pool import Executor, undisturbed
from .push import PushPlan, Sealer

_ATTEMPTS: Final = 50


@dataclass(frozen=True, slots=True)
class Committed:
    acks: list[AckResult]
    pushes: list[Verdict]


class Transaction:
    """One transaction; `commit` may be called again when the first call ended without an answer."""

    def __init__(
        self,
        directory: Directory,
        acks: Sequence[AckItem],
        pushes: Sequence[PushItem],
        required_leases: Sequence[str] = (),
        sealer: Sealer | None = None,
    ) -> None:
        self._acks = acks
        self._required = [lease.lower() for lease in required_leases]
        self._plan = PushPlan([Parcel.of(pushes)], directory, sealer, whole=True)

    @property
    def segments(self) -> list[Segment]:
        """Where the pushes go."""
        return self._plan.segments

    async def commit(self, db: Executor, *, replay: bool = False) -> Committed:
        """Do it. Raises LeaseNotHeld, AckRefused, QueueFull or EncryptionUnavailable when it cannot be done, and then
        nothing was done.

        `replay` says that an earlier call, whose answer was lost, may have done it.
        """
        for lease in self._required:
            if not is_uuid(lease):
                raise LeaseNotHeld(f"required lease {lease} is not held", detail=lease)
        results, runs = await self._resolve(db)
        arguments = (
            self._required,
            replay,
            [run.partition_id for run in runs],
            [run.group_id for run in runs],
            [run.lease_id for run in runs],
            [run.verdicts() for run in runs],
        )
        for _ in range(_ATTEMPTS):
            encoded = await self._plan.prepare(db)
            try:
                row = await undisturbed(
                    partial(db.fetchrow, sql.query("transaction"), *arguments, *encoded.arguments())
                )
            except asyncpg.UniqueViolationError as error:
                await self._plan.recover(db, error)
            except Exception as error:
                known = translate(error)
                if known is None:
                    raise
                if isinstance(known, QueueFull) and await self._plan.drop_stored(db):
                    continue  # what the attempt before has stored fills the queue too
                if isinstance(known, AckRefused):
                    raise await self._explained(db, known, runs) from error
                if not isinstance(known, PartitionGone | StaleConfig):
                    raise known from error
                await self._plan.recover(db, error)
            else:
                return self._committed(row, results, runs)
        raise StorageError(f"a transaction did not come to rest in {_ATTEMPTS} attempts")

    async def _resolve(self, db: Executor) -> tuple[list[AckResult], list[Run]]:
        """Find the acked messages. An ack without a lease of its own is fenced by the required lease that holds it."""
        results, runs = await resolve(db, self._acks)
        found = {index for run in runs for _, index, _ in run.items}
        for result in results:
            if result.error is not None and result.index not in found:
                item = self._acks[result.index]
                raise await self._refusal(db, result.error, [item.lease_id or ""], item, str(result.index))
        for run in runs:
            run.one_by_one = True
            if run.lease_id is None and self._required:
                run.lease_id = await self._holder(db, run)
        return results, runs

    async def _holder(self, db: Executor, run: Run) -> str:
        held = await db.fetchval(sql.query("lease_among"), run.partition_id, run.group_id, self._required)
        if held is None:
            _, index, item = run.items[0]
            raise await self._refusal(db, BAD_LEASE, self._required, item, str(index))
        return str(held)

    async def _explained(self, db: Executor, refused: AckRefused, runs: list[Run]) -> AckRefused:
        """`detail` of the refusal counts the runs from 1."""
        run = runs[int(refused.detail or 1) - 1]
        return await self._refusal(db, str(refused), [run.lease_id or ""], run.items[0][2], refused.detail)

    async def _refusal(
        self, db: Executor, reason: str, leases: Sequence[str], item: AckItem, detail: str | None
    ) -> AckRefused:
        """A lease that another group holds on the partition of the item is named together with that group."""
        known = [lease.lower() for lease in leases if is_uuid(lease)]
        if reason == BAD_LEASE and known:
            holders = await lease_holders(db, known)
            names = [holders.get((lease, item.partition_uid.lower())) for lease in known]
            reason = not_holder(next(filter(None, names), None), item.group)
        return AckRefused(reason, detail=detail)

    def _committed(self, row: asyncpg.Record, results: list[AckResult], runs: list[Run]) -> Committed:
        for run, answer in zip(runs, row["settled"], strict=True):
            report(run, answer, json.loads(answer)["released"], results)
        self._plan.stored(dict(zip(row["push_pids"] or [], row["push_lasts"] or [], strict=True)))
        return Committed(results, self._plan.verdicts())


__all__ = ["AckRefused", "Committed", "LeaseNotHeld", "QueueFull", "Transaction"]
