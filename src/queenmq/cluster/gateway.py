"""The way from one server to the others: what its workers say goes out in signed packets, what comes in goes to them.

It lives in the supervisor, which outlives every worker, and is one of the siblings: it says on behalf of the other
servers what they wait for, so it hears exactly what concerns them. It tells the other servers what this one waits for,
and that it is alive. Nothing here is a promise: packets are lost, and then somebody looks a little later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from . import local, messages
from .audience import Audience
from .caches.health import Heard as Seen
from .clock import SharedClock
from .datagrams import Address, Datagrams
from .echoes import Echoes
from .local import Local
from .messages import (
    ConsumerDeregistered,
    ConsumerRegistered,
    Heartbeat,
    LeaseHintAcquired,
    LeaseHintReleased,
    MalformedPayload,
    Message,
    MessageAvailable,
    PartitionDeleted,
    PartitionFree,
    QueueConfigDelete,
    QueueConfigSet,
)
from .packets import Drop, Kind, Opener, Packet, PayloadTooLarge, Sealer
from .peers import Peers
from .senders import Heard, Senders
from .siblings import Siblings, singly

_REPEATED_PER_HEARTBEAT: Final = 8  # queues of which it is said again that they are waited for
_WINDOW: Final = 0.01  # seconds in which
_MOST_NEWS: Final = 50  # pieces of news of one queue go out at most
_MOST_TIMES: Final = 10_000
_WARN_EVERY: Final = 60.0

_log = logging.getLogger(__name__)


class Identity(NamedTuple):
    """Who this server is. `session` rises with every start; `floors` are the sessions of the other servers."""

    server_id: str
    secret: bytes
    session: int
    now_ms: int
    floors: Mapping[str, int]


class Gateway:
    """Make it inside the running event loop. It owns the siblings and the datagrams."""

    def __init__(
        self,
        identity: Identity,
        configured: Sequence[tuple[str, int]],
        siblings: Siblings,
        *,
        datagrams: Callable[[Callable[[bytes, Address], None]], Datagrams],
        number: int,
        heartbeat: float = 1.0,
        dead_after: float = 5.0,
    ) -> None:
        self._me = identity.server_id
        self._session = identity.session
        self._number = number
        self._clock = SharedClock(identity.now_ms)
        self._sealer = Sealer(identity.secret, identity.server_id, identity.session, clock=self._clock.micros)
        self._opener = Opener(identity.secret)
        self._senders = Senders(floors=identity.floors, now=self._clock.micros)
        self._siblings = siblings
        self._datagrams = datagrams(self._received)
        self._audience = Audience(Peers(configured, self._datagrams.resolve), siblings, dead_after)
        self._peers = self._audience.peers
        self._echoes = Echoes()
        self._heartbeat = heartbeat
        self._dead_after = dead_after
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._here: Counter[str] = Counter()
        self._turn = 0
        self._news: Counter[str] = Counter()
        self._news_until = 0.0
        self._times: dict[Hashable, int] = {}
        self._stamped = 0
        self._warned = self._complained = -_WARN_EVERY
        self.dropped: Counter[str] = Counter()
        self.too_large = self.held_back = self.targeted = self.broadcast = 0

    def open(self) -> None:
        self._siblings.listen(self)
        self._datagrams.open()
        self._tasks = [
            self._loop.create_task(self._beat()),
            self._loop.create_task(self._peers.keep_looking(self._audience.silent)),
        ]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._echoes.close()
        self._datagrams.close()
        self._siblings.close()

    async def _beat(self) -> None:
        """Say that we are alive, and notice who is not."""
        await self._peers.look_up()
        while True:
            try:
                self._send(Heartbeat(self._clock.millis(), len(self._here)), self._peers.addresses())
                for server in self._audience.take_stock():
                    self._lost(server)
                self._remind()
            except Exception as error:
                self._complain("a heartbeat failed", error)
            await asyncio.sleep(self._heartbeat)

    def _remind(self) -> None:
        """Say again for what we wait, a part of it each time."""
        names = list(self._here)
        first = self._turn % len(names) if names else 0
        self._turn = first + _REPEATED_PER_HEARTBEAT
        for name in names[first : self._turn]:
            self._send(ConsumerRegistered(name, self._me), self._audience.living())

    # What the workers say

    def pushed(self, queue: str, partition: str) -> None:
        self._announce(MessageAvailable(queue, partition, self._stamp()), queue, partition)

    def freed(self, queue: str, partition: str, group: str) -> None:
        self._announce(PartitionFree(queue, partition, group, self._stamp()), queue, partition, group)

    def _stamp(self) -> int:
        """The time, but never the same twice: by it an echo is known."""
        self._stamped = max(self._stamped + 1, self._clock.millis())
        return self._stamped

    def attended(self, name: str, *, present: bool) -> None:
        """Tell the others when the first of our workers begins to wait for something, and when the last one ends."""
        self._here[name] += 1 if present else -1
        if self._here[name] == (1 if present else 0):
            message = ConsumerRegistered(name, self._me) if present else ConsumerDeregistered(name, self._me)
            self._say(("attended", name), message, self._audience.living)
        if not self._here[name]:
            del self._here[name]

    def greeted(self, sibling: int) -> None:
        for server in self._audience.alive():
            self._siblings.tell_one(sibling, Local.SERVER_SEEN, ("server", server), local.encode(local.Server(server)))

    def told(self, kind: int, payload: bytes) -> None:
        try:
            self._told(kind, payload)
        except (ValueError, msgspec.DecodeError) as error:
            self._complain("a worker says what cannot be read", error)

    def _told(self, kind: int, payload: bytes) -> None:
        if kind == Local.STATS_WANTED:
            asked = local.decode(Local.STATS_WANTED, payload)
            answer = local.encode(local.Stats(self._number, asked.question, self.stats()))
            self._siblings.tell_one(asked.by, Local.STATS, ("stats", str(asked.question)), answer)
        elif kind == Local.CLOCK:
            self._clock.set(local.decode(Local.CLOCK, payload).now_ms)
        elif kind < Local.SERVER_SEEN:
            self._pass_on(messages.decode(Kind(kind), payload))

    def _pass_on(self, message: Message) -> None:
        match message:
            case QueueConfigSet() | QueueConfigDelete():
                self._say(("config", message.queue), message, self._audience.living)
            case PartitionDeleted():
                self._say(("partition", message.queue, message.partition), message, self._audience.living)
            case LeaseHintAcquired() | LeaseHintReleased():
                name = ("lease", message.partition_id, message.consumer_group)
                hint, concerned = self._shifted(message, +1), singly(message.queue)
                self._say(name, hint, lambda: self._audience.waiting_for(concerned))

    def _announce(self, message: MessageAvailable | PartitionFree, queue: str, *names: str) -> None:
        """To those who wait for the queue; to those of whom we do not know it, too."""
        now = self._loop.time()
        if now > self._news_until:
            self._news.clear()
            self._news_until = now + _WINDOW
        self._news[queue] += 1
        if self._news[queue] > _MOST_NEWS:
            self.held_back += 1
            return
        if self._say((type(message), queue, *names), message, lambda: self._audience.waiting_for(queue)):
            targeted = set(self._audience.consumers_of(queue)).issuperset(self._audience.waiting_for(queue))
            self.targeted += targeted
            self.broadcast += not targeted

    # Sending

    def _say(self, name: Hashable, message: Message, to: Callable[[], list[Address]]) -> bool:
        """Now, and a few times more. False: there is no server to send it to, or it is too large."""
        sent = self._send(message, to())
        if sent:
            self._echoes.add(name, lambda: self._repeat(message, to))
        return sent

    def _repeat(self, message: Message, to: Callable[[], list[Address]]) -> None:
        self._send(message, to())

    def _send(self, message: Message, addresses: Iterable[Address]) -> bool:
        """One packet serves all: each of them keeps its own count of what it has heard."""
        addresses = list(addresses)
        if not addresses:
            return False
        try:
            packet = self._sealer.seal(*messages.encode(message))
        except PayloadTooLarge:
            self.too_large += 1
            return False
        for address in addresses:
            self._datagrams.send(packet, address)
        return True

    # What other servers say

    def _received(self, datagram: bytes, source: Address) -> None:
        """This process looks after all the others: nothing that arrives here may end it."""
        try:
            self._heard(datagram, source)
        except Exception as error:
            self.dropped["failed"] += 1
            self._complain("a packet could not be dealt with", error)

    def _complain(self, what: str, error: Exception) -> None:
        """Now and then: the next one may come in a moment."""
        if self._loop.time() - self._complained > _WARN_EVERY:
            self._complained = self._loop.time()
            _log.error("%s: %r", what, error, exc_info=error)

    def _heard(self, datagram: bytes, source: Address) -> None:
        packet = self._opener.open(datagram)
        if isinstance(packet, Drop):
            self.dropped[packet.name.lower()] += 1
            return
        if packet.sender == self._me:
            self._heard_myself(packet, source)
            return
        try:
            message = messages.decode(packet.kind, packet.payload)
        except MalformedPayload:
            self.dropped["payload"] += 1
            return
        if getattr(message, "server_id", packet.sender) != packet.sender:  # nobody speaks for another
            self.dropped["payload"] += 1
            return
        heard = self._senders.hear(packet)
        if not heard.fresh:
            self.dropped[heard.name.lower()] += 1
            return
        self._peers.heard(packet.sender, source)
        if heard is Heard.RESTARTED:
            self._audience.forget(packet.sender)
        self._act(packet, message)

    def _heard_myself(self, packet: Packet, source: Address) -> None:
        if packet.session == self._session:
            self._peers.ours(source)
            self.dropped["own"] += 1
            return
        self.dropped["namesake"] += 1
        if packet.session > self._session and self._loop.time() - self._warned > _WARN_EVERY:
            self._warned = self._loop.time()
            _log.warning(
                "another server, at %s, says it is %s too: give each its own QUEEN_SERVER_ID", source, self._me
            )

    def _act(self, packet: Packet, message: Message) -> None:
        server = packet.sender
        match message:
            case Heartbeat():
                self._alive(server, packet.session, message)
            case MessageAvailable(queue=queue, partition=partition, ts=ts):
                if self._first_time((server, queue, partition), ts):
                    self._siblings.pushed([(queue, partition)])
            case PartitionFree(queue=queue, partition=partition, consumer_group=group, ts=ts):
                if self._first_time((server, queue, partition, group), ts):
                    self._siblings.freed(queue, partition, group)
            case ConsumerRegistered():
                self._audience.registered(message.queue, server)
            case ConsumerDeregistered():
                self._audience.deregistered(message.queue, server)
            case LeaseHintAcquired() | LeaseHintReleased():
                self._pass_in(server, message)
            case QueueConfigSet() | QueueConfigDelete():
                self._siblings.tell(packet.kind, ("config", message.queue), packet.payload)
            case PartitionDeleted():
                self._siblings.tell(packet.kind, ("partition", message.queue, message.partition), packet.payload)

    def _pass_in(self, server: str, hint: LeaseHintAcquired | LeaseHintReleased) -> None:
        name = ("lease", hint.partition_id, hint.consumer_group)
        # The echo of a hint may come after a third server has said that the lease is over.
        if isinstance(hint, LeaseHintReleased) or self._first_time((server, *name), hint.expires_at_ms):
            kind, payload = messages.encode(self._shifted(hint, -1))
            self._siblings.tell(kind, name, payload, concerning=singly(hint.queue))

    def _shifted(self, hint: LeaseHintAcquired | LeaseHintReleased, direction: int) -> Message:
        """Between servers the time is that of the clock they share; workers have this host's."""
        if isinstance(hint, LeaseHintReleased):
            return hint
        apart = self._clock.millis() - int(time.time() * 1000)
        return msgspec.structs.replace(hint, expires_at_ms=max(0, hint.expires_at_ms + direction * apart))

    def _first_time(self, what: Hashable, ts: int) -> bool:
        """False for the echo of what we have heard."""
        if self._times.pop(what, None) == ts:
            self._times[what] = ts
            return False
        if len(self._times) >= _MOST_TIMES:
            del self._times[next(iter(self._times))]
        self._times[what] = ts
        return True

    def _alive(self, server: str, session: int, beat: Heartbeat) -> None:
        seen = self._audience.beat(server, session, beat.queues)
        if seen is Seen.AGAIN:
            return
        _log.info("server %s is %s", server, "back" if seen is Seen.BACK else "here")
        self._siblings.tell(Local.SERVER_SEEN, ("server", server), local.encode(local.Server(server)))
        self._siblings.tell(Local.REFRESH, ("refresh",), b"")
        if (address := self._peers.address(server)) is not None:
            self._send(Heartbeat(self._clock.millis(), len(self._here)), [address])
            for name in self._here:
                self._send(ConsumerRegistered(name, self._me), [address])

    def _lost(self, server: str) -> None:
        _log.warning("server %s has not been heard for %g s", server, self._dead_after)
        self._siblings.tell(Local.SERVER_DEAD, ("server", server), local.encode(local.Server(server)))

    def stats(self) -> dict[str, Any]:
        sockets, told = self._datagrams, self._audience.stats()
        told["consumer_presence"] |= {
            "notifications_targeted": self.targeted,
            "notifications_broadcast": self.broadcast,
        }
        return {
            "server_id": self._me,
            "transport": {
                "port": sockets.port,
                "peers": len(self._peers.addresses()),
                "sent": sockets.sent,
                "received": sockets.received,
                "bytes_sent": sockets.bytes_sent,
                "bytes_received": sockets.bytes_received,
                "unsent": sockets.unsent,
                "too_large": self.too_large,
                "held_back": self.held_back,
                "repeated": self._echoes.said,
                "dropped": dict(self.dropped),
            },
            **told,
        }
