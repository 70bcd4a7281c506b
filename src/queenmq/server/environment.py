"""The environment as a server reads it: which variables are its settings, and what there is to say of the others.

An environment is shared. Kubernetes puts variables for every Service into every pod, so beside a Service called `queen`
or `queen-pg` there are names that look like settings and are none. Other servers of this family have settings that this
one does not need. Only a name that is neither is worth a warning, because it may be a setting that was misspelt.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queenmq.server.rows import Row

WITHOUT_EFFECT: Final = {
    "DB_IDLE_TIMEOUT": "connections to PostgreSQL stay open",
    "EVICTION_INTERVAL": "`queen db sweep` evicts when it is run",
    "FILE_BUFFER_DIR": "while PostgreSQL is away, pushes are answered 503 and nothing is buffered on disk",
    "FILE_BUFFER_EVENTS_PER_FILE": "nothing is buffered on disk",
    "FILE_BUFFER_FLUSH_MS": "nothing is buffered on disk",
    "FILE_BUFFER_MAX_BATCH": "nothing is buffered on disk",
    "METRICS_AGGREGATE_INTERVAL_S": "the pipeline `rollup` sums up metrics when it is run",
    "METRICS_SAMPLE_INTERVAL_MS": "the server takes no samples",
    "QUEEN_SYNC_CACHE_SHARDS": "a worker has one thread, so its caches need no shards",
    "RETENTION_INTERVAL": "`queen db sweep` deletes when it is run",
}
"""Settings of other servers of this family, each with the reason why it changes nothing here."""

_PREFIX: Final = "QUEEN_"
_LISTED: Final = "`queen config --markdown`"
# For programs that use a server or Spark, the official clients among them, and may share a server's environment.
_FOR_CLIENTS: Final = (
    "QUEEN_URL",
    "QUEEN_TOKEN",
    "QUEEN_SPARK_JAVA",
    "QUEEN_SPARK_LOG",
    "QUEEN_CLIENT_LOG",
    "QUEEN_PROXY_CLOUD",
    "QUEEN_SDK_POP_AUTOPILOT",
    "QUEEN_STREAMS_LOG",
)
# What Kubernetes sets for a Service called queen, or queen-something.
_OF_SERVICE: Final = re.compile(
    r"QUEEN(?:_[A-Z0-9_]+)?_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:ADDR|PORT|PROTO))?)"
)
_ADDRESS_OF_SERVICE: Final = re.compile(r"(?:tcp|udp|sctp)://(?:\[[0-9a-fA-F:.%]+\]|[^/:\s]+):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Environment:
    """`values`: everything, with each setting under its own name. `written`: the name under which it was given.
    `unknown` and `without_effect`: one sentence for each name."""

    values: Mapping[str, str]
    written: Mapping[str, str]
    problems: Sequence[str]
    unknown: Sequence[str]
    without_effect: Sequence[str]

    @property
    def warnings(self) -> list[str]:
        return [*self.unknown, *self.without_effect]


def read(environ: Mapping[str, str], rows: Sequence[Row]) -> Environment:
    values = {name: text for name, text in environ.items() if not _is_of_kubernetes(name, text)}
    written: dict[str, str] = {}
    problems: list[str] = []
    for row in rows:
        given = [name for name in (row.name, *row.aliases) if name in values]
        texts = {values.pop(name) for name in given}
        if len(texts) > 1:
            problems.append(f"{given[1]} is another name of {row.name}, and they differ; drop {given[1]}.")
        if given:
            written[row.name] = given[0]
            values[row.name] = environ[given[0]]
    without_effect = [
        f"{name} has no effect on this server: {why}." for name, why in WITHOUT_EFFECT.items() if name in values
    ]
    return Environment(values, written, problems, list(_unknown(values, rows)), without_effect)


def _is_of_kubernetes(name: str, text: str) -> bool:
    """A port that is the address of a Service is none of ours, also where we have a setting of that name."""
    if name.endswith("_PORT") and _ADDRESS_OF_SERVICE.fullmatch(text):
        return True
    return _OF_SERVICE.fullmatch(name) is not None


def _unknown(values: Mapping[str, str], rows: Sequence[Row]) -> Iterator[str]:
    known = [*(name for row in rows for name in (row.name, *row.aliases)), *_FOR_CLIENTS]
    by_rest = {name.removeprefix(_PREFIX): name for name in known}
    for name in sorted(values):
        if name.startswith(_PREFIX) and name not in known and name not in WITHOUT_EFFECT:
            # Without the prefix: all names that have it are alike by so much.
            close = difflib.get_close_matches(name.removeprefix(_PREFIX), by_rest, n=1, cutoff=0.75)
            hint = f"did you mean {by_rest[close[0]]}?" if close else f"{_LISTED} lists the settings there are."
            yield f"{name} is not a setting of this version; {hint}"
