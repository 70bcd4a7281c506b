"""What the processes of one server tell each other: where there are new messages, who waits for them, and more.

Each worker has an inbox, a datagram socket whose other end all its siblings have; so has the gateway to other servers,
which is one of them. News goes to those who said that somebody waits for that queue; what happens in one turn of the
event loop goes in one datagram. All of it is advice: what is lost costs a waiter the time until its next look, and what
is told in vain costs one look.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

ANYWHERE: Final = ""
"""In place of a queue's name: the waiter names a namespace and task, so any queue may be meant."""
_SINGLY: Final = "\x1f"
_LINGER: Final = 2.0  # seconds for which a queue counts as waited for after its last waiter has left
_RETRY: Final = 0.01  # seconds until a full inbox is tried again
_MOST: Final = 1200  # characters in one datagram: some systems take no more than 2 KB
_MOST_KEPT: Final = 20_000  # entries kept for an inbox that is full
_AT_ONCE: Final = 64

_log = logging.getLogger(__name__)


def singly(queue: str) -> str:
    """What they wait for who want single partitions of this queue, and so to know which of them are leased. No queue
    has such a name."""
    return queue + _SINGLY


class News(msgspec.Struct, array_like=True):
    """`pushed` and `freed`: partitions that have messages now, for everybody or for one group. `waiting` and `rested`:
    queues for which somebody waits at the sender, and for which nobody does any more. `hello`: the sender has just
    begun, nobody waits there, and it wants to know for whom the others wait. `told`: everything else, as the number of
    its kind and its payload."""

    sender: int
    pushed: list[tuple[str, str]] = []
    freed: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    rested: list[str] = []
    hello: bool = False
    told: list[tuple[int, bytes]] = []


class Listener(Protocol):
    """Who hears what the others tell. `attended`: somebody waits at a sibling for this, or nobody does there any more.
    `greeted`: that sibling has just begun."""

    def pushed(self, queue: str, partition: str) -> None: ...

    def freed(self, queue: str, partition: str, group: str) -> None: ...

    def told(self, kind: int, payload: bytes) -> None: ...

    def attended(self, name: str, *, present: bool) -> None: ...

    def greeted(self, sibling: int) -> None: ...


_Said = bool | tuple[int, bytes]


class _Sibling:
    """`unsent`: what it is to be told, each thing once: a kind and names, and with it for `waiting` whether it is so,
    for `told` what it is."""

    __slots__ = ("outbox", "unsent", "waits_for")

    def __init__(self, outbox: socket.socket) -> None:
        self.outbox = outbox
        self.waits_for: set[str] = set()
        self.unsent: dict[tuple[str, ...], _Said] = {}


class Siblings:
    """Make it inside the running event loop. It owns the sockets. Who is alone has no inbox."""

    def __init__(self, number: int, inbox: socket.socket | None, outboxes: Mapping[int, socket.socket]) -> None:
        self._number = number
        self._inbox = inbox
        self._siblings = {other: _Sibling(outbox) for other, outbox in outboxes.items()}
        self._listener: Listener | None = None
        self._loop = asyncio.get_running_loop()
        self._here: Counter[str] = Counter()
        self._resting: dict[str, float] = {}
        self._sending: asyncio.Handle | None = None
        self._retrying: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(News).decode
        self.sent = self.received = self.lost = 0
        for sibling in self._siblings.values():
            sibling.outbox.setblocking(False)
        if inbox is not None:
            inbox.setblocking(False)

    def listen(self, listener: Listener) -> None:
        """Hand on what the others tell, and ask them for whom they wait."""
        self._listener = listener
        if self._inbox is not None:
            self._loop.add_reader(self._inbox, self._read, self._inbox)
        self._tell(self._siblings.values(), ("hello",))

    @property
    def numbers(self) -> list[int]:
        """The siblings there are."""
        return sorted(self._siblings)

    def close(self) -> None:
        for timer in (self._sending, self._retrying, self._sweeping):
            if timer is not None:
                timer.cancel()
        if self._inbox is not None:
            self._loop.remove_reader(self._inbox)
            self._inbox.close()
        for sibling in self._siblings.values():
            sibling.outbox.close()

    # What happens here

    def pushed(self, places: Iterable[tuple[str, str]]) -> None:
        """These partitions, each with its queue's name, have new messages."""
        interested = [sibling for sibling in self._siblings.values() if sibling.waits_for]
        if interested:
            for queue, partition in places:
                self._tell(_those_waiting(interested, queue), ("pushed", queue, partition))

    def freed(self, queue: str, partition: str, group: str) -> None:
        """Nobody holds this partition for the group any more, and it has messages."""
        self._tell(_those_waiting(self._siblings.values(), queue), ("freed", queue, partition, group))

    def tell(self, kind: int, name: tuple[str, ...], payload: bytes, *, concerning: str | None = None) -> None:
        """Something else, to everybody, or to those who wait for `concerning`. Of what has the same name and is not yet
        sent, the last counts."""
        siblings: Iterable[_Sibling] = self._siblings.values()
        if concerning is not None:
            siblings = _those_waiting(siblings, concerning)
        self._tell(siblings, ("told", *name), (kind, payload))

    def tell_one(self, number: int, kind: int, name: tuple[str, ...], payload: bytes) -> None:
        if (sibling := self._siblings.get(number)) is not None:
            self._tell([sibling], ("told", *name), (kind, payload))

    def waited_for(self, name: str) -> bool:
        """Whether somebody waits for this, here or at a sibling, or did a moment ago."""
        if self.waited_for_here(name):
            return True
        return bool(_those_waiting(self._siblings.values(), name))

    def waited_for_here(self, name: str) -> bool:
        return name in self._here or name in self._resting

    def queues_waited_for_here(self) -> list[str]:
        return [name for name in self._here if name != ANYWHERE and not name.endswith(_SINGLY)]

    def glimpsed(self, name: str) -> None:
        """Somebody has asked for this without waiting, and may do so again."""
        if name not in self._here:
            self.arrived(name)
            self.left(name)

    def arrived(self, queue: str | None) -> None:
        """One more line of waiters for this queue; None: for any queue of a namespace."""
        name = queue or ANYWHERE
        self._here[name] += 1
        if self._here[name] == 1 and self._resting.pop(name, None) is None:
            self._tell(self._siblings.values(), ("waiting", name))

    def left(self, queue: str | None) -> None:
        """One line less."""
        name = queue or ANYWHERE
        self._here[name] -= 1
        if not self._here[name]:
            del self._here[name]
            self._resting[name] = self._loop.time() + _LINGER
            if self._sweeping is None:
                self._sweeping = self._loop.call_later(_LINGER, self._sweep)

    def _sweep(self) -> None:
        """Say for which queues nobody has been waiting for a while."""
        self._sweeping = None
        now = self._loop.time()
        for name in [name for name, until in self._resting.items() if until <= now]:
            del self._resting[name]
            self._tell(self._siblings.values(), ("waiting", name), False)
        if self._resting:
            self._sweeping = self._loop.call_at(next(iter(self._resting.values())), self._sweep)

    # Sending

    def _tell(self, siblings: Iterable[_Sibling], entry: tuple[str, ...], so: _Said = True) -> None:
        for sibling in siblings:
            sibling.unsent[entry] = so
            if self._sending is None:
                self._sending = self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._sending = None
        for sibling in self._siblings.values():
            if sibling.unsent and not self._sent_all(sibling):
                self._forget_some(sibling)
                if self._retrying is None:
                    self._retrying = self._loop.call_later(_RETRY, self._retry)

    def _retry(self) -> None:
        self._retrying = None
        self._send()

    def _sent_all(self, sibling: _Sibling) -> bool:
        most = _MOST
        while sibling.unsent:
            entries = _beginning(sibling.unsent, most)
            try:
                sibling.outbox.send(self._encode(_news(self._number, entries)))
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    return False
                most //= 2
                if len(entries) > 1:
                    continue
                self.lost += 1  # a datagram of this system cannot hold the names
            else:
                self.sent += 1
            for entry in entries:
                del sibling.unsent[entry]
        return True

    def _forget_some(self, sibling: _Sibling) -> None:
        """Of too much news nothing is kept: its reader will look by itself. Who waits where is kept."""
        if len(sibling.unsent) > _MOST_KEPT:
            kept = {entry: so for entry, so in sibling.unsent.items() if entry[0] in ("waiting", "hello")}
            self.lost += len(sibling.unsent) - len(kept)
            sibling.unsent = kept

    # Receiving

    def _read(self, inbox: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                datagram = inbox.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("the siblings' news cannot be read: %s", error)
                return
            try:
                news = self._decode(datagram)
            except msgspec.DecodeError:
                self.lost += 1
                continue
            self.received += 1
            self._hear(news)

    def _hear(self, news: News) -> None:
        sibling = self._siblings.get(news.sender)
        listener = self._listener
        if sibling is None or listener is None:
            return
        if news.hello:
            self._note(sibling, listener, (), tuple(sibling.waits_for))
            for name in (*self._here, *self._resting):
                self._tell([sibling], ("waiting", name))
            listener.greeted(news.sender)
        self._note(sibling, listener, news.waiting, news.rested)
        for queue, partition in news.pushed:
            listener.pushed(queue, partition)
        for queue, partition, group in news.freed:
            listener.freed(queue, partition, group)
        for kind, payload in news.told:
            listener.told(kind, payload)

    @staticmethod
    def _note(sibling: _Sibling, listener: Listener, waiting: Iterable[str], rested: Iterable[str]) -> None:
        for name in waiting:
            if name not in sibling.waits_for:
                sibling.waits_for.add(name)
                listener.attended(name, present=True)
        for name in rested:
            if name in sibling.waits_for:
                sibling.waits_for.discard(name)
                listener.attended(name, present=False)

    def stats(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "received": self.received,
            "lost": self.lost,
            "waited_for": {str(number): len(one.waits_for) for number, one in sorted(self._siblings.items())},
        }


def _those_waiting(siblings: Iterable[_Sibling], queue: str) -> list[_Sibling]:
    return [one for one in siblings if queue in one.waits_for or ANYWHERE in one.waits_for]


def _beginning(unsent: dict[tuple[str, ...], _Said], characters: int) -> dict[tuple[str, ...], _Said]:
    """As many as fit, and one at least."""
    taken: dict[tuple[str, ...], _Said] = {}
    for entry, so in unsent.items():
        characters -= len(so[1]) if isinstance(so, tuple) else sum(map(len, entry))
        if taken and characters < 0:
            break
        taken[entry] = so
    return taken


def _news(sender: int, entries: Mapping[tuple[str, ...], _Said]) -> News:
    news = News(sender)
    for entry, so in entries.items():
        if isinstance(so, tuple):
            news.told.append(so)
            continue
        match entry:
            case "pushed", queue, partition:
                news.pushed.append((queue, partition))
            case "freed", queue, partition, group:
                news.freed.append((queue, partition, group))
            case "waiting", queue:
                (news.waiting if so else news.rested).append(queue)
            case _:
                news.hello = True
    return news
