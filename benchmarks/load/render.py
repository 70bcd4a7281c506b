"""Requests as bytes, and what a pop answers.

Everything that does not change is rendered once; per request only ids and a partition go in. transactionIds are UUIDv7
and never repeat. Partition names have one width, so a request of a given shape always has the same length and its
headers are rendered once too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import uuid_utils

from ..workload import payload

_transaction_ids = re.compile(rb'"transactionId": ?"([^"]+)"').findall
_partition = re.compile(rb'"partitionId": ?"([^"]+)"').search
_lease = re.compile(rb'"leaseId": ?"([^"]+)"').search
MOST_PARTITIONS = 100_000
_ANY = "@@@@@"
_HEADERS = (
    "Host: {host}\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
    "User-Agent: python-httpx/0.28.1\r\n"
)
_JSON = "Content-Length: {length}\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushing:
    """The shape of a push: how many items, to how many partitions, how large."""

    queue: str = "bench"
    batch: int = 100
    partitions: int = 100
    spread: bool = False
    """Each item of a push goes to another partition; otherwise all go to one, as with the official clients."""
    payload_bytes: int = 100


def partition_name(number: int) -> str:
    return f"p{number:05d}"


def get(host: str, target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\n{_HEADERS.format(host=host)}\r\n".encode()


def post(host: str, target: str, body: bytes) -> bytes:
    return _head(host, target, len(body)).encode() + body


def _head(host: str, target: str, length: int) -> str:
    return f"POST {target} HTTP/1.1\r\n{_HEADERS.format(host=host)}{_JSON.format(length=length)}\r\n"


def pushes(host: str, shape: Pushing, choose: Callable[[], int] | None = None) -> Callable[[], bytes]:
    """A function that renders the next push, to the partition that `choose` gives: a random one if not said."""
    if not 1 <= shape.partitions <= MOST_PARTITIONS:
        raise ValueError(f"partitions: {shape.partitions} is not between 1 and {MOST_PARTITIONS}")
    template = _push_template(host, shape)
    partitions, batch, new_id = shape.partitions, shape.batch, uuid_utils.uuid7
    chosen = choose or partial(random.Random().randrange, partitions)

    def to_one() -> bytes:
        text = template.replace(_ANY, f"{chosen():05d}")
        return (text % tuple([str(new_id()) for _ in range(batch)])).encode("ascii")

    def to_many() -> bytes:
        first = chosen()
        filling: list[str] = []
        for number in range(first, first + batch):
            filling += (f"{number % partitions:05d}", str(new_id()))
        return (template % tuple(filling)).encode("ascii")

    return to_many if shape.spread else to_one


def _push_template(host: str, shape: Pushing) -> str:
    """A whole request, `%s` where a transactionId goes."""
    partition = "p%s" if shape.spread else f"p{_ANY}"
    items = [
        f'{{"queue":"{shape.queue}","partition":"{partition}","payload":{_payload(number, shape.payload_bytes)},'
        f'"transactionId":"%s"}}'
        for number in range(shape.batch)
    ]
    body = '{"items":[' + ",".join(items) + "]}"
    placeholders = shape.batch * (2 + (2 if shape.spread else 0))
    filled = shape.batch * (36 + (5 if shape.spread else 0))
    return _head(host, "/api/v1/push", len(body) - placeholders + filled) + body


def _payload(number: int, size: int) -> str:
    """The storage benchmarks' 100 bytes, or the same with a longer note."""
    text = payload(number).decode()
    return text[:-2] + "".join(f" {(number * 31 + n) % 1000:03d}" for n in range((size - len(text)) // 4)) + '"}'


def configure(host: str, queue: str) -> bytes:
    return post(host, "/api/v1/configure", b'{"queue":"%b","options":{}}' % queue.encode())


def pop(
    host: str, queue: str, *, batch: int, partition: str | None = None, group: str | None = None, wait_ms: int = 0
) -> bytes:
    wait = f"wait=true&timeout={wait_ms}" if wait_ms else "wait=false"
    of_group = f"&consumerGroup={group}" if group else ""
    place = queue if partition is None else f"{queue}/partition/{partition}"
    return get(host, f"/api/v1/pop/queue/{place}?batch={batch}&{wait}{of_group}")


def claim(body: bytes) -> tuple[list[bytes], bytes, bytes]:
    """What a pop of one partition got: transactionIds, the partitionId and the leaseId."""
    partition, lease = _partition(body), _lease(body)
    if partition is None or lease is None:
        raise ValueError(f"a pop without partitionId or leaseId: {body[:300]!r}")
    return _transaction_ids(body), partition[1], lease[1]


def ack(host: str, transaction_ids: Sequence[bytes], partition_id: bytes, lease_id: bytes, group: str | None) -> bytes:
    """All of one partition's batch is completed."""
    rest = b'","partitionId":"%b","status":"completed","error":null,"leaseId":"%b"}' % (partition_id, lease_id)
    body = b'{"acknowledgments":[{"transactionId":"%b%b],"consumerGroup":%b}' % (
        (rest + b',{"transactionId":"').join(transaction_ids),
        rest,
        b"null" if group is None else b'"%b"' % group.encode(),
    )
    return post(host, "/api/v1/ack/batch", body)
