"""Which tests of a parallel run stay together in one process: those of a file, and all that share the Spark session."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class Files(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        """xdist marks the tests of the group spark in this way."""
        return "spark" if nodeid.endswith("@spark") else nodeid.partition("::")[0]
