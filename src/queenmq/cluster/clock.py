"""One clock for all servers: the database's, as it was told, going on by itself in between.

The hosts' own clocks may be minutes apart. A server is told the database's time when it begins, and again now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class SharedClock:
    def __init__(self, now_ms: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        self._since = now_ms * 1000 - int(self._monotonic() * 1_000_000)

    def micros(self) -> int:
        return self._since + int(self._monotonic() * 1_000_000)

    def millis(self) -> int:
        return self.micros() // 1000
