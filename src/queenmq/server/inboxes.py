"""An inbox for each worker, made once: whoever takes a worker's place finds it, and nobody has to look for it.

An inbox is a pair of datagram sockets. The worker reads from one end, all its siblings write to the other; this process
keeps both open. It has an inbox itself, behind those of the workers, when it speaks to other servers.
"""

from __future__ import annotations

import os
import socket


class Inboxes:
    def __init__(self, processes: int) -> None:
        """None are needed for a worker that is alone. Raises OSError when no more files may be opened."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            for _ in range(processes if processes > 1 else 0):
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

    def opened(self, number: int) -> tuple[socket.socket, dict[int, socket.socket]]:
        """The same as sockets, for a process that is this one."""
        inbox, outboxes = self.of(number)
        return socket.socket(fileno=os.dup(inbox)), {
            other: socket.socket(fileno=os.dup(fd)) for other, fd in outboxes.items()
        }

    def close(self) -> None:
        for pair in self._pairs:
            for end in pair:
                end.close()
