"""Somebody who publishes the keys of tokens, on a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Issuer(ThreadingHTTPServer):
    """Publishes `document` with `status`; counts who asks, and can keep them waiting."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.document = b'{"keys":[]}'
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked = 0
        self.open = threading.Event()
        self.open.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/keys"

    def publish(self, *keys: dict[str, Any]) -> None:
        self.document = json.dumps({"keys": keys}).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error here."""


class _Handler(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self.server.asked += 1
        self.server.open.wait(60)
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.document)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@contextmanager
def serving() -> Iterator[Issuer]:
    server = Issuer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
