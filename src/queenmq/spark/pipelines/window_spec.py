"""What a window pipeline computes, as a YAML file or a Python object says it.

Everything is checked when it is read, before Spark starts: a refusal names the field, what was given and what is
allowed. The `name` is part of the ids of all results, so a renamed pipeline is another one and pushes its windows
again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ...wire.names import InvalidValue, check_name
from ..errors import OptionError, PipelineError
from ..options import check_pattern

Kind = Literal["tumbling", "sliding", "session"]
Function = Literal["count", "sum", "min", "max", "avg", "p95"]
KINDS: Final = get_args(Kind)
FUNCTIONS: Final = get_args(Function)
_UNITS: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_PATH: Final = re.compile(r"\$(\.[A-Za-z_][\w-]*|\[[0-9]+\]|\['[^'\]]+'\])*")
_CALL: Final = re.compile(r"([a-z0-9]+) *(?:\( *(\S+) *\))?")
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION: Final = "a duration such as '30 seconds', '5 minutes', '1 hour' or '2 days'"
_SOURCE: Final = "a JSON path of the payload such as $.customer.id, or one of partition, queue"
_TAKEN: Final = ("window", "key")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One figure of a window. `count` without a path counts messages; the others ignore what is not a number."""

    function: Function
    path: str | None = None

    @classmethod
    def parse(cls, where: str, text: object) -> Aggregate:
        found = _CALL.fullmatch(text.strip()) if isinstance(text, str) else None
        allowed = f"count, or one of {', '.join(FUNCTIONS)} of a JSON path, such as sum($.total)"
        if found is None or found[1] not in FUNCTIONS or (found[1] != "count" and not found[2]):
            raise refusal(where, text, allowed)
        if found[2] and not _PATH.fullmatch(found[2]):
            raise refusal(where, text, f"{found[1]} of a JSON path, such as {found[1]}($.total)")
        return cls(found[1], found[2])  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window pipeline. `key` says by what to group: a name, and a JSON path, `partition` or `queue` for each."""

    name: str
    source: str
    target: str
    kind: Kind
    aggregates: Mapping[str, Aggregate]
    size: str | None = None
    slide: str | None = None
    gap: str | None = None
    watermark: str = "10 minutes"
    event_time: str = "created_at"
    key: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checked_name("name", self.name)
        _checked_name("target", self.target)
        try:
            for each in self.source.split(","):
                check_pattern("source", each.strip())
        except OptionError:
            raise refusal("source", self.source, "a queue, a comma-separated list of queues or a pattern") from None
        if any(_matches(each.strip(), self.target) for each in self.source.split(",")):
            raise refusal("target", self.target, f"a queue that is not read, and {self.source} is")
        self._check_window()
        seconds("watermark", self.watermark)
        if self.event_time != "created_at" and not _PATH.fullmatch(self.event_time):
            raise refusal("event_time", self.event_time, "a JSON path of the payload such as $.at, or created_at")
        self._check_columns()

    def shape(self) -> dict[str, Any]:
        """What must stay the same while the state of open windows is kept, as JSON has it."""
        lengths = {name: getattr(self, name) for name in ("size", "slide", "gap")}
        return {
            "name": self.name,
            "key": [list(each) for each in self.key.items()],
            "event_time": self.event_time,
            "window": [self.kind, *(text and seconds("", text) for text in lengths.values())],
            "aggregates": [[name, each.function, each.path] for name, each in self.aggregates.items()],
        }

    def _check_window(self) -> None:
        if self.kind not in KINDS:
            raise refusal("window.kind", self.kind, ", ".join(KINDS))
        wanted = {"tumbling": ("size",), "sliding": ("size", "slide"), "session": ("gap",)}[self.kind]
        for name in ("size", "slide", "gap"):
            given = getattr(self, name)
            if name in wanted:
                seconds(f"window.{name}", given)
            elif given is not None:
                raise refusal(f"window.{name}", given, f"left out: a {self.kind} window has {' and '.join(wanted)}")
        if self.kind == "sliding" and seconds("", self.slide) > seconds("", self.size):
            raise refusal("window.slide", self.slide, f"at most the size, which is {self.size}")

    def _check_columns(self) -> None:
        if not self.aggregates:
            raise refusal("aggregates", {}, "at least one, such as 'orders: count'")
        for where, names in (("key", list(self.key)), ("aggregates", list(self.aggregates))):
            for number, name in enumerate(names):
                if not _FIELD.fullmatch(name):
                    raise refusal(where, name, "names of letters, digits and _")
                if name.lower() in (each.lower() for each in names[:number]):
                    raise refusal(where, name, "names that differ, whatever their case")
        for name in self.aggregates:
            if name.lower() in _TAKEN:
                raise refusal("aggregates", name, f"names other than {' and '.join(_TAKEN)}")
        for name, source in self.key.items():
            if source not in ("partition", "queue") and not _PATH.fullmatch(source):
                raise refusal(f"key.{name}", source, _SOURCE)


def load(path: str) -> WindowSpec:
    """Read a YAML file."""
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise PipelineError(f"the config {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PipelineError(f"the config {path} is not YAML: {' '.join(str(error).split())}") from None
    return parse(found)


def parse(given: object) -> WindowSpec:
    """From what the YAML file holds."""
    fields = _mapping("the config", given)
    known = ("name", "source", "target", "key", "event_time", "window", "watermark", "aggregates")
    _only(fields, known, "")
    window = _mapping("window", fields.get("window"))
    _only(window, ("kind", "size", "slide", "gap"), "window.")
    aggregates = _mapping("aggregates", fields.get("aggregates"))
    keys = _mapping("key", fields.get("key", {}))
    optional = {name: fields[name] for name in ("watermark", "event_time") if name in fields}
    return WindowSpec(
        name=_text("name", fields.get("name")),
        source=_text("source", fields.get("source")),
        target=_text("target", fields.get("target")),
        kind=_text("window.kind", window.get("kind")),  # type: ignore[arg-type]
        size=window.get("size"),
        slide=window.get("slide"),
        gap=window.get("gap"),
        key={name: _text(f"key.{name}", source) for name, source in keys.items()},
        aggregates={name: Aggregate.parse(f"aggregates.{name}", text) for name, text in aggregates.items()},
        **{name: _text(name, value) for name, value in optional.items()},
    )


def refusal(where: str, given: object, allowed: str) -> PipelineError:
    what = "is missing" if given is None else f"is {given!r}"
    return PipelineError(f"{where} {what}; it must be {allowed}")


def seconds(where: str, given: object) -> float:
    """How long a duration is."""
    found = re.fullmatch(r"([0-9]{1,9}) *([a-z]+?)s?", given.strip()) if isinstance(given, str) else None
    if found is None or found[2] not in _UNITS or int(found[1]) == 0:
        raise refusal(where, given, _DURATION)
    return int(found[1]) * _UNITS[found[2]]


def _matches(pattern: str, name: str) -> bool:
    parts = {"*": ".*", "?": "."}
    return re.fullmatch("".join(parts.get(each) or re.escape(each) for each in pattern), name, re.DOTALL) is not None


def _text(where: str, given: object) -> str:
    if not isinstance(given, str):
        raise refusal(where, given, "a text")
    return given


def _mapping(where: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise refusal(where, given, "a mapping: lines of 'name: value'")
    for name in given:
        _text(f"the name {name!r} in {where}", name)
    return given


def _only(given: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"there are {', '.join(known)}"
            raise PipelineError(f"{prefix}{name} is not a field of a window pipeline; {hint}")


def _checked_name(where: str, value: str) -> None:
    try:
        check_name(where, value)
    except InvalidValue:
        raise refusal(where, value, "a name of 1 to 255 characters without control characters") from None
