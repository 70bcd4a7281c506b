"""What a worker shares with its siblings and with other servers: one façade for every tier.

    1 queue configurations   told to all when they change, read again from the database now and then
    2 who waits for what     told by queue, so that news goes only to whom it concerns
    3 partition ids          this worker's own memory; the others are told what was deleted
    4 lease hints            which partitions are leased, told to those who want single partitions
    5 servers                who is alive, as the gateway hears it
    6 waiters                the parked pops of this worker, woken from here
    7 group backoff          with the waiters: one looks for all, at growing intervals

All of it is advice. The database decides, and what is wrong here costs time, never a message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from ..domain.queue_config import QueueConfig
from ..domain.queue_configs import QueueConfigs
from . import local, messages
from .caches.lease_hints import LeaseHints
from .local import Local
from .messages import (
    LeaseHintAcquired,
    LeaseHintReleased,
    MalformedPayload,
    Message,
    PartitionDeleted,
    QueueConfigDelete,
    QueueConfigSet,
)
from .packets import Kind
from .siblings import Siblings, singly
from .statistics import CONFIGURED, WAITED_FOR, QueueSets, Statistics

_BRIEF: Final = 0.02  # seconds; a lease that is over before is not worth telling of
_SHARE: Final = 5  # of a lease's time, this part is how long a hint counts
_LEASE_BY_DEFAULT: Final = 60

_log = logging.getLogger(__name__)


class Memory(Protocol):
    """Tiers 1 and 3."""

    @property
    def configs(self) -> QueueConfigs: ...

    def forget_queue(self, queue: str) -> None: ...

    def forget_partitions(self, names: Iterable[tuple[str, str]]) -> None: ...

    def uid(self, queue: str, partition: str) -> str | None: ...

    def stats(self) -> dict[str, Any]: ...


class Room(Protocol):
    """Tiers 6 and 7: where the waiters stand."""

    def pushed(self, queue: str, partition: str) -> None: ...

    def freed(self, queue: str, partition: str, group: str) -> None: ...

    def stats(self) -> dict[str, Any]: ...


class SharedState:
    """Make it inside the running event loop. It owns the siblings. `gateway` is the number of the one who speaks to
    other servers; None: there are none."""

    def __init__(
        self,
        siblings: Siblings,
        memory: Memory,
        *,
        server_id: str = "",
        number: int = 0,
        gateway: int | None = None,
        max_hints: int = 10_000,
    ) -> None:
        self.server_id = server_id
        self.number = number
        self.gateway = gateway
        self.siblings = siblings
        self.memory = memory
        self.hints = LeaseHints(self.alive, max_entries=max_hints)
        self._servers: set[str] = set()
        self._room: Room | None = None
        self._refresh: Callable[[], None] = lambda: None
        self._unknown: Callable[[str], None] = lambda queue: None
        self._loop = asyncio.get_running_loop()
        self._brief: dict[tuple[str, str], tuple[float, str]] = {}
        self._telling: asyncio.TimerHandle | None = None
        self._statistics = Statistics(number, siblings)

    def listen(self, room: Room, refresh: Callable[[], None], unknown: Callable[[str], None]) -> None:
        """`refresh`: read the configurations again; `unknown`: the one of this queue is wanted."""
        self._room = room
        self._refresh = refresh
        self._unknown = unknown
        self.siblings.listen(self)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        self.siblings.close()

    # Tier 1

    def config_changed(self, queue: str, config: QueueConfig) -> None:
        """A queue was created or changed here."""
        self.memory.configs.put(queue, config)
        self._tell(("config", queue), QueueConfigSet(queue, config, config.version))

    def queue_deleted(self, queue: str) -> None:
        """A queue was deleted here: everything that is known of it goes, everywhere."""
        self._forget_queue(queue)
        self._tell(("config", queue), QueueConfigDelete(queue))

    def _forget_queue(self, queue: str) -> None:
        self.memory.forget_queue(queue)
        self.hints.forget_queue(queue)

    # Tier 2

    def arrived(self, queue: str | None, partition: str | None) -> None:
        """One more line of waiters; without a queue: for any queue of a namespace."""
        self.siblings.arrived(queue)
        if queue is not None and partition is not None:
            self._wants(queue)
            self.siblings.arrived(singly(queue))

    def left(self, queue: str | None, partition: str | None) -> None:
        self.siblings.left(queue)
        if queue is not None and partition is not None:
            self.siblings.left(singly(queue))

    def asked(self, queue: str) -> None:
        """Somebody wants a single partition of this queue, and will not wait for it."""
        self._wants(queue)
        self.siblings.glimpsed(singly(queue))

    def _wants(self, queue: str) -> None:
        """As long as nobody here wanted single partitions, we were not told which leases have ended."""
        if not self.siblings.waited_for_here(singly(queue)):
            self.hints.forget_queue(queue)

    def message_available(self, places: Sequence[tuple[str, str]]) -> None:
        """These partitions, each with its queue's name, have new messages. Those who wait here know it already."""
        self.siblings.pushed(places)

    def partition_free(self, queue: str, partition: str, group: str) -> None:
        """Nobody holds it for the group any more, and it has messages."""
        self._no_longer_leased(queue, partition, group)
        self.siblings.freed(queue, partition, group)

    def _no_longer_leased(self, queue: str, partition: str, group: str) -> None:
        uid = self.memory.uid(queue, partition) if self._brief or len(self.hints) else None
        if uid is not None:
            self._released_elsewhere(uid, group)

    def _released_elsewhere(self, partition_uid: str, group: str) -> None:
        """A lease of ours may have been ended by another worker before we told of it: it must not be told any more."""
        self._brief.pop((partition_uid, group), None)
        self.hints.released(partition_uid, group)

    # Tier 3

    def partition_deleted(self, queue: str, partition: str) -> None:
        self.memory.forget_partitions([(queue, partition)])
        self._tell(("partition", queue, partition), PartitionDeleted(queue, partition))

    # Tier 4

    def likely_leased(self, queue: str, partition: str, group: str) -> bool:
        """Whether a look would find it leased. If not, tell `looked` what was found."""
        uid = self.memory.uid(queue, partition) if len(self.hints) else None
        return uid is not None and self.hints.likely_leased(uid, group)

    def looked(self, queue: str, partition: str, group: str, *, leased: bool) -> None:
        uid = self.memory.uid(queue, partition) if len(self.hints) else None
        if uid is not None:
            self.hints.answered(uid, group, leased)

    def lease_acquired(self, queue: str, partition_uid: str, group: str) -> None:
        """A consumer of ours has it. Told in a moment, if it is not over by then, to who wants single partitions."""
        if not self.siblings.waited_for(singly(queue)):
            return
        self._brief[partition_uid, group] = (self._loop.time() + _BRIEF, queue)
        if self._telling is None:
            self._telling = self._loop.call_later(_BRIEF, self._tell_leases)

    def lease_released(self, queue: str, partition_uid: str, group: str) -> None:
        if self._brief.pop((partition_uid, group), None) is None and self.siblings.waited_for(singly(queue)):
            self.hints.released(partition_uid, group)
            hint = LeaseHintReleased(partition_uid, group, self.server_id, queue)
            self._tell(("lease", partition_uid, group), hint, concerning=singly(queue))

    def _tell_leases(self) -> None:
        self._telling = None
        now = self._loop.time()
        for (partition_uid, group), (due, queue) in list(self._brief.items()):
            if due > now + 0.001:
                self._telling = self._loop.call_at(due, self._tell_leases)
                break
            del self._brief[partition_uid, group]
            self._tell_lease(queue, partition_uid, group)

    def _tell_lease(self, queue: str, partition_uid: str, group: str) -> None:
        config = self.memory.configs.get(queue)
        if config is None:
            self._unknown(queue)
            return
        seconds = (config.lease_time or _LEASE_BY_DEFAULT) / _SHARE
        self.hints.acquired(partition_uid, group, self.server_id, queue, seconds)
        ends = int((time.time() + seconds) * 1000)
        hint = LeaseHintAcquired(partition_uid, group, self.server_id, ends, queue)
        self._tell(("lease", partition_uid, group), hint, concerning=singly(queue))

    # Tier 5

    def alive(self, server: str) -> bool:
        return server == self.server_id or server in self._servers

    # What the siblings tell

    def pushed(self, queue: str, partition: str) -> None:
        if self._room is not None:
            self._room.pushed(queue, partition)

    def freed(self, queue: str, partition: str, group: str) -> None:
        self._no_longer_leased(queue, partition, group)
        if self._room is not None:
            self._room.freed(queue, partition, group)

    def attended(self, name: str, *, present: bool) -> None:
        """Only the gateway has to know."""

    def greeted(self, sibling: int) -> None:
        """It asks what it wants to know."""

    def told(self, kind: int, payload: bytes) -> None:
        try:
            if kind < Local.SERVER_SEEN:
                self._hear(messages.decode(Kind(kind), payload))
            else:
                self._hear_locally(Local(kind), local.decode(Local(kind), payload))
        except (ValueError, msgspec.DecodeError, MalformedPayload) as error:
            _log.warning("a sibling says what cannot be read: %s", error)

    def _hear(self, message: Message) -> None:
        match message:
            case QueueConfigSet():
                self.memory.configs.put(message.queue, message.config)
            case QueueConfigDelete():
                self._forget_queue(message.queue)
            case PartitionDeleted():
                self.memory.forget_partitions([(message.queue, message.partition)])
            case LeaseHintAcquired():
                self._heard_of_lease(message)
            case LeaseHintReleased():
                self._released_elsewhere(message.partition_id, message.consumer_group)

    def _heard_of_lease(self, hint: LeaseHintAcquired) -> None:
        """It counts for as long as our own would at most, whatever the other one says."""
        config = self.memory.configs.get(hint.queue)
        if config is None:
            self._unknown(hint.queue)
            return
        most = (config.lease_time or _LEASE_BY_DEFAULT) / _SHARE
        seconds = min(most, hint.expires_at_ms / 1000 - time.time())
        if seconds > 0:
            self.hints.acquired(hint.partition_id, hint.consumer_group, hint.server_id, hint.queue, seconds)

    def _hear_locally(self, kind: Local, notice: Any) -> None:
        match kind:
            case Local.SERVER_SEEN:
                self._servers.add(notice.server_id)
            case Local.SERVER_DEAD:
                self._servers.discard(notice.server_id)
                self.hints.forget_server(notice.server_id)
            case Local.REFRESH:
                self._refresh()
            case Local.STATS_WANTED:
                self._statistics.answer(notice, self.own_stats(), self.own_queues())
            case Local.STATS | Local.QUEUES:
                self._statistics.answered(notice)

    def clock(self, now_ms: int) -> None:
        """The database's time, for the gateway."""
        if self.gateway is not None:
            self.siblings.tell_one(self.gateway, Local.CLOCK, ("clock",), local.encode(local.Clock(now_ms)))

    def _tell(self, name: tuple[str, ...], message: Message, *, concerning: str | None = None) -> None:
        kind, payload = messages.encode(message)
        self.siblings.tell(kind, name, payload, concerning=concerning)

    # Statistics

    def own_stats(self) -> dict[str, Any]:
        """Of this worker: numbers that can be added to those of others, and in `own_queues` what cannot."""
        configs, waiting = self.memory.configs.stats(), self._room.stats() if self._room is not None else {}
        return {
            "queue_config_cache": configs,
            "partition_id_cache": self.memory.stats(),
            "lease_hints": self.hints.stats(),
            "local_sidecars": 1,
            "waiters": {"waiters": waiting.get("waiters", 0)},
            "group_backoff": {name: count for name, count in waiting.items() if name.startswith("groups_")},
            "siblings": {name: count for name, count in self.siblings.stats().items() if isinstance(count, int)},
        }

    def own_queues(self) -> QueueSets:
        return {CONFIGURED: self.memory.configs.snapshot.keys(), WAITED_FOR: self.siblings.queues_waited_for_here()}

    async def stats(self) -> dict[str, Any]:
        """Of this server: its workers together, and the gateway."""
        return await self._statistics.of_server(self.own_stats(), self.own_queues(), self.gateway)
