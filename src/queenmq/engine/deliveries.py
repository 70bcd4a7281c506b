"""Answers of pops on their last steps: what was handed to a client's connection, and what was not.

A pop with autoAck wins an ordinary lease, though a short one, and is acknowledged after its answer was handed over. So
a client that has left before has taken nothing, and a lost reply of PostgreSQL loses and doubles nothing. Until such an
acknowledgement is settled, further pops of the same group from the same queue wait for it: a client that has its answer
finds what comes next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from ..domain.ids import SUFFIXES
from ..domain.segments import SEPARATOR
from ..storage.pop import Claim, PopResult
from ..wire.requests import AckEntry
from .acks import Acks, Stretch
from .errors import Overloaded
from .leases import LeaseMemory
from .requests import PopAsk
from .returns import Returns

AUTO_LEASE: Final = 10
"""Seconds for which a pop with autoAck holds its messages at most. When its server dies between the answer and the
acknowledgement, they come again after this time."""

_PAUSE: Final = 0.05  # seconds until an acknowledgement for which there was no room is tried again

_log = logging.getLogger(__name__)
_Place = tuple[str, str]  # queue, group


class Deliveries:
    """One per worker."""

    def __init__(self, acks: Acks, leases: LeaseMemory, returns: Returns) -> None:
        self._acks = acks
        self._leases = leases
        self._returns = returns
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Place, set[asyncio.Future[None]]] = {}

    def delivered(self, ask: PopAsk, result: PopResult) -> None:
        """The answer was handed over."""
        if result.lease_id is None or not result.claims:
            return
        settled: asyncio.Future[None] = self._loop.create_future()
        places = {(claim.queue, ask.group) for claim in result.claims}
        for place in places:
            self._open.setdefault(place, set()).add(settled)
        settled.add_done_callback(partial(self._settled, places))
        self._acknowledge(ask, result, settled)

    def undelivered(self, result: PopResult) -> None:
        """Its client has left: the messages are for the next pop."""
        if not result.claims:
            return
        lease = result.lease_id or result.claims[0].lease_id or ""
        for claim in result.claims:
            self._leases.forget(lease, claim.partition_uid)
        self._returns.count += 1
        self._returns.add([lease])

    def before(self, ask: PopAsk) -> Sequence[asyncio.Future[None]]:
        """The acknowledgements for which a pop has to wait."""
        if not self._open:
            return ()
        if ask.queue is not None:
            return tuple(self._open.get((ask.queue, ask.group), ()))
        return [each for (_, group), futures in self._open.items() if group == ask.group for each in futures]

    def after(self, settled: Iterable[asyncio.Future[None]], go: Callable[[], None]) -> None:
        left = list(settled)

        def one_less(future: asyncio.Future[None]) -> None:
            left.remove(future)
            if not left:
                go()

        for future in tuple(left):
            future.add_done_callback(one_less)

    async def idle(self) -> None:
        """Return when every acknowledgement is settled."""
        while self._open:
            await asyncio.wait({each for futures in self._open.values() for each in futures})

    def _acknowledge(self, ask: PopAsk, result: PopResult, settled: asyncio.Future[None]) -> None:
        entries = [_last(claim, result.lease_id or "") for claim in result.claims]
        try:
            future = self._acks.add(entries, ask.group, 0)
        except Overloaded:
            self._loop.call_later(_PAUSE, self._acknowledge, ask, result, settled)
            return
        future.add_done_callback(partial(self._acknowledged, ask, settled))

    def _acknowledged(self, ask: PopAsk, settled: asyncio.Future[None], future: asyncio.Future[list[Stretch]]) -> None:
        if future.cancelled() or future.exception() is not None:
            _log.warning(
                "messages for group %s were delivered with autoAck and could not be acknowledged; they come again: %s",
                ask.group,
                "cancelled" if future.cancelled() else future.exception(),
            )
        settled.set_result(None)

    def _settled(self, places: Iterable[_Place], settled: asyncio.Future[None]) -> None:
        for place in places:
            self._open[place].discard(settled)
            if not self._open[place]:
                del self._open[place]


def _last(claim: Claim, lease_id: str) -> AckEntry:
    """The last message of a claim: its acknowledgement settles those before it."""
    row = claim.segments[-1]
    offset = row.n - 1 - (row.last_seq - min(row.last_seq, claim.to_seq))
    given = row.tx.split(SEPARATOR)[offset].decode() if row.tx is not None else ""
    name = given or row.base[:32] + SUFFIXES[row.base_idx + offset]
    return AckEntry(transaction_id=name, partition_id=claim.partition_uid, lease_id=lease_id)
