"""Short words for what the engine's tests ask of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from queenmq.domain.segments import Verdict
from queenmq.engine.acks import Stretch
from queenmq.engine.broker import Broker
from queenmq.engine.requests import PopAsk
from queenmq.storage.pop import PopResult
from queenmq.wire.requests import AckEntry, PushEntry

QUEUE = "orders"


def entry(payload: object, partition: str = "p", tx: str | None = None, queue: str = QUEUE) -> PushEntry:
    return PushEntry(queue, msgspec.Raw(msgspec.json.encode(payload)), partition, tx)


async def push(broker: Broker, *payloads: object, partition: str = "p", queue: str = QUEUE) -> list[Verdict]:
    return (await broker.push([entry(payload, partition, queue=queue) for payload in payloads])).verdicts()


def ask(wait: float = 0.0, batch: int = 100, **more: object) -> PopAsk:
    return PopAsk(**{"queue": QUEUE, "batch": batch, "wait": wait, **more})  # type: ignore[arg-type]


def read(result: PopResult) -> list[object]:
    return [msgspec.json.decode(message.payload) for message in result.messages()]


def acks_of(result: PopResult, status: str | None = None) -> list[AckEntry]:
    return [
        AckEntry(message.transaction_id, claim.partition_uid, status, claim.lease_id)
        for claim in result.claims
        for message in claim.messages()
    ]


def successes(stretches: list[Stretch]) -> list[bool]:
    return [
        success
        for stretch in stretches
        for success in (
            [True] * len(stretch.entries) if stretch.results is None else [result.success for result in stretch.results]
        )
    ]


def parked(broker: Broker) -> int:
    return int(broker.stats()["waiting"]["parked"])


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a condition; fail when it does not come."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  the condition is not ours to signal
            await asyncio.sleep(0.001)
