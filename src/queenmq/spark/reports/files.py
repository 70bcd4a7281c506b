"""Results as files in a directory of the driver's machine. A file is complete or not there: it is written under another
name, which Spark does not read, and then renamed."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report was written. `path_table` is a directory of Parquet files; `rows` is what this run wrote there."""

    path_html: Path
    path_table: Path
    path_csv: Path
    rows: int


def directory(out: str | os.PathLike[str]) -> Path:
    """The directory of reports, made when it is not there."""
    path = Path(out)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError("out", str(out), f"a directory that can be written to ({error.strerror})") from None
    return path


def write_text(path: Path, text: str) -> None:
    with _replacing(path) as part:
        part.write_text(text, "utf-8")


def write_parquet(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    with _replacing(path) as part:
        pq.write_table(table, part, compression="zstd")


def write_csv(path: Path, table: pa.Table) -> None:
    """For spreadsheets: a text that one would take for a formula is marked as a text."""
    with _replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.column_names)
        for batch in table.to_batches():
            writer.writerows([_cell(value) for value in row.values()] for row in _rows(batch))


def _rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    yield from batch.to_pylist()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value.isoformat() if hasattr(value, "isoformat") else value


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
