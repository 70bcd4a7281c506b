"""One request to an ASGI application, without a socket: for what a socket cannot show."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope


def scope(method: str, path: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Scope:
    raw_path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": list(headers),
        "client": None,
        "server": None,
    }


async def ask(
    app: ASGIApp, method: str, path: str, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
    """Status, decoded body and headers of the answer."""
    sent: list[Message] = []
    received = False

    async def receive() -> Message:
        nonlocal received
        if received:
            await asyncio.Event().wait()  # the client stays
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope(method, path, headers), receive, send)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(content) if content else None, sent[0]["headers"]
