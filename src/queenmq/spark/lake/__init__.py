"""The lake: messages in Parquet files that any tool reads, and a manifest that says which of them are committed.

`read` gives a DataFrame of exactly the committed messages, `files` the names of their files. `Writer` commits batches
exactly once, and `compact` rewrites many small files into few.
"""

from __future__ import annotations

from .compaction import compact
from .reading import files, read

__all__ = ["compact", "files", "read"]
