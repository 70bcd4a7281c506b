"""What Spark keeps in a checkpoint about a query: its id, and the offset up to which its sink has committed.

A query reports progress only while it makes some. After a restart, or when there is nothing to do, the checkpoint tells
what the last commit was.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import PipelineError
from .filesystem import Files, for_spark


class Checkpoint:
    def __init__(self, files: Files) -> None:
        self._files = files

    @property
    def uri(self) -> str:
        return for_spark(self._files.uri())

    def query_id(self) -> str:
        """The id of the query that this checkpoint belongs to. It is there as soon as the query has started."""
        metadata = self._files.read("metadata")
        if metadata is None:
            raise PipelineError(f"there is no query in the checkpoint {self.uri}")
        return str(json.loads(metadata)["id"])

    def committed(self) -> dict[str, Any] | None:
        """The end offset of the last batch that was committed; None before the first."""
        names = [found.path.rpartition("/")[2] for found in self._files.find("commits")]
        batches = [int(name) for name in names if re.fullmatch("[0-9]+", name)]
        offsets = self._files.read(f"offsets/{max(batches)}") if batches else None
        if offsets is None:
            return None
        # A line with the version, one with the settings of the batch, and one for each source.
        found = json.loads(offsets.decode().splitlines()[2])
        return found if isinstance(found, dict) else None
