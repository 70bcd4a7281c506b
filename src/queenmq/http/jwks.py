"""The keys that an issuer publishes at a URL (JSON Web Key Set), fetched in the background.

Keys are fetched again when they are old and when a token names one that is not there, but never more often than every
30 seconds, so that made-up key ids cannot turn the server against its issuer. While the URL cannot be read the keys
that are known stay in use. The URL comes from the configuration alone; nothing in a token leads to a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from http.client import HTTPException
from typing import IO, Final

from .keys import Key, UnusableKey, from_jwks

MAX_BYTES: Final = 1024 * 1024
MAX_AGE: Final = 300.0
PAUSE: Final = 30.0
TIMEOUT: Final = 10.0


class KeySet:
    """The published keys. Use it inside one event loop."""

    def __init__(
        self,
        url: str,
        *,
        changed: Callable[[], None] = lambda: None,
        report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        timeout: float = TIMEOUT,
    ) -> None:
        self._url = url
        self._changed = changed
        self._report = report
        self._clock = clock
        self._timeout = timeout
        self._keys: list[Key] = []
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Have the keys been read at least once?"""
        return self._fetched is not None

    @property
    def may_change(self) -> bool:
        """Is a fetch under way, or may one begin?"""
        return self._fetching is not None or self._tried is None or self._clock() - self._tried >= PAUSE

    def find(self, algorithm: str, kid: str | None) -> Key | None:
        """The key with this id. Without an id: the only key for the algorithm, when there is exactly one."""
        suitable = [key for key in self._keys if key.algorithm == algorithm and kid in (None, key.kid)]
        return suitable[0] if len(suitable) == 1 else None

    def keep_fresh(self) -> None:
        """Begin to fetch when the keys are old; nobody waits for it."""
        if self._fetched is not None and self._clock() - self._fetched >= MAX_AGE and self.may_change:
            self._begin()

    async def refresh(self) -> None:
        """Fetch the keys now, unless that was tried a moment ago. A failure is reported and changes nothing."""
        if self.may_change:
            await asyncio.shield(self._begin())

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _begin(self) -> asyncio.Task[None]:
        """One fetch at a time, shared by everybody who waits for it."""
        if self._fetching is None:
            self._tried = self._clock()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._end)
        return self._fetching

    def _end(self, task: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        try:
            keys = from_jwks(
                await asyncio.wait_for(_in_thread(lambda: _download(self._url, self._timeout)), self._timeout)
            )
        except (OSError, HTTPException, ValueError) as error:
            self._report(f"The keys at JWT_JWKS_URL cannot be read ({_reason(error)}); those known stay in use.")
            return
        self._fetched = self._clock()
        if keys != self._keys:
            self._keys = keys
            self._changed()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys are taken from the configured address or not at all."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, UnusableKey):
        return f"they must be {error}"
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _download(url: str, timeout: float) -> bytes:
    opener = urllib.request.build_opener(_NoRedirects)
    request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "queenmq"})
    try:
        with opener.open(request, timeout=timeout) as response:
            document: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    if len(document) > MAX_BYTES:
        raise UnusableKey(f"in a document of at most {MAX_BYTES} bytes")
    return document


async def _in_thread(download: Callable[[], bytes]) -> bytes:
    """In a thread of its own, which nobody waits for at the end: the event loop's threads would be joined, and a
    server that sends one byte at a time could hold up the stop."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def settle(document: bytes, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(document)
        else:
            answer.set_exception(error)

    def work() -> None:
        document, failure = b"", None
        try:
            document = download()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, document, failure)

    threading.Thread(target=work, name="jwks", daemon=True).start()
    return await answer
