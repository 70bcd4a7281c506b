"""The address of a pop: path and query. Addresses repeat with every poll, so what one means is remembered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from ...engine.requests import PopAsk
from ...storage.pop import QUEUE_MODE
from ...wire.names import InvalidValue, check_name
from ..errors import InvalidField, NotFound
from ..limits import Limits
from .spelling import Names
from .text import Query, segment

AUTOPILOT_BATCH: Final = 200
AUTOPILOT_PARTITIONS: Final = 10
MAX_PARTITIONS: Final = 1000

_NAMES: Final = Names(
    (
        "autoAck",
        "autopilot",
        "batch",
        "conflation",
        "consumerGroup",
        "namespace",
        "partitions",
        "subscriptionFrom",
        "subscriptionMode",
        "task",
        "timeout",
        "wait",
    )
)
_MODES: Final[Mapping[str, Literal["all", "new"]]] = {
    "all": "all",
    "from_beginning": "all",
    "new": "new",
    "new-only": "new",
}
_REMEMBERED: Final = 4096
_REMEMBERED_LENGTH: Final = 2048
_LOST_PLUS: Final = re.compile(r" (?=\d\d:?\d\d$)")


@dataclass(frozen=True, slots=True)
class PopAddress:
    """What one address means. `autopilot`: the sizes were left to us, and the answer says which ones we chose."""

    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    group: str
    batch: int
    partitions: int
    wait: float
    auto_ack: bool
    subscription_mode: Literal["all", "new"]
    subscription_from: datetime | Literal["now"] | None
    autopilot: bool

    def ask(self) -> PopAsk:
        """A fresh one each time: the engine keeps it as long as the pop lives."""
        return PopAsk(
            self.queue,
            self.partition,
            self.namespace,
            self.task,
            self.group,
            self.batch,
            self.partitions,
            self.wait,
            self.auto_ack,
            self.subscription_mode,
            self.subscription_from,
        )


class PopParser:
    """One per worker: it remembers addresses."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[tuple[str, bytes], PopAddress] = {}

    def __call__(self, path: str, query: bytes) -> PopAddress:
        """`path` is what follows /api/v1/pop, undecoded. Raises NotFound, InvalidField or InvalidValue."""
        key = (path, query)
        address = self._known.get(key)
        if address is None:
            address = self._parse(path, Query(query))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if len(path) + len(query) <= _REMEMBERED_LENGTH:
                self._known[key] = address
        return address

    def _parse(self, path: str, query: Query) -> PopAddress:
        limits = self._limits
        queue, partition = self._names(path)
        _check_parameters(query.names)
        namespace, task = (None, None) if queue is not None else self._scope(query)
        if query.flag("conflation"):
            raise InvalidField("conflation is not supported by this server", field="conflation")
        autopilot = query.flag("autopilot")
        batch, partitions = limits.default_batch_size, 1
        if autopilot:
            batch, partitions = min(AUTOPILOT_BATCH, limits.max_batch_size), AUTOPILOT_PARTITIONS
        timeout = query.integer("timeout", round(limits.default_timeout * 1000), 0, round(limits.max_timeout * 1000))
        return PopAddress(
            queue,
            partition,
            namespace,
            task,
            self._group(query),
            query.integer("batch", batch, 1, limits.max_batch_size),
            1 if partition is not None else query.integer("partitions", partitions, 1, MAX_PARTITIONS),
            timeout / 1000 if query.flag("wait") else 0.0,
            query.flag("autoAck"),
            self._mode(query),
            _start(query),
            autopilot,
        )

    def _names(self, path: str) -> tuple[str | None, str | None]:
        """Queue and partition, as far as the path gives them."""
        match path.split("/"):
            case [""] | ["", ""]:
                return None, None
            case ["", "queue", queue]:
                return self._name("queue", segment("queue", queue)), None
            case ["", "queue", queue, "partition", partition]:
                return self._name("queue", segment("queue", queue)), self._name(
                    "partition", segment("partition", partition)
                )
        raise NotFound("There is no such route: pop takes /queue/<queue> or /queue/<queue>/partition/<partition>")

    def _scope(self, query: Query) -> tuple[str | None, str | None]:
        namespace = self._name("namespace", query.text("namespace"), empty=True) or None
        task = self._name("task", query.text("task"), empty=True) or None
        if namespace is None and task is None:
            raise InvalidField("namespace or task is required when the path names no queue", field="namespace")
        return namespace, task

    def _group(self, query: Query) -> str:
        return self._name("consumerGroup", query.text("consumerGroup"), empty=True) or QUEUE_MODE

    def _name(self, field: str, value: str, *, empty: bool = False) -> str:
        check_name(field, value, empty=empty, longest=self._limits.max_name_length)
        return value

    def _mode(self, query: Query) -> Literal["all", "new"]:
        mode = query.text("subscriptionMode")
        if not mode:
            return self._limits.default_subscription_mode
        if mode not in _MODES:
            raise InvalidValue("subscriptionMode", mode, "all, from_beginning, new or new-only")
        return _MODES[mode]


def _check_parameters(names: list[str]) -> None:
    if "partition" in names:
        place = "/api/v1/pop/queue/<queue>/partition/<partition>"
        raise InvalidField(f"partition is not a parameter but part of the path: {place}", field="partition")
    _NAMES.check(names)


def _start(query: Query) -> datetime | Literal["now"] | None:
    text = query.text("subscriptionFrom")
    if not text:
        return None
    if text == "now":
        return "now"
    try:
        # a + that was not encoded has become a space
        moment = datetime.fromisoformat(_LOST_PLUS.sub("+", text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidValue("subscriptionFrom", text, "now or an ISO 8601 time") from None
