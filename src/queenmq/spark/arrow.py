"""Segments into rows: one Arrow batch of segments becomes one Arrow batch of messages, without a loop over messages.

A column of a segment holds its messages' values joined by the byte 0x1E. Arrow keeps the values of a column one after
the other with an array of their ends, so dropping that byte and counting where it stood is all it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..domain.cipher import Cipher
from .errors import SparkError, Unreadable
from .payloads import parse_payloads

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]

_SEPARATOR: Final = 0x1E
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_ID_BYTES: Final = 36


def fetched(columns: Sequence[str]) -> str:
    """What `spark_segments` must return for these columns, as its letters."""
    wanted = {
        "transaction_id": "x",
        "payload": "de",
        "data": "de",
        "trace_id": "t",
        "producer_sub": "s",
        "encrypted": "e",
    }
    return "".join(sorted({letter for name in columns for letter in wanted.get(name, "")}))


@dataclass(frozen=True, slots=True)
class Unpacker:
    """Makes rows of one schema; with a cipher, encrypted payloads are delivered in clear."""

    schema: pa.Schema
    cipher: Cipher | None = None

    def rows(self, segments: pa.RecordBatch) -> pa.RecordBatch:
        """The messages of these segments that lie in their ranges."""
        batch = _Segments(segments, self.cipher)
        columns = [batch.column(field) for field in self.schema]
        return batch.clipped(pa.RecordBatch.from_arrays(columns, schema=self.schema))


class _Segments:
    """One batch on its way. Columns are made when they are asked for, each once."""

    def __init__(self, segments: pa.RecordBatch, cipher: Cipher | None) -> None:
        self._segments = segments
        self._cipher = cipher
        self._counts: Ints = _numbers(segments, "n")
        self._total = int(self._counts.sum())
        self._owner: Ints = np.repeat(np.arange(len(self._counts)), self._counts)
        starts = np.cumsum(self._counts) - self._counts
        self._index: Ints = np.arange(self._total) - starts[self._owner]
        self._made: dict[str, pa.Array] = {}

    def column(self, field: pa.Field) -> pa.Array:
        if field.name == "data":
            return parse_payloads(self._get("payload"), self._get("encrypted"), field.type)
        return self._get(field.name)

    def clipped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without messages outside of the ranges: the ends of a range may lie inside of a segment."""
        lo, hi, last = (_numbers(self._segments, name) for name in ("lo", "hi", "last_seq"))
        if ((last - self._counts >= lo) & (last <= hi)).all():
            return rows
        seq = self._seqs()
        return rows.filter(pa.array((seq > lo[self._owner]) & (seq <= hi[self._owner])))

    def _get(self, name: str) -> pa.Array:
        if name not in self._made:
            maker = _MAKERS.get(name)
            self._made[name] = maker(self) if maker else self._segments.column(name).take(pa.array(self._owner))
        return self._made[name]

    def _seqs(self) -> Ints:
        last = _numbers(self._segments, "last_seq")
        return (last - self._counts + 1)[self._owner] + self._index

    def _seq(self) -> pa.Array:
        return pa.array(self._seqs())

    def _message_id(self) -> pa.Array:
        """The base of the segment with the message's number in its last four digits."""
        base = self._segments.column("base")
        letters = np.frombuffer("".join(base.to_pylist()).encode(), dtype=np.uint8).reshape(-1, _ID_BYTES)
        ids: Bytes = letters[self._owner]
        number = _numbers(self._segments, "base_idx")[self._owner] + self._index
        for place, shift in enumerate((12, 8, 4, 0)):
            ids[:, _ID_BYTES - 4 + place] = _HEX[(number >> shift) & 15]
        ends = np.arange(0, (self._total + 1) * _ID_BYTES, _ID_BYTES, dtype=np.int64)
        return _strings(ends, ids.tobytes())

    def _transaction_id(self) -> pa.Array:
        """The one that was given, else the message's id."""
        given = self._optional("tx")
        return given if given.null_count == 0 else pc.coalesce(given, self._get("message_id"))

    def _optional(self, name: str) -> pa.Array:
        """Values of which some messages, or all of a segment, have none."""
        values = self._split(name)
        empty = pc.equal(pc.binary_length(values), 0)
        return pc.if_else(empty, pa.scalar(None, pa.string()), values) if pc.any(empty).as_py() else values

    def _payloads(self) -> tuple[pa.Array, pa.Array]:
        """Payloads and whether each is still encrypted."""
        marks = self._marks()
        payload = self._split("data")
        if self._cipher is not None and marks.any():
            payload, marks = self._opened(payload, marks)
        self._made["payload"], self._made["encrypted"] = payload, pa.array(marks)
        return self._made["payload"], self._made["encrypted"]

    def _opened(self, payload: pa.Array, marks: npt.NDArray[np.bool_]) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        assert self._cipher is not None
        values: list[Any] = payload.to_pylist()
        sealed = np.flatnonzero(marks)
        for place, clear in zip(sealed, self._cipher.open(values[at].encode() for at in sealed), strict=True):
            if clear is None:
                raise Unreadable(
                    "a payload cannot be decrypted: QUEEN_ENCRYPTION_KEY is not the key it was encrypted with. Give "
                    "the key of the server, or the option decrypt=false to read payloads as they are stored"
                )
            values[place] = clear.decode()
        return pa.array(values, pa.string()), np.zeros(len(marks), dtype=bool)

    def _marks(self) -> npt.NDArray[np.bool_]:
        marks = self._segments.column("enc")
        if marks.null_count == len(marks):
            return np.zeros(self._total, dtype=bool)
        texts = [mark or "0" * count for mark, count in zip(marks.to_pylist(), self._counts, strict=True)]
        marked: npt.NDArray[np.bool_] = np.frombuffer("".join(texts).encode(), dtype=np.uint8) == ord("1")
        return marked

    def _split(self, name: str) -> pa.Array:
        """A joined column as one value per message; a segment that is NULL there has empty values."""
        joined = self._segments.column(name)
        if joined.null_count == 0:
            return _unjoined(joined, self._counts)
        present = joined.is_valid().to_numpy(zero_copy_only=False)
        if not present.any():
            return pa.array([""], pa.string()).take(pa.array(np.zeros(self._total, dtype=np.int64)))
        values = pa.concat_arrays([_unjoined(joined.drop_null(), self._counts[present]), pa.array([""], pa.string())])
        places = np.full(self._total, len(values) - 1)
        places[present[self._owner]] = np.arange(len(values) - 1)
        return values.take(pa.array(places))


# Not in the object: it would refer to itself, and its memory wait for the garbage collector.
_MAKERS: Final[dict[str, Callable[[_Segments], pa.Array]]] = {
    "seq": _Segments._seq,
    "message_id": _Segments._message_id,
    "transaction_id": _Segments._transaction_id,
    "trace_id": lambda batch: batch._optional("trace_ids"),
    "producer_sub": lambda batch: batch._optional("subs"),
    "payload": lambda batch: batch._payloads()[0],
    "encrypted": lambda batch: batch._payloads()[1],
}


def _unjoined(joined: pa.Array, counts: Ints) -> pa.Array:
    """One value per message. Raises SparkError when the counts say otherwise, which only a damaged table does."""
    ends, text = _contents(joined)
    separators = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _SEPARATOR)
    inner = np.bincount(np.searchsorted(ends[1:], separators, side="right"), minlength=len(counts))
    if not np.array_equal(inner + 1, counts):
        raise SparkError("a segment holds another number of messages than it says; run: queen db check")
    # The last value of a segment ends with the segment, all others at a separator; those before it are dropped.
    stops = np.insert(separators, np.cumsum(inner), ends[1:])
    dropped = np.arange(len(stops)) - np.repeat(np.arange(len(counts)), counts)
    offsets = np.concatenate([[0], stops - dropped])
    return _strings(offsets, text.translate(None, bytes([_SEPARATOR])))


def _contents(joined: pa.Array) -> tuple[Ints, bytes]:
    """Where each value begins and ends, and all of them as one text."""
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[joined.offset : joined.offset + len(joined) + 1].astype(np.int64)
    text = b"" if data is None else memoryview(data)[ends[0] : ends[-1]].tobytes()
    return ends - ends[0], text


def _strings(offsets: Ints, text: bytes) -> pa.Array:
    if offsets[-1] >= 2**31:
        raise SparkError("more than 2 GB of text in one batch of segments")  # batches are bounded far below
    return pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32).tobytes()), pa.py_buffer(text)
    )


def _numbers(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy().astype(np.int64)
    return found


def unpacked(batches: Iterator[pa.RecordBatch], unpacker: Unpacker) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            rows = unpacker.rows(batch)
            if rows.num_rows:
                yield rows
