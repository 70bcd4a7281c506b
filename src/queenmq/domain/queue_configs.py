"""The configurations of queues that a process remembers, so that a push need not ask for them.

They are held as one snapshot: a change makes another dict and puts it in the place of the first, so who reads one sees
all of it at one moment. What is remembered is a hint. The database refuses what was made with a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .queue_config import QueueConfig


class QueueConfigs:
    """Configurations by queue name. Not `enabled`: it remembers nothing."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.hits = 0
        self.misses = 0
        self._snapshot: dict[str, QueueConfig] = {}

    @property
    def snapshot(self) -> Mapping[str, QueueConfig]:
        """All there are at this moment; what changes later does not change this."""
        return self._snapshot

    def __len__(self) -> int:
        return len(self._snapshot)

    def get(self, queue: str) -> QueueConfig | None:
        config = self._snapshot.get(queue)
        if config is None:
            self.misses += 1
        else:
            self.hits += 1
        return config

    def put(self, queue: str, config: QueueConfig) -> bool:
        """Remember a configuration, unless it is not newer than the one that is remembered: then False."""
        return self.put_all({queue: config}) == 1

    def put_all(self, configs: Mapping[str, QueueConfig]) -> int:
        """As `put` for each of them, in one change; the answer is how many were newer."""
        newer = {queue: config for queue, config in configs.items() if self._is_newer(queue, config)}
        if newer and self.enabled:
            self._snapshot = self._snapshot | newer
            return len(newer)
        return 0

    def force(self, queue: str, config: QueueConfig) -> None:
        """Remember what the database has just said, whatever its version."""
        if self.enabled:
            self._snapshot = {**self._snapshot, queue: config}

    def remove(self, queue: str) -> bool:
        return self.remove_all([queue]) == 1

    def remove_all(self, queues: Iterable[str]) -> int:
        """Forget these queues, in one change; the answer is how many were remembered."""
        gone = {queue for queue in queues if queue in self._snapshot}
        if gone:
            self._snapshot = {queue: config for queue, config in self._snapshot.items() if queue not in gone}
        return len(gone)

    def refresh(self, configs: Mapping[str, QueueConfig], asked: Mapping[str, QueueConfig]) -> None:
        """These are all the queues that the database has; `asked` is what was remembered when it was asked. One that
        has changed since, to a higher version, stays. Whatever else is remembered, the database knows better."""
        if self.enabled:
            self._snapshot = {queue: self._newest(queue, config, asked.get(queue)) for queue, config in configs.items()}

    def stats(self) -> dict[str, int]:
        return {"size": len(self), "hits": self.hits, "misses": self.misses}

    def _is_newer(self, queue: str, config: QueueConfig) -> bool:
        known = self._snapshot.get(queue)
        return known is None or config.version > known.version

    def _newest(self, queue: str, config: QueueConfig, before: QueueConfig | None) -> QueueConfig:
        """Of two that are equal, the one that is remembered: what was made from it stays valid."""
        known = self._snapshot.get(queue)
        if known is None or known == config:
            return known or config
        return known if known is not before and known.version > config.version else config
