"""An inbox for each worker, made once: whoever takes a worker's place finds it, and nobody has to look for it.

An inbox is a pair of datagram sockets. The worker reads from one end, all its siblings write to the other; this process
only keeps both open.
"""

from __future__ import annotations

import socket


class Inboxes:
    def __init__(self, workers: int) -> None:
        """None are needed for a worker that is alone. Raises OSError when no more files may be opened."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            for _ in range(workers if workers > 1 else 0):
                self._pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        except OSError:
            self.close()
            raise

    def of(self, worker: int) -> tuple[int, dict[int, int]]:
        """File descriptors: of its own inbox (-1: none), and for each sibling of the way into that one's."""
        if not self._pairs:
            return -1, {}
        others = {number: pair[1].fileno() for number, pair in enumerate(self._pairs) if number != worker}
        return self._pairs[worker][0].fileno(), others

    def close(self) -> None:
        for pair in self._pairs:
            for end in pair:
                end.close()
