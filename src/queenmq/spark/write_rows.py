"""Rows of a DataFrame into parcels of messages, every one of them checked before any of its neighbours is pushed.

Spark hands a task its rows as Arrow batches. Almost all are fine, so the rules are asked of many at once: of distinct
names, of payloads joined together. Only when something is found are the rows taken one by one, to name the first bad
one by its number and column. A payload is never quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from ..domain.segments import Parcel
from ..wire.names import InvalidValue, check_name, check_transaction_id, check_uuid
from ..wire.payload import check_payload, check_payloads
from ..wire.requests import PushEntry
from .errors import OptionError, WriteRefused
from .row_ids import RowIds

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .options import WriteOptions

MOST_BYTES: Final = 4 << 20
"""Payload in one push: a server may take up to 32 MB, but holds it several times while it works on it."""

_PORTION: Final = 4 * MOST_BYTES  # of what Spark hands over at once, up to 64 MB: it is held several times, too
_KNOWN_NAMES: Final = 65_536
_NO_QUEUE: Final = "is null, and there is no option queue for such rows"
_decode_all: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """What an encrypted payload looks like."""

    encrypted: bytes
    iv: bytes
    tag: bytes = msgspec.field(name="authTag")


_read_envelope: Final = msgspec.json.Decoder(_Envelope).decode


@dataclass(frozen=True, slots=True)
class Columns:
    """Where in a row its parts are; None for what it has not."""

    payload: int
    queue: int | None = None
    partition: int | None = None
    transaction_id: int | None = None
    trace_id: int | None = None
    producer_sub: int | None = None
    encrypted: int | None = None

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions) -> Columns:
        """Raises WriteRefused for a column that is missing, unknown or of another type, OptionError without a queue."""
        allowed = [field.name for field in fields(cls)]
        found: dict[str, int] = {}
        for position, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in allowed:
                raise WriteRefused(f"column {field.name} cannot be written; select only {', '.join(allowed)}")
            if name in found:
                raise WriteRefused(f"column {field.name} is there twice")
            _check_type(name, field.dataType.simpleString())
            found[name] = position
        if "payload" not in found:
            raise WriteRefused("column payload is missing; it is the JSON text of each message, such as to_json gives")
        if "queue" not in found and options.queue is None:
            raise OptionError("queue", None, "the queue to write to, or give the rows a column queue")
        if options.url is not None and (only := found.keys() & {"producer_sub", "encrypted"}):
            raise WriteRefused(
                f"column {min(only)} cannot be written over HTTP, only straight to PostgreSQL (databaseUrl without url)"
            )
        return cls(**found)


def _check_type(name: str, given: str) -> None:
    wanted = "boolean" if name == "encrypted" else "string"
    if given == wanted or given.startswith(("char(", "varchar(")) or (given == "void" and name != "payload"):
        return
    hint = "; give JSON text: to_json(payload)" if given.startswith(("struct", "map", "array", "variant")) else ""
    raise WriteRefused(f"column {name} is of type {given}; it must be {wanted}{hint}")


class Rows:
    """The rows of one attempt of a task."""

    def __init__(self, columns: Columns, options: WriteOptions, ids: RowIds) -> None:
        self._columns = columns
        self._options = options
        self._ids = ids
        self._known: set[str] = set()
        self._passed = 0

    def parcels(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Parcel]:
        """In the order of the rows. Raises WriteRefused for the first that cannot be stored."""
        for batch in batches:
            for portion in portions(batch, _PORTION):
                yield from self._parcels(portion)
                self._passed += portion.num_rows

    def _parcels(self, batch: pa.RecordBatch) -> Iterator[Parcel]:
        columns = self._columns
        queues = self._names(batch, "queue", columns.queue, self._options.queue)
        partitions = self._names(batch, "partition", columns.partition, self._options.partition)
        payloads = _payloads(batch.column(columns.payload))
        traces = _values(batch, columns.trace_id)
        subs = _values(batch, columns.producer_sub)
        marks = _flags(batch, columns.encrypted)
        self._check_payloads(payloads, marks)
        self._check("trace_id", traces or (), check_uuid)
        self._check("producer_sub", subs or (), partial(check_name, empty=True))
        ids = self._transaction_ids(
            batch, queues, partitions, payloads, self._extras(traces, subs, marks, batch.num_rows)
        )
        items = list(map(PushEntry, queues, payloads, partitions, ids, traces or repeat(None)))  # type: ignore[arg-type]
        for start, end in cuts(payloads, self._options.batch_size, MOST_BYTES):
            yield Parcel(items[start:end], subs and subs[start:end], marks and marks[start:end])

    def _names(self, batch: pa.RecordBatch, field: str, position: int | None, default: str | None) -> list[str]:
        if position is None or pa.types.is_null(batch.schema.field(position).type):
            if default is None:
                raise self._refused(0, f"{field} {_NO_QUEUE}")
            return [default] * batch.num_rows
        encoded = batch.column(position).dictionary_encode()
        names: list[str | None] = encoded.dictionary.to_pylist()
        indices: list[int] = encoded.indices.fill_null(len(names)).to_pylist()
        self._check_names(field, names, indices)
        if default is None and len(names) in indices:
            raise self._refused(indices.index(len(names)), f"{field} {_NO_QUEUE}")
        names.append(default)
        return list(map(names.__getitem__, indices))  # type: ignore[arg-type]

    def _check_names(self, field: str, names: list[str | None], indices: list[int]) -> None:
        if self._known.issuperset(names):
            return
        if len(self._known) > _KNOWN_NAMES:
            self._known.clear()
        self._check(field, names, check_name, indices.index)
        self._known.update(map(str, names))

    def _transaction_ids(
        self,
        batch: pa.RecordBatch,
        queues: list[str],
        partitions: list[str],
        payloads: list[bytes],
        extras: list[bytes] | None,
    ) -> list[str]:
        """The rows' own where they have one, made for the others."""
        own = _values(batch, self._columns.transaction_id)
        if own is None:
            return self._ids.of(queues, partitions, payloads, extras)
        self._check("transaction_id", own, check_transaction_id)
        lacking = [row for row, name in enumerate(own) if not name]
        if lacking:
            made = self._ids.of(
                [queues[row] for row in lacking],
                [partitions[row] for row in lacking],
                [payloads[row] for row in lacking],
                extras and [extras[row] for row in lacking],
            )
            for row, name in zip(lacking, made, strict=True):
                own[row] = name
        return own

    def _extras(
        self, traces: list[Any] | None, subs: list[Any] | None, marks: list[bool] | None, rows: int
    ) -> list[bytes] | None:
        """What is stored beside the payloads, for the ids: each as a JSON array, which says itself where it ends.
        Whether there is any depends on the columns alone: another attempt gets its rows in other batches."""
        columns = self._columns
        if (columns.trace_id, columns.producer_sub, columns.encrypted) == (None, None, None):
            return None
        nothing = [None] * rows
        return [_encode(row) for row in zip(traces or nothing, subs or nothing, marks or [False] * rows, strict=True)]

    def _check_payloads(self, payloads: list[bytes], marks: list[bool] | None) -> None:
        """That each is one JSON value which PostgreSQL can hold, and sealed where its row says so."""
        try:
            # A text that is no value of its own could pass for one among its neighbours: hence they are compared.
            if list(map(bytes, _decode_all(b"[" + b",".join(payloads) + b"]"))) != payloads:
                raise InvalidValue("payload", "", "a JSON value")
            check_payloads("rows", payloads)
        except (InvalidValue, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._check("payload", payloads, check_payload)
        for row, mark in enumerate(marks or ()):
            if mark and not _is_sealed(payloads[row]):
                raise self._refused(row, "encrypted is true, but the payload is not an encrypted one")

    def _check(
        self,
        field: str,
        values: Iterable[object],
        rule: Callable[[str, Any], None],
        row_of: Callable[[int], int] = lambda row: row,
    ) -> None:
        for index, value in enumerate(values):
            if value is None:
                continue
            try:
                rule(field, value)
            except InvalidValue as error:
                raise self._refused(row_of(index), str(error)) from None

    def _refused(self, row: int, why: str) -> WriteRefused:
        return WriteRefused(f"row {self._passed + row} of task {self._ids.task}: {why}; nothing of its push was stored")


def portions(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """A batch in slices of about that size, none of them empty, as if its rows were of equal size."""
    rows = max(1, batch.num_rows * most_bytes // max(batch.nbytes, most_bytes))
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def cuts(payloads: Sequence[bytes], most_items: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Where to cut for pushes of that size: from, and up to. A payload that is larger stands alone."""
    start = size = 0
    for index, length in enumerate(map(len, payloads)):
        if index > start and (index - start >= most_items or size + length > most_bytes):
            yield start, index
            start, size = index, 0
        size += length
    yield start, len(payloads)


def _payloads(column: pa.Array) -> list[bytes]:
    """A missing payload is the JSON value null, as it is over HTTP."""
    kind = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    found: list[bytes | None] = column.cast(kind).to_pylist()
    return [b"null" if payload is None else payload for payload in found] if column.null_count else found  # type: ignore[return-value]


def _values(batch: pa.RecordBatch, position: int | None) -> list[Any] | None:
    """None when no row has a value."""
    if position is None or batch.column(position).null_count == batch.num_rows:
        return None
    found: list[Any] = batch.column(position).to_pylist()
    return found


def _flags(batch: pa.RecordBatch, position: int | None) -> list[bool] | None:
    found = _values(batch, position)
    return list(map(bool, found)) if found is not None and any(found) else None


def _is_sealed(payload: bytes) -> bool:
    try:
        _read_envelope(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
