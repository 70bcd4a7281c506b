"""The files of a lake, read with pyarrow: what a task does when Spark has no way of its own to the store.

A file has all columns but the queue, which is in its path. Where that was cut, only the manifest knows it, so whoever
reads says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..options import COLUMNS
from ..schema import arrow_schema, every_column
from .filesystem import open_input

FILE_COLUMNS: Final = tuple(name for name in COLUMNS if name != "queue")
_ROWS: Final = 1024
"""In a batch: few enough for payloads of a megabyte."""


@contextmanager
def _named(uri: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise OSError(f"the file {uri} cannot be read: {error}") from None


def read_file(uri: str, queue: str) -> Iterator[pa.RecordBatch]:
    """The messages of a file with the columns of the source `queen`."""
    schema = arrow_schema(every_column())
    with closing(open_input(uri)) as file, _named(uri):
        found = pq.ParquetFile(file, page_checksum_verification=True)
        for rows in found.iter_batches(_ROWS, columns=list(FILE_COLUMNS)):
            columns = {name: rows.column(name) for name in FILE_COLUMNS}
            columns["queue"] = pa.array([queue] * rows.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays(
                [columns[name].cast(schema.field(name).type) for name in COLUMNS], schema=schema
            )
