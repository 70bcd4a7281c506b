"""Asks a server whether it takes connections, by being a client for one round trip.

Only the start of PostgreSQL's protocol (version 3.0) is spoken: the start-up packet, then answers until "ready for
query" or an error. That is the truth every client will meet, and needs no driver and no extra program.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from .connection import DATABASE, USER

PROTOCOL = 196608
TOO_MANY_CONNECTIONS = "53300"
TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    ready: bool
    says: str = ""


def socket_file(directory: Path | str, port: int) -> Path:
    return Path(directory) / f".s.PGSQL.{port}"


def ask(directory: Path | str, port: int) -> Answer:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(TIMEOUT)
            client.connect(str(socket_file(directory, port)))
            client.sendall(_startup_packet())
            answer = _read_answer(client)
            if answer.ready:
                client.sendall(b"X\x00\x00\x00\x04")
            return answer
    except OSError as error:
        return Answer(False, error.strerror or str(error))


def _startup_packet() -> bytes:
    parameters = {"user": USER, "database": DATABASE, "application_name": "queen probe"}
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return struct.pack("!ii", len(body) + 8, PROTOCOL) + body


def _read_answer(client: socket.socket) -> Answer:
    while True:
        kind, length = struct.unpack("!ci", _read(client, 5))
        body = _read(client, length - 4)
        if kind == b"Z":
            return Answer(True)
        if kind == b"E":
            fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
            # A full server is a running server.
            return Answer(fields.get(b"C") == TOO_MANY_CONNECTIONS, fields.get(b"M", ""))


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            raise ConnectionResetError(0, "the server closed the connection")
        data += part
    return data
