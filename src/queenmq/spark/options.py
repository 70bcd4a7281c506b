"""The options of the source `queen`, one row each: name, what it is for, whether reading or writing takes it.

Spark hands options over as texts whose names ignore case. They are read once, here, into a typed object, on the
driver, before anything is asked of the database; a name that is not known or a value that is not allowed is refused
with what would be. No option carries a secret: a password inside `databaseUrl` is refused, because options are part of
plans.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from ..storage.url import without_password
from ..wire.names import InvalidValue, check_name
from .errors import OptionError, SparkError, UnknownOption

Kind = Literal["read", "write", "both"]
Dataset = Literal["messages", "ranges", "metrics", "dead_letters", "lag", "partitions"]
_T = TypeVar("_T")
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
COLUMNS: Final = (
    *("queue", "partition", "partition_id", "seq", "message_id", "transaction_id", "trace_id", "producer_sub"),
    *("payload", "encrypted", "created_at"),
)
DATASETS: Final = ("messages", "ranges", "metrics", "dead_letters", "lag", "partitions")


@dataclass(frozen=True, slots=True)
class OptionRow:
    name: str
    kind: Kind
    default: str
    doc: str


OPTIONS: Final = (
    OptionRow(
        "databaseUrl",
        "both",
        "DATABASE_URL",
        "where PostgreSQL is, without a password; that comes from the environment",
    ),
    OptionRow(
        "url", "write", "QUEEN_URL", "the server to push to over HTTP; without it, pushes go straight to PostgreSQL"
    ),
    OptionRow(
        "queue",
        "both",
        "",
        "read: a name, a comma-separated list, or a pattern with * and ?; write: for rows without a queue",
    ),
    OptionRow("namespace", "read", "", "only queues of this namespace"),
    OptionRow("task", "read", "", "only queues of this task"),
    OptionRow("partitions", "read", "", "only these partitions: names, comma-separated, or a JSON array"),
    OptionRow(
        "startingOffsets",
        "read",
        "earliest",
        "earliest, latest, a time, or JSON {queue: {partition: seq}}: the first message to read",
    ),
    OptionRow(
        "endingOffsets",
        "read",
        "latest",
        "latest, a time, or JSON {queue: {partition: seq}}: where a batch ends (not included)",
    ),
    OptionRow("maxMessagesPerTrigger", "read", "", "at most so many messages in a micro-batch"),
    OptionRow("maxBytesPerTrigger", "read", "", "about so many payload bytes in a micro-batch (512m, 2g)"),
    OptionRow("numSplits", "read", "", "how many tasks read; by default enough to keep the machine busy"),
    OptionRow("columns", "read", "", "only these columns, comma-separated: what is not named is not fetched"),
    OptionRow("payloadSchema", "read", "", "a DDL schema; the payload is parsed into the struct column data"),
    OptionRow(
        "failOnDataLoss",
        "read",
        "true",
        "whether messages that retention removed before they were read fail the query, or are only warned of",
    ),
    OptionRow(
        "pushdown",
        "read",
        "false",
        "filters of the query narrow the read in PostgreSQL; then use each load() in one query only",
    ),
    OptionRow("consumerGroup", "read", "", "the group under which a stream shows its progress"),
    OptionRow("decrypt", "read", "true", "decrypt when QUEEN_ENCRYPTION_KEY is in the environment of the job"),
    OptionRow(
        "dataset",
        "read",
        "messages",
        "messages; as a batch metrics, dead_letters, lag or partitions; as a stream ranges: the plan of each task",
    ),
    OptionRow("partition", "write", "Default", "the partition of rows that have no column partition"),
    OptionRow("batchSize", "write", "1000", "messages per push"),
    OptionRow("writeId", "write", "", "a name for this write: writing the same rows again under it adds nothing"),
    OptionRow("maxRetrySeconds", "write", "300", "how long a push is repeated while the server is overloaded or away"),
)
_CATALOG: Final = "provider"  # Spark adds it to the options of a table
_FIRST_YEAR: Final = 1900
_LAST_YEAR: Final = 9998
"""Times that every zone, PostgreSQL and Python can hold, with a microsecond more or less."""
_SPARKS_OWN: Final = {"path", "checkpointlocation", "queryname", "__temp_uuid", "compression", "mode"}


@dataclass(frozen=True, slots=True)
class Where:
    """A starting or ending position: a word, a time, or a sequence number for each (queue, partition)."""

    word: Literal["earliest", "latest", "time", "map"]
    time: datetime | None = None
    seqs: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    database_url: str
    queues: tuple[str, ...]
    namespace: str | None
    task: str | None
    partitions: tuple[str, ...]
    starting: Where
    ending: Where
    max_messages: int | None
    max_bytes: int | None
    splits: int | None
    columns: tuple[str, ...]
    payload_schema: str | None
    fail_on_data_loss: bool
    group: str | None
    decrypt: bool
    dataset: Dataset
    pushdown: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    database_url: str | None
    url: str | None
    queue: str | None
    partition: str
    batch_size: int
    write_id: str | None
    max_retry_seconds: float


def read_options(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> ReadOptions:
    """What a reader is asked to do. Raises OptionError."""
    values = _known(given, "read")
    dataset = _choice(values, "dataset", DATASETS, "messages")
    found = ReadOptions(
        database_url=_database(values, environment) or _lacking(),
        queues=_list(values, "queue", check_pattern),
        namespace=_text(values, "namespace"),
        task=_text(values, "task"),
        partitions=_list(values, "partitions", _partition),
        starting=_where(values, "startingOffsets", "earliest"),
        ending=_where(values, "endingOffsets", "latest"),
        max_messages=_positive(values, "maxMessagesPerTrigger"),
        max_bytes=_size(values, "maxBytesPerTrigger"),
        splits=_positive(values, "numSplits", 100_000),
        columns=_columns(values),
        payload_schema=values.get("payloadschema"),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        group=_named(values, "consumerGroup"),
        decrypt=_flag(values, "decrypt", True),
        dataset=dataset,  # type: ignore[arg-type]
        pushdown=_flag(values, "pushdown", False),
    )
    _check_offsets(found)
    if dataset in ("messages", "ranges") and not (found.queues or (found.namespace, found.task) != (None, None)):
        raise OptionError("queue", None, "a name, a list of names or a pattern (* for all), or give namespace or task")
    return found


def write_options(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> WriteOptions:
    """What a writer is asked to do. Raises OptionError."""
    values = _known(given, "write")
    url = values.get("url") or (None if values.get("databaseurl") else environment.get("QUEEN_URL")) or None
    if url is not None and not _is_address(url):
        shown = "hidden, as it has credentials" if "@" in url else url
        raise OptionError("url", shown, "http://host:port without credentials (a token goes into QUEEN_TOKEN)")
    database = None if url else _database(values, environment)
    if url is None and database is None:
        raise OptionError("url", None, "the server's address, or give databaseUrl (or set QUEEN_URL or DATABASE_URL)")
    return WriteOptions(
        database_url=database,
        url=url,
        queue=_named(values, "queue"),
        partition=_named(values, "partition") or "Default",
        batch_size=_positive(values, "batchSize", 10_000) or 1000,
        write_id=_named(values, "writeId"),
        max_retry_seconds=float(_positive(values, "maxRetrySeconds") or 300),
    )


def _is_address(url: str) -> bool:
    """Also whether its port is a number, and its host a name that could be looked up."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        return parts.port != 0 and re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", url) is not None
    except ValueError:
        return False


def is_pattern(name: str) -> bool:
    """Whether a queue's name has * or ?, which stand for any text and any character."""
    return "*" in name or "?" in name


def check_pattern(option: str, value: str) -> str:
    """A queue's name, which may contain * and ?."""
    return _name(option, value, "a queue name of 1 to 255 characters; * and ? stand for any text and any character")


def _known(given: Mapping[str, str], kind: Kind) -> dict[str, str]:
    names = {row.name.lower(): row for row in OPTIONS}
    if _CATALOG in map(str.lower, given):
        raise SparkError(
            "queues cannot be tables of a catalog (CREATE TABLE … USING queen, saveAsTable); read them with "
            "CREATE TEMPORARY VIEW … USING queen OPTIONS (queue '…'), and write them with format(\"queen\").save()"
        )
    for name in given:
        row = names.get(name.lower())
        if name.lower() in _SPARKS_OWN:
            continue
        if row is None:
            raise UnknownOption(name, [each.name for each in OPTIONS if each.kind in (kind, "both")])
        if row.kind not in (kind, "both"):
            raise OptionError(
                name, given[name] if name.lower() != "url" else "given", f"left out: it is for {row.kind}ing"
            )
    return {name.lower(): value for name, value in given.items()}


def _lacking() -> str:
    raise OptionError("databaseUrl", None, "the URL of the PostgreSQL to read from; give it, or set DATABASE_URL")


def _database(values: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """The database without its password. One in an option would be shown by plans; the environment's is kept there."""
    given = values.get("databaseurl")
    url = given or environment.get("DATABASE_URL")
    if not url:
        return None
    shown, password = without_password(url)
    if not re.match(r"postgres(ql)?://", url):
        raise OptionError("databaseUrl", "not such a URL", "postgresql://user@host:port/database")
    if given and password is not None:
        raise OptionError(
            "databaseUrl", "a URL with a password", "without one, since plans show options; set PGPASSWORD"
        )
    return shown


def _where(values: Mapping[str, str], option: str, default: str) -> Where:
    text = values.get(option.lower(), default).strip()
    if text in ("earliest", "latest") and (option, text) != ("endingOffsets", "earliest"):
        return Where(text)  # type: ignore[arg-type]
    words = "earliest, latest" if option == "startingOffsets" else "latest"
    allowed = f'{words}, a time such as 2025-01-31T12:00:00Z, or JSON such as {{"orders": {{"customer-7": 12}}}}'
    if text.startswith("{"):
        return Where("map", seqs=_seqs(option, text, allowed))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(option, text, allowed) from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise OptionError(option, text, f"a time of the years {_FIRST_YEAR} to {_LAST_YEAR}, or a word")
    return Where("time", time=moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _seqs(option: str, text: str, allowed: str) -> tuple[tuple[str, str, int], ...]:
    try:
        found = [(q, p, seq) for q, parts in json.loads(text).items() for p, seq in parts.items()]
    except (ValueError, AttributeError):
        raise OptionError(option, text, allowed) from None
    if any(not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq < 2**63 for _, _, seq in found):
        raise OptionError(option, text, f"JSON with sequence numbers of 0 or more, up to {2**63 - 1}")
    for queue, partition, _ in found:
        _name(option, queue, "JSON with names of queues of 1 to 255 characters, without control characters")
        _name(option, partition, "JSON with names of partitions of 1 to 255 characters, without control characters")
    return tuple(found)


def _check_offsets(options: ReadOptions) -> None:
    """Offsets of a queue that is not read are a mistake, and would leave another one without them."""
    if not options.queues:
        return
    letters = {"*": ".*", "?": "."}
    wanted = re.compile(
        "|".join("".join(letters.get(c) or re.escape(c) for c in name) for name in options.queues), re.DOTALL
    )
    for option, where in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        for queue, _, _ in where.seqs:
            if not wanted.fullmatch(queue):
                given = ", ".join(options.queues)
                raise OptionError(option, queue, f"JSON with queues that the option queue names ({given})")


def _text(values: Mapping[str, str], option: str) -> str | None:
    value = values.get(option.lower())
    if value is not None and "\0" in value:
        raise OptionError(option, value, "a text without NUL characters")
    return value


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    names = _list(values, "columns", lambda _, name: name)
    known = (*COLUMNS, "data") if values.get("payloadschema") else COLUMNS
    for name in names:
        if name not in known:
            raise OptionError("columns", name, f"of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise OptionError("columns", ",".join(names), "a list without repetitions")
    return names


def _list(values: Mapping[str, str], option: str, check: Callable[[str, str], str]) -> tuple[str, ...]:
    text = values.get(option.lower(), "")
    names: list[Any]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            raise OptionError(option, text, "a JSON array of texts, or texts separated by commas") from None
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(isinstance(name, str) for name in names):
        raise OptionError(option, text, "a JSON array of texts")
    return tuple(check(option, name) for name in names)


def _partition(option: str, value: str) -> str:
    return _name(option, value, "names of 1 to 255 characters")


def _named(values: Mapping[str, str], option: str) -> str | None:
    value = values.get(option.lower())
    return None if value is None else _name(option, value, "a name of 1 to 255 characters without control characters")


def _name(option: str, value: str, allowed: str) -> str:
    try:
        check_name(option, value)
    except InvalidValue:
        raise OptionError(option, value, allowed) from None
    return value


def _positive(values: Mapping[str, str], option: str, most: int = 2**62) -> int | None:
    text = values.get(option.lower())
    if text is None:
        return None
    limit = f"1 to {most:,}" if most < 2**62 else "1 or more"
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or not 1 <= int(text) <= most:
        raise OptionError(option, text, f"a whole number, {limit}")
    return int(text)


def _size(values: Mapping[str, str], option: str) -> int | None:
    text = values.get(option.lower())
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,15}) *([a-zA-Z]*)", text.strip())
    unit = _SIZES.get(found[2].lower()) if found else None
    if found is None or unit is None or int(found[1]) < 1:
        raise OptionError(option, text, "a size such as 1048576, 512k, 64m or 2g")
    return int(found[1]) * unit


def _flag(values: Mapping[str, str], option: str, default: bool) -> bool:
    text = values.get(option.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionError(option, text, "true or false")
    return text.lower() == "true"


def _choice(values: Mapping[str, str], option: str, allowed: tuple[str, ...], default: str) -> str:
    value = values.get(option.lower(), default)
    if value not in allowed:
        raise OptionError(option, value, " or ".join(allowed))
    return value


def markdown() -> str:
    """The table of all options, for docs/spark.md."""
    lines = ["| option | for | default | what it is |", "|---|---|---|---|"]
    kinds = {"read": "reading", "write": "writing", "both": "both"}
    for row in OPTIONS:
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.name}` | {kinds[row.kind]} | {default} | {row.doc} |")
    return "\n".join(lines) + "\n"
