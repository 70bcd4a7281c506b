"""The JSON of the hot answers: push, pop, ack.

They are put together as text, message by message, from parts that are the same for a whole segment or stretch; payloads
are passed on as they were stored. Whatever may hold a quote or a backslash goes through a JSON encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from ..domain.ids import SUFFIXES
from ..domain.segments import DEFAULT_PARTITION, Receipt, Run, Verdict
from ..engine.acks import Stretch
from ..engine.requests import PopAsk
from ..storage.ack import AckResult
from ..storage.pop import Claim, PopResult, SegmentRow
from ..wire.requests import AckEntry, PushEntry

_encoder: Final = msgspec.json.Encoder()
_ESCAPES: Final = ('"', "\\")


def quoted(value: object) -> str:
    """The JSON of a text, a boolean or null."""
    return _encoder.encode(value).decode()


def push(receipt: Receipt) -> bytes:
    """The body of a 201: one object per item, in the names of both worlds."""
    parts: list[str] = []
    verdicts: list[Verdict] | None = None
    for run in receipt.runs:
        if run.segment.kept is None:
            parts += _queued(run, len(parts))
        else:
            verdicts = receipt.verdicts() if verdicts is None else verdicts
            items = run.segment.items[run.start : run.start + run.length]
            first = len(parts)
            chosen = verdicts[first : first + run.length]
            parts += [_verdict(first + at, *pair) for at, pair in enumerate(zip(items, chosen, strict=True))]
    return f"[{','.join(parts)}]".encode()


def _queued(run: Run, index: int) -> list[str]:
    """A stretch of messages that were all stored."""
    segment, start, length = run
    items = segment.items[start : start + length] if length < len(segment.items) else segment.items
    uid, base = segment.place.uid, segment.base[:32]
    suffixes = SUFFIXES[start : start + length]
    names = [item.transaction_id for item in items]
    if not segment.canonical:
        names = [name or base + suffix for name, suffix in zip(names, suffixes, strict=True)]
        if _needs_escape(names):
            names = [quoted(name)[1:-1] for name in names]
    tail = f'","partition_id":"{uid}","partitionId":"{uid}","trace_id":'
    end = f',"queueName":{quoted(segment.queue)}}}'
    traces = [item.trace_id for item in items]
    if any(traces):
        ends = [(f'"{trace}"' if trace else "null") + end for trace in traces]
        return [
            f'{{"index":{at},"status":"queued","transaction_id":"{name}","transactionId":"{name}",'
            f'"message_id":"{base}{suffix}","messageId":"{base}{suffix}{tail}{last}'
            for at, name, suffix, last in zip(range(index, index + length), names, suffixes, ends, strict=True)
        ]
    tail += "null" + end
    return [
        f'{{"index":{at},"status":"queued","transaction_id":"{name}","transactionId":"{name}",'
        f'"message_id":"{base}{suffix}","messageId":"{base}{suffix}{tail}'
        for at, name, suffix in zip(range(index, index + length), names, suffixes, strict=True)
    ]


def _verdict(index: int, item: PushEntry, verdict: Verdict) -> str:
    """What was refused is `failed`, a status that every client knows; `code` says what kind of failure it was."""
    name = verdict.transaction_id or None
    shown = {
        "index": index,
        "status": verdict.status if verdict.error is None else "failed",
        "transaction_id": name,
        "transactionId": name,
        "message_id": verdict.message_id,
        "messageId": verdict.message_id,
        "partition_id": verdict.partition_id,
        "partitionId": verdict.partition_id,
        "trace_id": item.trace_id,
        "queueName": item.queue,
    }
    if verdict.error is not None:
        shown |= {"queue": item.queue, "partition": item.partition or DEFAULT_PARTITION}
        shown |= {"error": verdict.error, "code": verdict.status}
    return quoted(shown)


def pop(result: PopResult, ask: PopAsk) -> bytes | None:
    """The body of a 200; None when there is nothing to deliver."""
    if not result.claims:
        return None
    group = quoted(ask.group)
    messages: list[str] = []
    for claim in result.claims:
        for row in claim.segments:
            messages += _delivered(row, claim, group)
    first = result.claims[0]
    head = (
        f'{{"success":true,"queue":{quoted(first.queue)},"partition":{quoted(first.partition)},'
        f'"partitionId":"{first.partition_uid}","leaseId":"{first.lease_id or ""}","consumerGroup":{group},'
        f'"partitionsClaimed":{len(result.claims)},"messages":['
    )
    return f"{head}{','.join(messages)}]}}".encode()


def _delivered(row: SegmentRow, claim: Claim, group: str) -> list[str]:
    """The messages of one segment that the claim covers."""
    count = row.n
    first = row.last_seq - count + 1
    low, high = max(0, claim.from_seq - first + 1), count - max(0, row.last_seq - claim.to_seq)
    payloads = row.data.decode().split("\x1e")
    base = row.base[:32]
    suffixes = SUFFIXES[row.base_idx : row.base_idx + count]
    names = _names(row.tx, [base + suffix for suffix in suffixes] if row.tx is None else suffixes, base)
    if low or high < count:
        payloads, suffixes, names = payloads[low:high], suffixes[low:high], names[low:high]
    head = f'{{"id":"{base}'
    tail = (
        f'"createdAt":"{_time(row.created_at)}","partitionId":"{claim.partition_uid}",'
        f'"partition":{quoted(claim.partition)},"queue":{quoted(claim.queue)},"leaseId":"{claim.lease_id or ""}",'
        f'"consumerGroup":{group}}}'
    )
    if row.trace_ids is None and row.subs is None:
        tail = f',"producerSub":null,{tail}'
        return [
            f'{head}{suffix}","transactionId":"{name}","traceId":null,"data":{payload}{tail}'
            for suffix, name, payload in zip(suffixes, names, payloads, strict=True)
        ]
    traces = _column(row.trace_ids, count)[low:high]
    subs = _column(row.subs, count)[low:high]
    return [
        f'{head}{suffix}","transactionId":"{name}","traceId":{trace},"data":{payload},"producerSub":{sub},{tail}'
        for suffix, name, payload, trace, sub in zip(suffixes, names, payloads, traces, subs, strict=True)
    ]


def _names(joined: bytes | None, given: Sequence[str], base: str) -> list[str]:
    """The transactionIds of a segment, fit to stand between quotes; a message without one is named by its id."""
    if joined is None:
        return list(given)
    names = joined.decode().split("\x1e")
    if "" in names:
        names = [name or base + suffix for name, suffix in zip(names, given, strict=True)]
    if b'"' in joined or b"\\" in joined:
        names = [quoted(name)[1:-1] for name in names]
    return names


def _column(joined: bytes | None, count: int) -> list[str]:
    if joined is None:
        return ["null"] * count
    return [quoted(entry or None) for entry in joined.decode().split("\x1e")]


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def acks(stretches: Iterable[Stretch]) -> bytes:
    """The body of a 200: one object per item."""
    parts: list[str] = []
    for stretch in stretches:
        if stretch.results is None:
            parts += _settled(stretch, len(parts))
        else:
            parts += _results(stretch.results, stretch.entries, len(parts))
    return f"[{','.join(parts)}]".encode()


def _settled(stretch: Stretch, index: int) -> Iterator[str]:
    """A stretch that succeeded as a whole."""
    held = stretch.held
    names: Sequence[str] = [entry.transaction_id for entry in stretch.entries]
    if _needs_escape(names):
        names = [quoted(name)[1:-1] for name in names]
    tail = (
        f'","success":true,"error":null,"queueName":{quoted(held and held.queue)},'
        f'"partitionName":{quoted(held and held.partition)},"leaseReleased":{quoted(stretch.released)},"dlq":false}}'
    )
    return (f'{{"index":{at},"transactionId":"{name}{tail}' for at, name in enumerate(names, index))


def _results(results: Sequence[AckResult], entries: Sequence[AckEntry], index: int) -> Iterator[str]:
    for at, (result, entry) in enumerate(zip(results, entries, strict=True), index):
        yield quoted(
            {
                "index": at,
                "transactionId": entry.transaction_id,
                "success": result.success,
                "error": result.error,
                "queueName": result.queue,
                "partitionName": result.partition,
                "leaseReleased": result.lease_released,
                "dlq": result.dlq,
            }
        )


def _needs_escape(names: Sequence[str | None]) -> bool:
    joined = "".join([name for name in names if name])
    return any(escape in joined for escape in _ESCAPES)
