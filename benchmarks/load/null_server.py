"""A server that does next to nothing, in the generator's own process: what is left is the generator's own cost.

It keeps lists of transactionIds in memory and answers in the shape of the real server. A generator that shares one core
with it and still outruns the real server is not the bottleneck.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import cast

_length = re.compile(rb"\r\nContent-Length: (\d+)").search
_transaction_ids = re.compile(rb'"transactionId":"([^"]+)"').findall
_batch = re.compile(rb"[?&]batch=(\d+)").search
_UUID = b"01a1df2a-0230-77d3-a5a1-d0a04744570f"
_PUSHED = (
    b'{"index":%d,"status":"queued","transaction_id":"%b","transactionId":"%b","message_id":"'
    + (_UUID + b'","messageId":"' + _UUID + b'","partition_id":"' + _UUID + b'","partitionId":"' + _UUID)
    + b'","trace_id":null,"queueName":"bench"}'
)
_POPPED = (
    b'{"id":"'
    + _UUID
    + b'","transactionId":"%b","traceId":null,"data":{"note":"'
    + b"x" * 88
    + b'"},"producerSub":null,'
    b'"createdAt":"2026-01-01T00:00:00.000000Z","partitionId":"' + _UUID + b'","partition":"p00000","leaseId":"'
    b"" + _UUID + b'","consumerGroup":"__QUEUE_MODE__"}'
)
_ACKED = (
    b'{"index":0,"transactionId":"' + _UUID + b'","success":true,"error":null,"queueName":"bench",'
    b'"partitionName":"p00000","leaseReleased":true,"dlq":false}'
)


class NullServer:
    """`kept` are the messages that were not popped yet, by push; `waiting` are parked polls and how many they want."""

    def __init__(self) -> None:
        self.kept: deque[list[bytes]] = deque()
        self.waiting: deque[tuple[asyncio.Transport, int]] = deque()

    async def start(self) -> tuple[asyncio.Server, int]:
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return server, int(server.sockets[0].getsockname()[1])

    def handle(self, request: bytes, transport: asyncio.Transport) -> None:
        if request.startswith(b"GET"):
            self.pop(request, transport)
            return
        ids = _transaction_ids(request)
        if request.startswith(b"POST /api/v1/push"):
            transport.write(self.push(ids))
        else:
            transport.write(_http(b"200 OK", b"[" + b",".join([_ACKED] * len(ids)) + b"]"))

    def push(self, ids: list[bytes]) -> bytes:
        self.kept.append(ids)
        while self.kept and self.waiting:
            transport, batch = self.waiting.popleft()
            transport.write(self.take(batch))
        body = b",".join([_PUSHED % (index, one, one) for index, one in enumerate(ids)])
        return _http(b"201 Created", b"[" + body + b"]")

    def pop(self, request: bytes, transport: asyncio.Transport) -> None:
        wanted = _batch(request)
        batch = int(wanted[1]) if wanted else 1
        if self.kept:
            transport.write(self.take(batch))
        elif b"wait=true" in request:
            self.waiting.append((transport, batch))
        else:
            transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    def take(self, batch: int) -> bytes:
        ids = self.kept.popleft()
        if len(ids) > batch:
            self.kept.appendleft(ids[batch:])
        body = b",".join([_POPPED % one for one in ids[:batch]])
        return _http(b"200 OK", b'{"partitionId":"%b","leaseId":"%b","messages":[%b]}' % (_UUID, _UUID, body))


class _Connection(asyncio.Protocol):
    def __init__(self, server: NullServer) -> None:
        self._server = server
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        length = _length(self._data, 0, end + 2)
        if end >= 0 and len(self._data) >= end + 4 + (int(length[1]) if length else 0) and self._transport is not None:
            request, self._data = self._data, b""
            self._server.handle(request, self._transport)


def _http(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
