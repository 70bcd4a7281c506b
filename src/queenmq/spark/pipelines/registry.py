"""The pipelines there are, one row each: name, module, what it does, what it needs and what else it takes.

Everything the command line shows or checks before Spark starts is here, so that a wrong command fails at once, also
where Spark is not installed. `needs` and `takes` are names of Arguments.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import get_close_matches
from importlib import import_module
from typing import Final, cast

from ..errors import PipelineError
from ..places import check_place
from .base import Arguments, Run


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`streaming`: it runs until it is stopped, unless asked to do it once, and is restarted when its query fails."""

    name: str
    summary: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    streaming: bool = False

    def check(self, arguments: Arguments) -> None:
        """Refuse what it lacks and what it would ignore, in the words of the command line."""
        for name in self.needs:
            if not getattr(arguments, name):
                raise PipelineError(f"pipeline {self.name} needs {option(name)}; {_USAGE}")
        for each in fields(Arguments):
            given = getattr(arguments, each.name) != each.default
            if given and each.name not in (*self.needs, *self.takes, *_FOR_ALL):
                taken = ", ".join(map(option, (*self.needs, *self.takes))) or "no options of its own"
                raise PipelineError(f"pipeline {self.name} has no {option(each.name)}; it takes {taken}")
        for name in ("lake", "checkpoint", "out"):
            check_place(option(name), getattr(arguments, name) or "")
        since, until = arguments.since, arguments.until
        if since is not None and until is not None and since >= until:
            raise PipelineError(
                f"--to-time is {until.isoformat()}; it must be later than --from-time, which is {since.isoformat()}"
            )

    def command(self, arguments: Arguments) -> str:
        """The command line that asks for it."""
        words = ["queen", "pipeline", "run", self.name]
        for each in fields(Arguments):
            value = getattr(arguments, each.name)
            if value == each.default or each.name in ("database_url", "url"):
                continue
            for one in value if isinstance(value, tuple) else (value,):
                text = one.isoformat() if isinstance(one, datetime) else str(one)
                words += [option(each.name)] if one is True else [option(each.name), text]
        return shlex.join(words)

    def load(self) -> Run:
        """Its function `run`. Imports Spark."""
        return cast(Run, import_module(f"{__package__}.{self.name.replace('-', '_')}").run)


_FOR_ALL: Final = ("once", "database_url", "url")
_USAGE: Final = "see: queen pipeline run --help"
_OPTIONS: Final = {
    "since": "--from-time",
    "until": "--to-time",
    "partitions": "--partition",
    "trigger_seconds": "--trigger",
    "interval_seconds": "--interval",
}
_STREAM: Final = ("checkpoint", "once", "max_messages", "trigger_seconds", "accept_data_loss")
PIPELINES: Final = (
    Pipeline(
        "archive",
        "Copies queues into a lake of Parquet files, exactly once; retention waits for it.",
        needs=("queue", "lake"),
        takes=_STREAM,
        streaming=True,
    ),
    Pipeline(
        "replay",
        "Pushes messages of the lake into their queue or another one, in order; twice adds nothing.",
        needs=("lake",),
        takes=("queue", "to", "since", "until", "partitions", "where"),
    ),
    Pipeline(
        "rollup",
        "Sums up metrics by minute, hour and day.",
        takes=("since", "until"),
    ),
    Pipeline(
        "lag",
        "Reports how far consumer groups are behind, over time.",
        needs=("out",),
        takes=("queue", "interval_seconds"),
    ),
    Pipeline(
        "skew",
        "Reports the hottest and the most unbalanced partitions.",
        needs=("out",),
        takes=("queue", "since", "until"),
    ),
    Pipeline(
        "dlq-report",
        "Reports dead letters, grouped by the shape of their error.",
        needs=("out",),
        takes=("queue", "since", "until"),
    ),
    Pipeline(
        "window",
        "Aggregates a queue in windows of event time, into another queue, exactly once.",
        needs=("config", "checkpoint"),
        takes=_STREAM[1:],
        streaming=True,
    ),
    Pipeline(
        "backfill-check",
        "Compares lake and queue for a range of time and reports every difference.",
        needs=("lake",),
        takes=("queue", "since", "until", "partitions"),
    ),
)


def option(argument: str) -> str:
    """What an argument is called on the command line."""
    return _OPTIONS.get(argument, "--" + argument.replace("_", "-"))


def find(name: str) -> Pipeline:
    for each in PIPELINES:
        if each.name == name:
            return each
    names = [each.name for each in PIPELINES]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    raise PipelineError(f"there is no pipeline {name!r}; {hint}")
